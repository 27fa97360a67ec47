"""The sockets on which clients connect: from the configuration to open, listening endpoints."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from supervisor.config import Config, InetServerConfig, UnixServerConfig
from supervisor.control.http.access import Login
from supervisor.host.service.file_watch import FileWatch
from supervisor.host.service.reloading import Reload, TakenListener
from supervisor.host.user_folders.guarded_open import guarded_folder

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MADE_AGAIN_EVERY_S = 5.0  # while its folder is missing, or another program listens there
SO_PASSRIGHTS = 83  # <asm-generic/socket.h>
BACKLOG = socket.SOMAXCONN  # many clients may connect at the same moment

log = structlog.get_logger()


class ListenError(Exception):
    """A socket can't be opened; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A socket that clients connect to. `owner`: the uid that may change things, besides root and the daemon's own.

    With a `login`, clients that know it may do everything, and others are refused. `hosts`: the names by which a TCP
    client without a login may call this server (its Host header); any other name is refused, so that a web page can't
    reach it through a name of its own that resolves to this host. None: any name.
    `file`: the file of a unix socket.
    """

    listener: socket.socket
    owner: int
    login: Login | None = None
    hosts: frozenset[str] | None = None
    file: "SocketFile | None" = None

    @property
    def is_unix(self) -> bool:
        """Whether the kernel tells who the client is."""
        return self.listener.family == socket.AF_UNIX


@contextlib.contextmanager
def open_endpoints(config: Config, reload: Reload, is_reload: Callable[[], bool]) -> Iterator[tuple[Endpoint, ...]]:
    """Opens every configured socket, or takes it over from the daemon that this process was before `reload`.

    At the end leaves them open for the next daemon if it `is_reload`; otherwise closes them and removes their files.
    Raises ListenError.
    """
    unix, inet = config.unix_http_servers, config.inet_http_servers
    places = [_place(server) for server in unix] + [_place(server) for server in inet]
    with contextlib.ExitStack() as at_end:
        taken = {place: reload.take(place) for place in places}
        reload.close_rest()
        endpoints = (
            *[_unix_endpoint(server, taken[_place(server)], at_end) for server in unix],
            *[_tcp_endpoint(server, taken[_place(server)], at_end) for server in inet],
        )
        yield endpoints
        if is_reload():
            for place, endpoint in zip(places, endpoints, strict=True):
                file = endpoint.file
                if file is None:
                    reload.keep(place, endpoint.listener)
                else:
                    reload.keep(place, file.listener, (file.path, file.inode))
            at_end.pop_all()


def _place(server: UnixServerConfig | InetServerConfig) -> str:
    """What a socket is made from: one that another daemon left is of use only if it was made from the same."""
    if isinstance(server, UnixServerConfig):
        return f"{server.file} {server.chmod:o} {server.owner}"
    host, port = server.address
    return f"{host}:{port}"


def _unix_endpoint(settings: UnixServerConfig, taken: TakenListener | None, at_end: contextlib.ExitStack) -> Endpoint:
    file = SocketFile(settings.file, settings.chmod, settings.owner, taken)
    if taken is None:
        file.listen()
    at_end.callback(file.close)
    owner = settings.owner[0] if settings.owner else os.geteuid()
    return Endpoint(file.listener, owner, _login(settings), file=file)


def _tcp_endpoint(settings: InetServerConfig, taken: TakenListener | None, at_end: contextlib.ExitStack) -> Endpoint:
    host, port = settings.address
    listener = listen_on_address(host, port) if taken is None else taken.listener
    at_end.callback(listener.close)
    login = _login(settings)
    if login is None:
        log.warning(
            "control.open_to_all", address=f"{host}:{port}", remedy="set username and password in [inet_http_server]"
        )
    return Endpoint(listener, os.geteuid(), login, None if login else LOCAL_HOSTS | {host or "localhost"})


def _login(settings: UnixServerConfig | InetServerConfig) -> Login | None:
    if settings.username is None or settings.password is None:
        return None
    return Login(settings.username, settings.password)


class SocketFile:
    """The file of a unix socket, as it is configured; without it no new client finds the socket.

    `taken`: the socket, if the daemon before has made it already.
    """

    def __init__(
        self, path: Path, mode: int, owner: tuple[int, int] | None, taken: TakenListener | None = None
    ) -> None:
        self.path = path
        self._mode, self._owner = mode, owner
        self.listener = socket.socket(socket.AF_UNIX) if taken is None else taken.listener
        self.inode = None if taken is None else taken.file_inode

    def listen(self) -> socket.socket:
        """Makes the file, and gives its socket; closes the one before. Raises ListenError."""
        listener = listen_on_file(self.path, self._mode, self._owner)
        self.listener.close()
        self.listener, self.inode = listener, self.path.stat().st_ino
        return listener

    def is_there(self) -> bool:
        """Whether the name still leads to this socket."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        """Closes the socket and removes the file, unless another daemon has taken the place."""
        if self.is_there():
            with contextlib.suppress(FileNotFoundError, PermissionError), guarded_folder(self.path.parent) as folder:
                os.unlink(self.path.name, dir_fd=folder)
        self.listener.close()


class LastingListener:
    """Keeps a unix socket reachable: where its file is deleted, makes it again. Open connections go on as they are.

    `serve` begins to serve the clients of a listener, and closes it at its end. It gets another descriptor of the
    endpoint's, which may have to stay open for the next daemon.
    """

    def __init__(self, endpoint: Endpoint, serve: Callable[[socket.socket], Awaitable[asyncio.Server]]) -> None:
        self._file = endpoint.file
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._watch: FileWatch | None = None
        self._task: asyncio.Task[None] | None = None
        self._listener = endpoint.listener

    async def begin(self) -> None:
        """Serves its clients from now on."""
        self._server = await self._serve(self._listener.dup())
        self._listener.listen(BACKLOG)  # asyncio has set a smaller number
        if self._file is not None:
            self._watch = FileWatch(self._file.path, self._on_event)
            self._on_event()  # it may be gone since it was made

    def stop_accepting(self) -> None:
        """Leaves new clients in the kernel's queue. Those that were accepted may still have to be introduced."""
        for listener in self._server.sockets if self._server is not None else ():
            asyncio.get_running_loop().remove_reader(listener)

    def close(self) -> None:
        """Serves no new clients, and makes no new file."""
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()
        if self._server is not None:
            self._server.close()

    def _on_event(self) -> None:
        if self._file is not None and (self._task is None or self._task.done()) and not self._file.is_there():
            self._task = asyncio.get_running_loop().create_task(self._make_again(self._file))

    async def _make_again(self, file: SocketFile) -> None:
        logged = False
        while not file.is_there():
            try:
                listener = await asyncio.to_thread(file.listen)
            except (ListenError, RuntimeError) as error:  # the latter: the host has no thread to spare
                if not logged:
                    log.error("control.socket_lost", file=str(file.path), error=str(error), next="it is tried again")
                logged = True
                await asyncio.sleep(MADE_AGAIN_EVERY_S)
                continue
            if self._server is not None:
                self._server.close()  # nobody could connect to it any more
            if self._watch is not None:
                self._watch.close()
            self._server = await self._serve(listener.dup())
            listener.listen(BACKLOG)
            log.warning("control.socket_made_again", file=str(file.path), reason="its file was deleted or replaced")
            self._watch = FileWatch(file.path, self._on_event)


def listen_on_file(path: Path, mode: int, owner: tuple[int, int] | None) -> socket.socket:
    """Binds under a temporary name, sets mode and owner, then renames: no client can connect while the mode is wrong.

    The folder may be another user's, who can put anything in the place of each name at any moment. So it is named by a
    descriptor, and mode and owner are set through one of the socket. Raises ListenError.
    """
    if _is_in_use(path):
        raise ListenError(f"cannot listen on {path}: another program listens there; stop it, or use another file")
    temporary = f".{path.name}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with guarded_folder(path.parent) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            listener.bind(f"/proc/self/fd/{folder}/{temporary}")
            _give_mode_and_owner(temporary, folder, mode, owner)
            refuse_descriptors(listener)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {path}: {error.strerror or error}; "
            f"set [unix_http_server] file to a path in an existing folder that this user can write to"
        ) from error
    return listener


def _give_mode_and_owner(name: str, folder: int, mode: int, owner: tuple[int, int] | None) -> None:
    """Sets those of the socket that was just bound. Raises OSError, also if something else has its name by now."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
            raise OSError(errno.EPERM, "somebody else has put another file in the place of the socket")
        os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101 - a descriptor
        if owner is not None:
            os.chown(f"/proc/self/fd/{descriptor}", *owner)
    finally:
        os.close(descriptor)


def refuse_descriptors(listener: socket.socket) -> None:
    """Has the kernel refuse descriptors that clients attach to what they send, where it can (Linux 6.16).

    Nobody here wants one, and closing it may take as long as the client likes (a connection with SO_LINGER).
    """
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def listen_on_address(host: str | None, port: int) -> socket.socket:
    """A TCP socket; `host` None: every interface, by IPv4 and IPv6 where the system has both. Raises ListenError."""
    try:
        if host is None and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        else:
            family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]  # noqa: S104
            listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host or '*'}:{port}: {_reason(error)}; stop the program that listens there, or "
            f"use another address in [inet_http_server] port"
        ) from error
    listener.setblocking(False)
    return listener


def _reason(error: OSError) -> str:
    """The reason without what Python adds to it; a host name that can't be resolved is a gaierror."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


def _is_in_use(path: Path) -> bool:
    """Whether a process listens on a socket file; a daemon that died leaves a file on which nothing does.

    It is looked at before, and connected to by a descriptor, so that no link in a user's folder leads elsewhere.
    """
    try:
        with guarded_folder(path.parent) as folder:
            file = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False  # what is wrong with the folder, the caller finds too
    try:
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect(f"/proc/self/fd/{file}")
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # it is too busy to answer
    finally:
        os.close(file)
    return True
