"""The logger: a small process that reads what programs print and writes it to their log files.

Why a process of its own. A program's standard output is a pipe, and a program that writes to a pipe without a reader
gets SIGPIPE. If the daemon read the pipes, its death, its upgrade or a hanging disk would stop or kill the programs. So
another process reads them, as under s6 (s6-log, https://skarnet.org/software/s6/s6-log.html) and runit (svlogd). There
is one for all programs of a state folder; it needs about 11 MB.

How a pipe gets here. The daemon makes the pipe, gives the writing end to the program, and sends the reading end over a
unix socket (SCM_RIGHTS, `link.py`) with a `CapturePipe` message. Both processes then have the reading end, and only the
logger reads. The daemon keeps its duplicate so that the pipe survives the logger; the logger has it so that the pipe
survives the daemon.

Who dies:

- The daemon: the logger reads and writes on. The next daemon connects to the socket that it finds in the state folder,
  and gets `LoggerHello`, a `CapturePipe` with a duplicate of each pipe, and `LoggerReady`.
- The logger: the daemon starts another one (`start.py`) and hands over all pipes again. What was in the pipes is not
  lost; what the logger had read and not yet written is.
- Both at the same time: nobody holds the reading ends any more, and programs that print get SIGPIPE.
- Nobody, but stepkeeper is upgraded: the new daemon asks a logger of another version to exit (`EndCapture`) and hands
  its pipes to a new one.

The logger exits when no daemon is connected and no pipe is open, or when a daemon that shuts down tells it to. It
ignores SIGTERM, SIGINT and SIGHUP. A lock in the state folder keeps it the only one.

Threads. The main thread reads all pipes and the socket, and touches no disk (`inputs.py`). Each file has a thread while
there is something to write (`files/file_writer.py`), each log daemon has one (`system_log.py`).

Only the standard library, and nothing that is imported later: an upgrade may replace the files of a running logger.
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
from supervisor.host.logs.inputs import LogInputs
from supervisor.host.logs.link import LOCK, SOCKET, Link, LinkLost, Outbox, listen
from supervisor.host.logs.messages import (
    BeginAttempt,
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
from supervisor.host.logs.output_events import output_messages

EXIT_BUSY = 75  # EX_TEMPFAIL: another logger holds the lock

CHECK_EVERY_S = 5.0  # between two signs of life, and two checks for disks that hang
LEAVE_TIMEOUT_S = 4.0  # for disks, at the end; the daemon waits a second longer
FIRST_DAEMON_TIMEOUT_S = 30.0  # for the daemon that started it to connect
DESCRIPTOR_PAUSE_S = 0.1  # waiting for a free descriptor must not be a busy loop
STACK_BYTES = 256 * 1024  # the writers' calls are shallow


class Logger:
    """The main thread: runs until no daemon is connected and no pipe is open, or until it is told to exit."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._link: Link | None = None
        self._outbox = Outbox()
        self._waits_for_room = False  # on the link, to send more
        self._needs_check = False  # a writer or a log daemon has news
        self._leave_by: float | None = None
        self._first_daemon_by: float | None = time.monotonic() + FIRST_DAEMON_TIMEOUT_S  # None once it has connected
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._inputs = LogInputs(self._epoll, self._wake, self._queue_message, self._queue_output)
        for each in (listener.fileno(), self._wakeup):
            self._epoll.register(each, select.EPOLLIN)

    def run(self) -> None:
        """Reads pipes and the daemon's messages until it is finished."""
        alive_sent_at = time.monotonic()
        while not self._is_finished():
            ready = [descriptor for descriptor, _ in self._epoll.poll(self._poll_timeout_s())]
            for descriptor in sorted(ready, key=lambda each: not self._is_link(each)):
                self._on_readable(descriptor)
            if time.monotonic() - alive_sent_at >= CHECK_EVERY_S:
                alive_sent_at, self._needs_check = time.monotonic(), True
                self._queue_message("alive", StillAlive())
            if self._needs_check:
                self._needs_check = False
                self._inputs.check()
            self._send_queued()

    def _is_link(self, descriptor: int) -> bool:
        """Whether it is the daemon's connection. Its messages come first: that a standby is an attempt from now on is
        to be noted before what it prints as one."""
        return self._link is not None and descriptor == self._link.fileno()

    def _is_finished(self) -> bool:
        now = time.monotonic()
        if not self._inputs.are_finished:
            return self._leave_by is not None and now >= self._leave_by
        if self._first_daemon_by is not None:
            return now >= self._first_daemon_by
        return self._link is None or self._leave_by is not None

    def _poll_timeout_s(self) -> float | None:
        limit = self._leave_by or self._first_daemon_by
        if limit is not None:
            return max(0.0, limit - time.monotonic())
        return None if self._link is None and self._inputs.are_idle else CHECK_EVERY_S

    def _on_readable(self, descriptor: int) -> None:
        if descriptor in self._inputs:
            self._inputs.read_piece(descriptor)
        elif descriptor == self._wakeup:
            os.eventfd_read(self._wakeup)
            self._needs_check = True
        elif descriptor == self._listener.fileno():
            self._accept_daemon()
        elif self._link is not None and self._is_link(descriptor):
            self._receive_messages(self._link)

    def _wake(self) -> None:
        os.eventfd_write(self._wakeup, 1)

    def _accept_daemon(self) -> None:
        """A daemon connects. An earlier one is gone or hangs, as a state folder has only one."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it has disconnected already, or there are no descriptors left
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(DESCRIPTOR_PAUSE_S)
            return
        link = Link(connection)
        if not link.is_trusted or self._leave_by is not None:
            link.close()
            return
        self._close_link()
        self._link, self._first_daemon_by = link, None
        self._epoll.register(link.fileno(), select.EPOLLIN)
        self._queue_message("hello", LoggerHello(__version__, os.getpid()))
        for descriptor, pipe in self._inputs:
            self._queue_message(("pipe", pipe.id), pipe, descriptor)
        for path, text in self._inputs.failures.items():
            self._queue_message(("failure", path), LogFailure(path, text))
        self._queue_message("ready", LoggerReady())

    def _close_link(self) -> None:
        if self._link is not None:
            self._epoll.unregister(self._link.fileno())
            self._link.close()
            self._link, self._waits_for_room = None, False
        self._outbox.clear()

    def _receive_messages(self, link: Link) -> None:
        try:
            while (received := link.receive()) is not None:
                self._on_message(*received)
        except LinkLost:
            self._close_link()
        except LogProtocolError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - standard error is a file

    def _on_message(self, message: LoggerMessage, descriptor: int | None) -> None:
        if isinstance(message, CapturePipe):
            self._inputs.add_pipe(message, descriptor)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, ReopenFiles):
            self._inputs.reopen_files()
        elif isinstance(message, ClearFile):
            self._inputs.clear_file(message)
        elif isinstance(message, BeginAttempt):
            self._inputs.begin_attempt(message)
        elif isinstance(message, EndCapture) and self._leave_by is None:
            self._leave_by, self._needs_check = time.monotonic() + LEAVE_TIMEOUT_S, True
            self._inputs.close_all(message.drain)

    def _queue_message(self, subject: object, message: LoggerMessage, descriptor: int | None = None) -> None:
        """Queues a message for the daemon, if one is connected."""
        if self._link is not None:
            self._outbox.put(subject, message, descriptor)

    def _queue_output(self, pipe: CapturePipe, kind: str, data: bytes) -> None:
        """Queues output for event listeners; without a daemon there are none."""
        if self._link is not None:
            self._outbox.put_output(output_messages(pipe, kind, data))

    def _send_queued(self) -> None:
        """Sends what the daemon has room for; never waits for a daemon that is stopped."""
        if self._link is None:
            return
        try:
            self._outbox.send_to(self._link)
        except LinkLost:
            self._receive_messages(self._link)  # its last messages, and then the end of the link
            return
        if self._waits_for_room != bool(self._outbox):
            self._waits_for_room = bool(self._outbox)
            self._epoll.modify(self._link.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0))


def main() -> None:
    """Runs the logger of the state folder in the last argument, in a fork; the original process exits once it listens.

    Exit status: 0 on success, 75 if there is a logger already.
    """
    state_dir = Path(sys.argv[-1])
    lock = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(EXIT_BUSY)
    listener = listen(state_dir)
    if os.fork():  # becomes nobody's child: every daemon, also the one that started it, finds it by its socket
        os._exit(0)
    _become_independent(lock)
    Logger(listener).run()
    (state_dir / SOCKET).unlink(missing_ok=True)
    os._exit(0)  # does not wait for a thread that a disk still holds


def _become_independent(lock: int) -> None:
    """Writes the pid into the lock, takes its name, and becomes independent of the daemon that started it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("stepkeeper-logs")
    os.chdir("/")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # programs would die of SIGPIPE
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(STACK_BYTES)
