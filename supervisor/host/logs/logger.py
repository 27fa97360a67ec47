"""The log keeper: a small process that takes what programs print into their log files, also while no daemon lives.

Standard library only, and nothing that is imported later: an upgrade may replace the files of a running keeper.
One thread reads all pipes and never touches a disk; each file has a thread of its own (`log_writer`).
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from supervisor import __version__
from supervisor.host.logs.capture_mode import packets
from supervisor.host.logs.inputs import LogInputs
from supervisor.host.logs.link import (
    LOCK,
    SOCKET,
    Link,
    LinkLost,
    listen,
)
from supervisor.host.logs.messages import (
    CapturePipe,
    ClearFile,
    EndCapture,
    LogFailure,
    LoggerHello,
    LoggerMessage,
    LoggerReady,
    LogProtocolError,
    ReopenFiles,
    StillAlive,
)
from supervisor.host.logs.outbox import Outbox

EXIT_BUSY = 75  # EX_TEMPFAIL: another keeper holds the lock

TICK_S = 5.0  # how often it says that it is alive, and looks for disks that hang
LEAVE_S = 4.0  # how long disks get at the end; the daemon waits a second longer
FIRST_S = 30.0  # how long it waits for the daemon that started it
SHORTAGE_S = 0.1  # so that waiting for a descriptor is no busy loop
STACK_BYTES = 256 * 1024  # a writer's calls are shallow


class Logger:
    """Runs until no daemon is connected and no pipe is open, or until it is told to end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._link: Link | None = None
        self._unsent = Outbox()
        self._awaits_room = False  # on the link
        self._has_news = False  # there is something to look at
        self._leave_by: float | None = None
        self._expects_until: float | None = time.monotonic() + FIRST_S  # the first daemon; None once it has come
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._sources = LogInputs(self._epoll, self._ring, self._tell, self._tell_printed)
        for each in (listener.fileno(), self._bell):
            self._epoll.register(each, select.EPOLLIN)

    def run(self) -> None:
        """Reads, and hears the daemon, to the end."""
        said_at = time.monotonic()
        while not self._is_over():
            for descriptor, _ in self._epoll.poll(self._patience_s()):
                self._attend(descriptor)
            if time.monotonic() - said_at >= TICK_S:
                said_at, self._has_news = time.monotonic(), True
                self._tell("alive", StillAlive())
            if self._has_news:
                self._has_news = False
                self._sources.look()
            self._send()

    def _is_over(self) -> bool:
        now = time.monotonic()
        if not self._sources.are_gone:
            return self._leave_by is not None and now >= self._leave_by
        if self._expects_until is not None:
            return now >= self._expects_until
        return self._link is None or self._leave_by is not None

    def _patience_s(self) -> float | None:
        limit = self._leave_by or self._expects_until
        if limit is not None:
            return max(0.0, limit - time.monotonic())
        return None if self._link is None and self._sources.are_idle else TICK_S

    def _attend(self, descriptor: int) -> None:
        if descriptor in self._sources:
            self._sources.read(descriptor)
        elif descriptor == self._bell:
            os.eventfd_read(self._bell)
            self._has_news = True
        elif descriptor == self._listener.fileno():
            self._welcome()
        elif self._link is not None and descriptor == self._link.fileno():
            self._hear(self._link)

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _welcome(self) -> None:
        """A daemon has come; if there was one, it is gone, or hangs: there is only one for a state folder."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it has left already, or there are no descriptors left
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(SHORTAGE_S)
            return
        link = Link(connection)
        if not link.is_trusted or self._leave_by is not None:
            link.close()
            return
        self._part()
        self._link, self._expects_until = link, None
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._tell("hello", LoggerHello(__version__, os.getpid()))
        for descriptor, take in self._sources:
            self._tell(("pipe", take.id), take, descriptor)
        for path, text in self._sources.troubles.items():
            self._tell(("trouble", path), LogFailure(path, text))
        self._tell("ready", LoggerReady())

    def _part(self) -> None:
        if self._link is not None:
            self._epoll.unregister(self._link.fileno())
            self._link.close()
            self._link, self._awaits_room = None, False
        self._unsent.clear()

    def _hear(self, link: Link) -> None:
        try:
            while (received := link.receive()) is not None:
                self._obey(*received)
        except LinkLost:
            self._part()
        except LogProtocolError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - standard error is a file

    def _obey(self, message: LoggerMessage, descriptor: int | None) -> None:
        if isinstance(message, CapturePipe):
            self._sources.take(message, descriptor)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, ReopenFiles):
            self._sources.reopen()
        elif isinstance(message, ClearFile):
            self._sources.clear(message)
        elif isinstance(message, EndCapture) and self._leave_by is None:
            self._leave_by, self._has_news = time.monotonic() + LEAVE_S, True
            self._sources.end(message.drain)

    def _tell(self, subject: object, message: LoggerMessage, descriptor: int | None = None) -> None:
        """Has it sent to the daemon, if there is one."""
        if self._link is not None:
            self._unsent.put(subject, message, descriptor)

    def _tell_printed(self, take: CapturePipe, kind: str, data: bytes) -> None:
        """The same for what a program printed; while there is no daemon, there are no listeners."""
        if self._link is not None:
            self._unsent.put_printed(packets(take, kind, data))

    def _send(self) -> None:
        """Sends what the daemon has room for; it never waits for a daemon that is stopped."""
        if self._link is None:
            return
        try:
            self._unsent.send(self._link)
        except LinkLost:
            self._hear(self._link)  # its last orders, and then the end of the link
            return
        if self._awaits_room != bool(self._unsent):
            self._awaits_room = bool(self._unsent)
            self._epoll.modify(self._link.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))


def main() -> None:
    """Becomes the keeper of the state folder in the last argument; the process started for it exits once it listens.

    Exit status: 0 if all is well, 75 if there is a keeper already.
    """
    state_dir = Path(sys.argv[-1])
    lock = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(EXIT_BUSY)
    listener = listen(state_dir)
    if os.fork():  # nobody's child: every daemon, also the one that started it, knows it by its socket only
        os._exit(0)
    _settle(lock)
    Logger(listener).run()
    (state_dir / SOCKET).unlink(missing_ok=True)
    os._exit(0)  # not waiting for a thread that a disk still holds


def _settle(lock: int) -> None:
    """Makes itself known and independent of whoever started it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("stepkeeper-logs")
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when nobody needs it; before, programs would die of SIGPIPE
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(STACK_BYTES)
