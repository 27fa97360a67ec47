"""The connection between daemon and logger: a unix socket that keeps packets whole and carries descriptors."""

import contextlib
import errno
import os
import socket
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from supervisor.host.logs.messages import PACKET_BYTES, LoggerMessage, OutputMissed, OutputPrinted, decode, encode
from supervisor.host.logs.shared_room import SharedRoom
from supervisor.host.peers import peer_of

SOCKET = "log-keeper.sock"
LOCK = "log-keeper.lock"
ERRORS = "log-keeper.err"
"""Names in the state folder: the logger's socket, the lock that only one logger holds, its standard error."""

OUTBOX_BYTES = 1024 * 1024  # of output that listeners are to get; as much as for a log daemon that is away
OVERHEAD_BYTES = 500  # that a message takes in memory beside its output, of which it may have none

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS})
"""Errors that pass once the other end has read: its queue, or the descriptors in transit, have reached a limit."""


class LinkLost(Exception):
    """The other end has closed the connection."""


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
        return peer_of(self._socket).is_trusted

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
        for _ in range(2):  # the first error may only say that the other end left with messages unread
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
                raise LinkLost("closed")
            message = decode(packet)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return message, descriptors[0] if descriptors else None


class Outbox:
    """The logger's messages that a busy daemon has not taken yet, in their order; of each subject only the latest.

    Programs share the room for output. Descriptors in it stay the caller's.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[object, tuple[LoggerMessage, int | None]] = OrderedDict()
        self._output: dict[int, list[OutputPrinted]] = {}
        """The messages of each output event, which is a subject of its own: its number."""
        self._begun: list[OutputPrinted] = []
        """The messages of the event that is being sent which are left, the next one last."""
        self._room = SharedRoom(OUTBOX_BYTES)
        self._output_count = 0
        self._missed: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def put(self, subject: object, message: LoggerMessage, descriptor: int | None = None) -> None:
        """Adds a message, which replaces an older one about the same subject."""
        self._waiting.pop(subject, None)
        self._waiting[subject] = (message, descriptor)

    def put_output(self, messages: list[OutputPrinted]) -> None:
        """Adds all messages of one event. Those for which there is no room are counted by `OutputMissed`."""
        self._output_count += 1
        number, program = self._output_count, messages[0].program
        self._waiting[number], self._output[number] = (messages[0], None), messages
        for loser, lost in self._room.add(program, number, sum(map(_held_bytes, messages))):
            del self._waiting[lost], self._output[lost]
            self._missed[loser] += 1
            # keeps its place, so that it is sent even during a flood
            self._waiting["missed", loser] = (OutputMissed(self._missed[loser], loser), None)

    def send_to(self, link: Link) -> None:
        """Sends as much as the daemon has room for. Raises LinkLost."""
        while self._begun or self._waiting:
            if self._begun:
                if not link.send(self._begun[-1]):
                    return
                self._begun.pop()
                continue
            subject, (message, descriptor) = next(iter(self._waiting.items()))
            if isinstance(subject, int):  # all its messages are sent, whatever has to go meanwhile
                self._begun = self._output.pop(subject)[::-1]
                self._room.remove(self._begun[-1].program, subject)
            elif not link.send(message, descriptor):
                return
            del self._waiting[subject]
            if isinstance(message, OutputMissed):
                del self._missed[message.program]

    def clear(self) -> None:
        """Drops everything: no daemon is connected."""
        self._waiting.clear()
        self._output.clear()
        self._begun.clear()
        self._room.clear()
        self._missed.clear()


def _held_bytes(message: OutputPrinted) -> int:
    return len(message.data) + OVERHEAD_BYTES


def connect(state_dir: Path) -> Link | None:
    """The connection to the logger of a state folder; None if there is none. Raises OSError."""
    connection = _socket()
    connection.setblocking(False)  # a stopped logger's queue may be full
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
        raise PermissionError(errno.EPERM, f"{state_dir / SOCKET} belongs to another user")
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
    """A short name of the socket: the kernel allows 107 bytes, and a state folder's path may be longer."""
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)
