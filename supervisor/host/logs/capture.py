"""Captures what programs print: makes their pipes and has a logger, a process of its own, write the log files.

This is the daemon's interface to its logger; logger.py says why that is a process, and how the two work together. A
thread of its own talks to the logger, so nobody else in the daemon waits for it.
"""

import asyncio
import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import structlog

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.logs import journal, syslog
from supervisor.host.logs.files.file import rotate_unopened, truncate_with_backups
from supervisor.host.logs.handover import CLOSE_TIMEOUT_S, SILENCE_LIMIT_S, Handover
from supervisor.host.logs.messages import BeginAttempt, CapturePipe, EndCapture, ReopenFiles, Rotation
from supervisor.host.logs.output_events import OutputSubscribers

CLEAR_TIMEOUT_S = 10.0  # for a disk

DAEMON_STREAMS = {
    Path(name): number for number in (1, 2) for name in (f"/dev/fd/{number}", f"/proc/self/fd/{number}")
} | {Path("/dev/stdout"): 1, Path("/dev/stderr"): 2}
"""Log files that are the daemon's own output, as in a container: programs get the descriptor itself."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tee:
    """Whose output it is, and who gets it besides the file.

    `syslog`, `journal`: the system's log daemons get each line. `events`: event listeners get each piece. `capture`:
    the size of Supervisor's capture mode (`capture_mode.py`) in bytes; 0: it is off. `prefix`: what the
    file has before each line.
    """

    program: str
    attempt: int
    channel: str
    syslog: bool = False
    journal: bool = False
    events: bool = False
    capture: int = 0
    prefix: str = ""

    @property
    def has_destination(self) -> bool:
        """Whether anybody besides the file gets it."""
        return self.syslog or self.journal or self.events or self.capture > 0


class LogCapture:
    """Call `start` before the first program, `close` or `detach` after the last.

    Connects to the logger of the state folder if there is one; starts one when the first pipe is made.
    `subscribers`: who gets output for event listeners, in the thread of this object. `silence_limit_s`: a logger that
    sends nothing for longer counts as stuck.
    """

    def __init__(
        self,
        state_dir: Path,
        subscribers: OutputSubscribers | None = None,
        silence_limit_s: float = SILENCE_LIMIT_S,
        syslog_at: Path = syslog.ADDRESS,
        journal_at: Path = journal.SOCKET,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._close_timeout_s = close_timeout_s
        self._syslog_at = syslog_at
        self._journal_at = journal_at
        self._handover = Handover(state_dir, silence_limit_s, close_timeout_s, subscribers or OutputSubscribers())
        self._disks = BlockingCalls()
        self._commands: deque[Callable[[], None]] = deque()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False  # no more commands are accepted
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Connects to the logger of an earlier daemon, if there is one, and starts the thread."""
        self._handover.connect_logger()
        self._thread.start()

    @property
    def logger_pid(self) -> int | None:
        """The logger's pid while connected."""
        return self._handover.logger_pid

    @property
    def open_pipe_count(self) -> int:
        """How many pipes programs still hold."""
        return self._handover.open_pipe_count

    def is_captured(self, path: Path) -> bool:
        """Whether more may come into a log file: somebody holds a pipe to it, or the logger has not read all of one."""
        return self._handover.is_captured(path.absolute())

    @property
    def failures(self) -> dict[Path, str]:
        """Log files that can't be written at present, and why."""
        return self._handover.failures

    def open_pipe(
        self,
        path: Path | None,
        maxbytes: int,
        backups: int,
        tee: Tee | None = None,
        uid: int = 0,
        compress: bool = False,
    ) -> int:
        """The writing end of a new pipe, for a program; the caller closes it once the program has it.

        Output goes to the file at `path` until every holder has closed the pipe, grandchildren too, and to those that
        `tee` names. Pipes of the same path share the file; the latest limits count. `uid`: of the program's user, whose
        file it may be. `compress`: whether backups are compressed. Returns the null device if `path`
        is None and nobody else gets the output, and the daemon's own output if `path` is that (/dev/stdout).
        Raises OSError if there are no descriptors left, or after `close`.
        """
        has_tee = tee is not None and tee.has_destination
        if path is None and not has_tee:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        if path is not None and path in DAEMON_STREAMS:
            return os.dup(DAEMON_STREAMS[path])
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        name = "" if path is None else str(path.absolute())
        request = CapturePipe(os.fstat(reading).st_ino, name, maxbytes, backups, uid=uid, compress=compress)
        if tee is not None:
            request = request._replace(
                syslog=str(self._syslog_at) if tee.syslog else "",
                journal=str(self._journal_at) if tee.journal else "",
                program=tee.program,
                channel=tee.channel,
                attempt=tee.attempt,
                events=tee.events,
                capture=tee.capture,
                prefix=tee.prefix,
            )
        if not self._submit(lambda: self._handover.add_pipe(reading, request)):
            os.close(reading)
            os.close(writing)
            raise OSError(errno.ESHUTDOWN, "Logs are closed")
        return writing

    def begin_attempt(self, program: str, attempt: int, channel: str, path: Path) -> None:
        """Has `subscribers` told where in the file at `path` the output of an attempt begins: behind all that came out
        of its program's pipes before. Call it when the attempt's own pipe is open and it can't have printed yet."""
        if path not in DAEMON_STREAMS:
            begins = BeginAttempt(program, attempt, channel, str(path.absolute()))
            self._submit(lambda: self._handover.begin_attempt(begins))

    def reopen(self) -> None:
        """Opens all files again by their names, after somebody has rotated them."""
        self._submit(lambda: self._handover.queue_message(ReopenFiles()))

    async def clear(self, path: Path) -> None:
        """Empties a log file and deletes its backups. Raises OSError, TimeoutError among them.

        Does nothing to the daemon's own output. No thread that others need waits for the disk.
        """
        await self._change_file(path, None)

    async def rotate(self, path: Path, rotation: Rotation) -> None:
        """Makes a log file its newest backup and begins a new one, under the conditions of `clear`."""
        await self._change_file(path, rotation)

    async def _change_file(self, path: Path, rotation: Rotation | None) -> None:
        if path in DAEMON_STREAMS:
            return
        done: Future[bool] = Future()
        if not self._submit(lambda: self._handover.clear_file(str(path.absolute()), done, rotation)):
            done.set_result(False)
        try:
            async with asyncio.timeout(CLEAR_TIMEOUT_S):
                if await asyncio.shield(asyncio.wrap_future(done)):
                    return
                if rotation is not None:
                    await self._disks.run(path, rotate_unopened, path, *rotation)
                else:
                    await self._disks.run(path, truncate_with_backups, path)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"its disk did not answer within {CLEAR_TIMEOUT_S:g} s") from None

    def close(self) -> None:
        """Has everything written that can still be read, and ends the logger; takes `close_timeout_s` at most."""
        self._leave(EndCapture(drain=True))

    def detach(self) -> None:
        """Closes everything here; the logger goes on for the next daemon while a pipe is open."""
        self._leave(None)

    def _leave(self, final_request: EndCapture | None) -> None:
        self._submit(lambda: self._handover.leave(final_request), last=True)
        self._thread.join(self._close_timeout_s + 1)
        if self._thread.is_alive():
            log.error("logger.stuck", effect="the last output of programs may be missing in their log files")

    def _submit(self, command: Callable[[], None], last: bool = False) -> bool:
        """Has the thread do something; False if it was told to end before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = last
            self._commands.append(command)
            os.eventfd_write(self._wakeup, 1)
            return True

    def _run(self) -> None:
        """The thread: waits for commands and for the logger."""
        while not self._handover.is_finished:
            link, wants_room, patience_s = self._handover.poll_interest()
            waiting = select.poll()
            waiting.register(self._wakeup, select.POLLIN)
            if link is not None:
                waiting.register(link, select.POLLIN | (select.POLLOUT if wants_room else 0))
            if any(descriptor == self._wakeup for descriptor, _ in waiting.poll(patience_s * 1000)):
                os.eventfd_read(self._wakeup)
                while self._commands:
                    self._commands.popleft()()
            self._handover.process_events()
        self._handover.close()
        os.close(self._wakeup)
