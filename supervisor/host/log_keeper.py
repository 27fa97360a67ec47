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
import stat
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from supervisor import __version__
from supervisor.host.log_file import LogFile
from supervisor.host.log_link import LOCK, SOCKET, Link, LinkLost, listen
from supervisor.host.log_messages import (
    Alive,
    Clear,
    Cleared,
    End,
    Ended,
    Hello,
    LogProtocolError,
    Message,
    Ready,
    Refused,
    Reopen,
    Take,
    Trouble,
)
from supervisor.host.log_writer import Writer

EXIT_BUSY = 75  # EX_TEMPFAIL: another keeper holds the lock

READ_BYTES = 64 * 1024  # a pipe's default capacity
LAST_READS = 16  # per pipe at the end: a grandchild that prints for ever must not hold it
TICK_S = 5.0  # how often it says that it is alive, and looks for disks that hang
LEAVE_S = 4.0  # how long disks get at the end; the daemon waits a second longer
FIRST_S = 10.0  # how long it waits for the daemon that started it
STACK_BYTES = 256 * 1024  # a writer's calls are shallow


class Source(NamedTuple):
    """A pipe that is read, and where what comes out of it goes."""

    take: Take
    writer: Writer


class Keeper:
    """Runs until no daemon is connected and no pipe is open, or until it is told to end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._link: Link | None = None
        self._sources: dict[int, Source] = {}  # by descriptor
        self._paused: set[int] = set()
        self._writers: dict[str, Writer] = {}
        self._troubles: dict[str, str] = {}
        self._unsent: dict[object, tuple[Message, int | None]] = {}  # by subject: what is newer replaces what is older
        self._answers: list[Cleared] = []  # from the writers' threads
        self._leave_by: float | None = None
        self._expects_until: float | None = time.monotonic() + FIRST_S  # the first daemon; None once it has come
        self._has_news = False  # writers have something to be looked at
        self._awaits_room = False  # on the link
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
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
                self._tell(Alive, Alive())
            if self._has_news:
                self._has_news = False
                self._look_at_writers()
            self._send()

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._sources or self._writers:
            return self._leave_by is not None and now >= self._leave_by
        if self._expects_until is not None:
            return now >= self._expects_until
        return self._link is None or self._leave_by is not None

    def _patience_s(self) -> float | None:
        limit = self._leave_by or self._expects_until
        if limit is not None:
            return max(0.0, limit - time.monotonic())
        if self._link is None and all(each.is_idle for each in self._writers.values()):
            return None
        return TICK_S

    def _attend(self, descriptor: int) -> None:
        if descriptor in self._sources:
            self._read(descriptor)
        elif descriptor == self._bell:
            os.eventfd_read(self._bell)
            self._has_news = True
        elif descriptor == self._listener.fileno():
            self._welcome()
        elif self._link is not None and descriptor == self._link.fileno():
            self._hear(self._link)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)

    # --- pipes --------------------------------------------------------------------------------------------------------

    def _take(self, take: Take, descriptor: int | None) -> None:
        why = _refusal(take, descriptor)
        if why or descriptor is None:
            if descriptor is not None:
                os.close(descriptor)
            self._tell(("take", take.id), Refused(take.id, why))
            return
        if any(each.take.id == take.id for each in self._sources.values()):
            os.close(descriptor)
            return
        os.set_blocking(descriptor, False)
        writer = self._writers.get(take.path)
        if writer is None or not writer.hold(take.maxbytes, take.backups):
            writer = self._writers[take.path] = self._writer(take.path)
            writer.hold(take.maxbytes, take.backups)
        self._sources[descriptor] = Source(take, writer)
        self._epoll.register(descriptor, select.EPOLLIN)

    def _writer(self, path: str) -> Writer:
        return Writer(LogFile(Path(path), 0, 0), self._ring)

    def _read(self, descriptor: int) -> bool:
        """Moves one piece; False if there was none."""
        source = self._sources[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._let_go(descriptor)
            self._tell(("take", source.take.id), Ended(source.take.id))
            return False
        source.writer.put(data)
        if source.writer.is_full and self._leave_by is None:
            source.writer.watched = True
            if source.writer.is_full:  # still, so that it will see that it is watched when it has written
                self._pause(source.writer)
        return True

    def _let_go(self, descriptor: int) -> None:
        source = self._sources.pop(descriptor)
        if descriptor not in self._paused:
            self._epoll.unregister(descriptor)
        self._paused.discard(descriptor)
        self._unsent.pop(("take", source.take.id), None)
        os.close(descriptor)
        if all(each.writer is not source.writer for each in self._sources.values()):
            source.writer.release()

    def _pause(self, writer: Writer) -> None:
        for descriptor, source in self._sources.items():
            if source.writer is writer and descriptor not in self._paused:
                self._epoll.unregister(descriptor)
                self._paused.add(descriptor)

    def _look_at_writers(self) -> None:
        """Goes on reading where there is room again, tells troubles, and forgets writers that have ended."""
        for path, writer in list(self._writers.items()):
            trouble = "" if writer.has_ended else writer.trouble
            if trouble != self._troubles.get(path, ""):
                self._troubles[path] = trouble
                self._tell(("trouble", path), Trouble(path, trouble))
            if writer.has_ended:
                del self._writers[path]
                self._troubles.pop(path, None)
            elif writer.watched:
                self._watch(writer, bool(trouble))
        while self._answers:
            answer = self._answers.pop()
            self._tell(("clear", answer.request), answer)

    def _watch(self, writer: Writer, is_troubled: bool) -> None:
        full = writer.is_full
        if not full:
            for descriptor in [each for each in self._paused if self._sources[each].writer is writer]:
                self._paused.discard(descriptor)
                self._epoll.register(descriptor, select.EPOLLIN)
        writer.watched = full or is_troubled

    # --- the daemon ---------------------------------------------------------------------------------------------------

    def _welcome(self) -> None:
        """A daemon has come; if there was one, it is gone, or hangs: there is only one for a state folder."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has left already; or there are no descriptors: it comes again
            return
        link = Link(connection)
        if not link.is_trusted or self._leave_by is not None:
            link.close()
            return
        self._part()
        self._link, self._expects_until = link, None
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._tell(Hello, Hello(__version__, os.getpid()))
        for descriptor, source in self._sources.items():
            self._tell(("take", source.take.id), source.take, descriptor)
        for path, text in self._troubles.items():
            self._tell(("trouble", path), Trouble(path, text))
        self._tell(Ready, Ready())

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

    def _obey(self, message: Message, descriptor: int | None) -> None:
        if isinstance(message, Take):
            self._take(message, descriptor)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, Reopen):
            for writer in self._writers.values():
                writer.act(LogFile.reopen)
        elif isinstance(message, Clear):
            self._clear(message)
        elif isinstance(message, End) and self._leave_by is None:
            self._end(message.drain)

    def _clear(self, order: Clear) -> None:
        def act(file: LogFile) -> None:
            number, why = 0, ""
            try:
                file.clear()
            except OSError as error:
                number, why = error.errno or errno.EIO, error.strerror or str(error)
            self._answers.append(Cleared(order.request, number, why))
            self._ring()

        writer = self._writers.get(order.path)
        if writer is None or not writer.act(act):
            writer = self._writers[order.path] = self._writer(order.path)
            writer.act(act)
            writer.release()

    def _end(self, drain: bool) -> None:
        self._leave_by, self._has_news = time.monotonic() + LEAVE_S, True
        for descriptor in list(self._sources):
            for _ in range(LAST_READS if drain else 0):
                if not self._read(descriptor):
                    break
            if descriptor in self._sources:
                self._let_go(descriptor)

    def _tell(self, subject: object, message: Message, descriptor: int | None = None) -> None:
        if self._link is not None:
            self._unsent.pop(subject, None)
            self._unsent[subject] = (message, descriptor)

    def _send(self) -> None:
        """Sends what the daemon has room for; it never waits for a daemon that is stopped."""
        if self._link is None:
            return
        try:
            for subject, (message, descriptor) in list(self._unsent.items()):
                if not self._link.send(message, descriptor):
                    break
                del self._unsent[subject]
        except LinkLost:
            self._hear(self._link)  # its last orders, and then the end of the link
            return
        if self._awaits_room != bool(self._unsent):
            self._awaits_room = bool(self._unsent)
            self._epoll.modify(self._link.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))


def _refusal(take: Take, descriptor: int | None) -> str:
    """Why a pipe can't be taken; empty if it can."""
    if descriptor is None:
        return "no descriptor arrived; the log keeper may have reached its limit of open files"
    status = os.fstat(descriptor)
    if not stat.S_ISFIFO(status.st_mode) or status.st_ino != take.id:
        return "the descriptor is not that pipe's"
    return ""


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
    Keeper(listener).run()
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
