"""The connection between daemon and log keeper: a unix socket that keeps messages whole and carries descriptors."""

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from supervisor.host.logs.messages import (
    PACKET_BYTES,
    LoggerMessage,
    decode,
    encode,
)

SOCKET = "log-keeper.sock"
LOCK = "log-keeper.lock"
ERRORS = "log-keeper.err"
"""In the state folder: where the keeper listens, what the only keeper holds, what it says when it dies."""

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})
"""Refusals that pass once the other end has read: its queue, or the descriptors under way, have reached a limit."""


class LinkLost(Exception):
    """The other end is gone."""


class Link:
    """One end of the connection; owns the socket. Neither `send` nor `receive` ever waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(False)

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    @property
    def is_trusted(self) -> bool:
        """Whether the process at the other end runs as our user, or as root."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid: int = struct.unpack("3i", credentials)[1]
        return uid in (0, os.geteuid())

    def send(self, message: LoggerMessage, descriptor: int | None = None) -> bool:
        """Sends a message and a duplicate of the descriptor; False if there is no room now. Raises LinkLost."""
        try:
            socket.send_fds(self._socket, [encode(message)], [] if descriptor is None else [descriptor])
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise LinkLost(error.strerror) from error
        return True

    def receive(self) -> tuple[LoggerMessage, int | None] | None:
        """The next message, and the descriptor that came with it, now the caller's; None if there is none now.

        Raises LinkLost, or LogProtocolError about one packet.
        """
        for _ in range(2):  # once it may only say that the other end left without reading all: what it sent is there
            with contextlib.suppress(ConnectionResetError, BlockingIOError):
                return self._receive()
        return None

    def close(self) -> None:
        """Closes our end; what was sent still arrives."""
        self._socket.close()

    def _receive(self) -> tuple[LoggerMessage, int | None]:
        packet, descriptors, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            if not packet:
                raise LinkLost("it is gone")
            message = decode(packet)
        except BaseException:
            for each in descriptors:
                os.close(each)
            raise
        return message, descriptors[0] if descriptors else None


def connect(state_dir: Path) -> Link | None:
    """The connection to the keeper of a state folder; None if there is none. Raises OSError."""
    connection = _socket()
    connection.setblocking(False)  # a stopped keeper's queue may be full
    try:
        with _address(state_dir) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    link = Link(connection)
    if not link.is_trusted:
        link.close()
        raise PermissionError(errno.EPERM, f"{state_dir / SOCKET} is another user's")
    return link


def listen(state_dir: Path) -> socket.socket:
    """Listens in a state folder, for our own user only. Call it with the lock held. Raises OSError."""
    listener = _socket()
    listener.setblocking(False)
    (state_dir / SOCKET).unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        with _address(state_dir) as address:
            listener.bind(address)
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _address(state_dir: Path) -> Iterator[str]:
    """A name of the socket that is short enough: the kernel allows 107 bytes, a state folder may have more."""
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
