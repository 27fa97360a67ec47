"""Makes the sockets that listen for clients: unix sockets under their files' names, and those of TCP."""

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from supervisor.host.peers import refuse_descriptors
from supervisor.host.service.reloading import TakenListener
from supervisor.host.user_folders.guarded_open import guarded_folder

BACKLOG = socket.SOMAXCONN  # many clients may connect at the same moment


class ListenError(Exception):
    """A socket can't be opened; the text says why and what to do."""


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


def listen_on_file(path: Path, mode: int, owner: tuple[int, int] | None) -> socket.socket:
    """Binds under a temporary name, sets mode and owner, then renames: no client can connect while the mode is wrong.

    The folder may be another user's, who can put anything in the place of each name at any moment. So it is named by a
    descriptor, and mode and owner are set through one of the socket. Raises ListenError.
    """
    require_unused(path)
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


def require_unused(path: Path) -> None:
    """Raises ListenError if a program listens on the file."""
    if _is_in_use(path):
        raise ListenError(f"cannot listen on {path}: another program listens there; stop it, or use another file")


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
