"""Where clients connect: from the configuration to open endpoints, which stay reachable."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import structlog

from supervisor.config import Config, InetServerConfig, UnixServerConfig
from supervisor.control.http.access import Login
from supervisor.control.listening_sockets import (
    BACKLOG,
    ListenError,
    SocketFile,
    listen_on_address,
    require_unused,
)
from supervisor.host.service.file_watch import FileWatch
from supervisor.host.service.reloading import Reload, TakenListener

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MADE_AGAIN_EVERY_S = 5.0  # while its folder is missing, or another program listens there

log = structlog.get_logger()


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
    file: SocketFile | None = None

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


def why_not_open(config: Config, present: Config) -> str | None:
    """Why a daemon of `config` could not open its sockets in place of this one, of `present`; None if it could. Blocks.

    Of files and ports of this one nothing can be said before it has left them.
    """
    files = {server.file.resolve() for server in present.unix_http_servers}
    ports = {server.address[1] for server in present.inet_http_servers}
    try:
        for unix in config.unix_http_servers:
            if unix.file.resolve() not in files:
                require_unused(unix.file)
        for inet in config.inet_http_servers:
            if inet.address[1] not in ports:
                listen_on_address(*inet.address).close()
    except ListenError as error:
        return str(error)
    return None


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
