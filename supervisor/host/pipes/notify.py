"""Receives what programs send by the protocol of sd_notify(3): that they are ready, and a status text.

Each attempt has a datagram socket of its own, a file in its folder: only its user can send to it, and it tells which
attempt the sender belongs to. The next daemon binds a new one at the same path. While no daemon runs, sending fails
with ECONNREFUSED; therefore the fact that the program is ready is also kept as a file.

A sender can attach descriptors, and closing one may take as long as the sender likes (a connection with SO_LINGER, a
file of a FUSE program that does not answer). So a thread closes them, and the socket, whose queue may hold more of
them. Until it has, nothing else is received: an attempt never makes the daemon hold more descriptors than one datagram
can bring.

A program that sends without end waits, as with the control pipes: so many datagrams a second are read of an attempt.
That it is ready is passed on once.
"""

import array
import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.processes import marks
from supervisor.host.processes.environments import LOOP_LIMIT_S
from supervisor.protocol import layout
from supervisor.protocol.wire.limits import TokenBucket

MAX_BYTES = 4096  # systemd's own limit
MAX_STATUS = 200  # characters that are shown
READ_AT_ONCE = 32  # datagrams read in one turn of the event loop
DATAGRAMS_A_SECOND, DATAGRAMS_AT_ONCE = 50, 500  # read of one attempt; a status line is for people
LONGEST_PAUSE_S = 1.0  # so that what is said after a flood is heard soon
REPORT_EVERY_S = 10.0
RETRY_S = 1.0  # until a thread may be had

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MOST_FDS = 253  # SCM_MAX_FD: what a sender can attach, as systemd-notify's barrier does
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)


class NotifyError(Exception):
    """A datagram is not a valid notification; the text says why."""


@dataclass(frozen=True, slots=True)
class NotifyMessage:
    """The part of a datagram that matters here. `status`: None if it has none; "" clears the last one."""

    ready: bool = False
    status: str | None = None


def parse_notification(datagram: bytes) -> NotifyMessage:
    """Decodes a datagram, ignoring keys that nobody acts on. Raises NotifyError."""
    if len(datagram) > MAX_BYTES:
        raise NotifyError(f"it is longer than {MAX_BYTES} bytes")
    variables: dict[str, str] = {}
    for line in datagram.decode(errors="replace").split("\n"):
        key, equals, value = line.partition("=")
        if line and not (equals and key.isascii() and key.replace("_", "").isalnum()):
            raise NotifyError(f"{line[:40]!r} is not KEY=VALUE")
        if line:
            variables[key] = value
    if not variables:
        raise NotifyError("it is empty")
    status = variables.get("STATUS")
    if status is not None:
        status = "".join(character if character.isprintable() else " " for character in status).strip()[:MAX_STATUS]
    return NotifyMessage(variables.get("READY") == "1", status)


class NotifySocket:
    """Listens in `folder` until `close`. `owner`: uid and gid of the program; None: the daemon's own.

    `on_message` gets the messages of the attempt's own processes, which are recognised by `pid` (the worker's, once
    there is one) and by `mark`. `on_refused` gets the reason why another message was ignored, rate-limited. Both are
    called from the running loop. Raises OSError.
    """

    def __init__(
        self,
        folder: Path,
        owner: tuple[int, int] | None,
        mark: str,
        on_message: Callable[[NotifyMessage], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self.path = folder / layout.NOTIFY
        self.pid: int | None = None
        self._ready = folder / layout.READY
        self._mark = mark
        self._uids = {0, os.geteuid(), *(owner[:1] if owner else ())}
        self._on_message = on_message
        self._on_refused = on_refused
        self._quiet_until = 0.0
        self._loop = asyncio.get_running_loop()
        self._closing = BlockingCalls()
        self._quota = TokenBucket(DATAGRAMS_A_SECOND, DATAGRAMS_AT_ONCE)
        self._is_closed = self._has_said_ready = False
        self._pauses = 0  # reasons to receive nothing at present
        self._socket = _bind(self.path, owner)
        self._loop.add_reader(self._socket, self._receive)

    @property
    def was_ready(self) -> bool:
        """Whether this attempt has ever reported that it is ready, to this daemon or an earlier one."""
        return self._ready.exists()

    def close(self) -> None:
        """Stops listening; the file stays until the next daemon binds it anew or the folder is removed."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket)
            with contextlib.suppress(RuntimeError):  # no thread to spare: it is closed once nothing refers to it
                self._closing.submit(None, self._socket.close)

    def drain(self) -> None:
        """Receives what a program that has ended sent before."""
        for _ in range(READ_AT_ONCE):
            if not self._receive_one():
                return

    def _receive(self) -> None:
        for _ in range(READ_AT_ONCE):
            if self._is_closed or not self._receive_one():
                return
            if (pause_s := self._quota.spend(self._loop.time(), 1.0)) > 0.0:
                self._pause()
                self._loop.call_later(min(pause_s, LONGEST_PAUSE_S), self._resume)
                return

    def _receive_one(self) -> bool:
        if self._pauses:
            return False
        try:
            datagram, ancillary, _, _ = self._socket.recvmsg(MAX_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        sender, descriptors = _sender(ancillary)
        try:
            self._handle(datagram, *sender)
        finally:
            if descriptors:  # only now: a sender's barrier waits for this
                self._pause()
                self._close_descriptors(descriptors)
        return True

    def _handle(self, datagram: bytes, pid: int, uid: int) -> None:
        try:
            message = parse_notification(datagram)
        except NotifyError as error:
            self._refuse(f"ignored an invalid notification of pid {pid}: {error}")
            return
        if not self._is_ours(pid, uid):
            self._refuse(f"ignored a notification of pid {pid} (uid {uid}), which is not a process of this program")
            return
        if message.ready and not self._has_said_ready:
            self._has_said_ready = True
            with contextlib.suppress(OSError):  # only the next daemon would not know
                self._ready.touch()
        elif message.ready:
            message = NotifyMessage(status=message.status)
        self._on_message(message)

    def _close_descriptors(self, descriptors: list[int]) -> None:
        """Closes what a sender attached, as a barrier waits for; nothing is received until that is done."""
        try:
            closed = self._closing.submit(None, _close_all, descriptors)
        except RuntimeError:  # the host has no thread to spare
            self._loop.call_later(RETRY_S, self._close_descriptors, descriptors)
        else:
            closed.add_done_callback(self._on_descriptors_closed)

    def _on_descriptors_closed(self, _: object) -> None:
        """In the thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._resume)

    def _pause(self) -> None:
        """Receives nothing until `_resume` was called as often."""
        self._pauses += 1
        self._loop.remove_reader(self._socket)

    def _resume(self) -> None:
        self._pauses -= 1
        if not (self._is_closed or self._pauses):
            self._loop.add_reader(self._socket, self._receive)

    def _is_ours(self, pid: int, uid: int) -> bool:
        """Whether the sender belongs to the attempt, by session or mark.

        A sender that has already ended, as systemd-notify does, is accepted by its user alone.

        A pid of 0 belongs to a process outside this pid namespace.
        """
        if uid not in self._uids:
            return False
        if pid == self.pid:
            return True
        try:
            session = os.getsid(pid) if pid else None
        except ProcessLookupError:
            return True
        return session is None or session == self.pid or marks.read_mark(pid, LOOP_LIMIT_S) == self._mark

    def _refuse(self, why: str) -> None:
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + REPORT_EVERY_S
            self._on_refused(why)


def _bind(path: Path, owner: tuple[int, int] | None) -> socket.socket:
    with contextlib.ExitStack() as undo:
        listening = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC))
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)
        if owner is not None:
            os.chown(path, *owner, follow_symlinks=False)
        undo.pop_all()
    return listening


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[tuple[int, int], list[int]]:
    """Pid and uid of the sender, from the kernel, and the descriptors that it attached."""
    sender, attached = (-1, -1), array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            sender = pid, uid
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            attached.frombytes(data[: len(data) - len(data) % attached.itemsize])
    return sender, list(attached)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
