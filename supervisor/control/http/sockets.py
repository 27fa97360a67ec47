"""The sockets clients connect to: one in the file system, and TCP where it is configured."""

import contextlib
import os
import socket
from pathlib import Path

QUEUE = socket.SOMAXCONN  # `supervisorctl stop all` connects once for each program, all at once


class ListenError(Exception):
    """A socket can't be opened; the text says why and what to do."""


def listen_on_file(path: Path, mode: int, owner: tuple[int, int] | None) -> socket.socket:
    """Binds beside the final name, sets mode and owner, then renames: nobody can connect under a looser mode.

    Raises ListenError.
    """
    if _answers(path):
        raise ListenError(f"cannot listen on {path}: another program listens there; stop it, or use another file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        listener.bind(str(temporary))
        temporary.chmod(mode)
        if owner is not None:
            os.chown(temporary, *owner)
        listener.listen(QUEUE)
        listener.setblocking(False)
        temporary.rename(path)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {path}: {error.strerror or error}; "
            f"[unix_http_server] file must be in a folder that is there and that this user can write"
        ) from error
    return listener


def listen_on_address(host: str | None, port: int) -> socket.socket:
    """A TCP socket; `host` None: every interface, by IPv4 and IPv6 where the system has both. Raises ListenError."""
    try:
        if host is None and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=QUEUE, dualstack_ipv6=True)
        else:
            family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]  # noqa: S104
            listener = socket.create_server(address[:2], family=family, backlog=QUEUE)
    except OSError as error:
        raise ListenError(
            f"cannot listen on {host or '*'}:{port}: {_reason(error)}; stop what listens there, or use "
            f"another address in [inet_http_server] port"
        ) from error
    listener.setblocking(False)
    return listener


def _reason(error: OSError) -> str:
    """Without what Python adds; a name that leads nowhere has a number of another kind (gaierror)."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


def _answers(path: Path) -> bool:
    """Whether somebody listens on a socket file; one that a dead daemon left behind is nobody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return path.is_socket()
        return True
