"""Takes what programs print and has it put into their log files, by a process that outlives this one.

The log keeper (`log_keeper`) reads the pipes and writes the files; what happens to the daemon, and what happens to a
disk, then never reaches a program. This side makes the pipes, keeps a duplicate of each reading end, so that a keeper
that dies takes no program with it, and hands them over. It has a thread of its own: nobody else waits for the keeper.
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
from supervisor.host.logs.file import truncate_with_backups
from supervisor.host.logs.handover import (
    CLOSE_S,
    SILENT_S,
    Handover,
    OutputSubscribers,
)
from supervisor.host.logs.messages import CapturePipe, EndCapture, ReopenFiles

ANSWER_S = 10.0  # how long `clear` waits for a disk

DAEMON_STREAMS = {
    Path(each): number for number in (1, 2) for each in (f"/dev/fd/{number}", f"/proc/self/fd/{number}")
} | {
    Path("/dev/stdout"): 1,
    Path("/dev/stderr"): 2,
}
"""Log files that are descriptors of the daemon, as in a container: programs get them as they are."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tee:
    """Whose output it is, and who gets it besides the file: the system's log daemons each line, event listeners each
    piece (`events`), and the last `capture` bytes of what stands between Supervisor's marks; 0: marks mean nothing.
    """

    program: str
    attempt: int
    channel: str
    syslog: bool = False
    journal: bool = False
    events: bool = False
    capture: int = 0

    @property
    def has_destination(self) -> bool:
        """Whether anybody gets it."""
        return self.syslog or self.journal or self.events or self.capture > 0


class LogCapture:
    """Pipes in, files out. `start` it before the first program, `close` or `detach` it after the last.

    Finds the keeper of the state folder if there is one, and what it reads; starts one when the first pipe is made.
    `silent_s`: after how long without a sign of life it is in trouble.
    """

    def __init__(
        self,
        state_dir: Path,
        silent_s: float = SILENT_S,
        syslog_at: Path = syslog.ADDRESS,
        journal_at: Path = journal.SOCKET,
    ) -> None:
        self._syslog_at = syslog_at
        self._journal_at = journal_at
        self.subscribers = OutputSubscribers()
        """Who hears what programs print, if they are to be heard; called in a thread of this."""
        self._handover = Handover(state_dir, silent_s, self.subscribers)
        self._disks = BlockingCalls()
        self._orders: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._closed = False  # no more orders are taken
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Connects to the keeper that an earlier daemon left, if there is one, and starts the thread."""
        self._handover.find()
        self._thread.start()

    @property
    def logger_pid(self) -> int | None:
        """The pid of the keeper while we are connected to it."""
        return self._handover.logger_pid

    @property
    def open_pipe_count(self) -> int:
        """How many pipes are read, because programs still hold them."""
        return self._handover.open_pipe_count

    @property
    def failures(self) -> dict[Path, str]:
        """Log files that can't be written at present, and why."""
        return self._handover.failures

    def open_pipe(self, path: Path | None, maxbytes: int, backups: int, tee: Tee | None = None) -> int:
        """The writing end of a new pipe, for a program; the caller closes it once the program has it.

        What comes through goes to the file at `path`, shared with all other captures of that path (the latest limits
        hold), until every holder has closed the pipe, grandchildren too; and to those whom `tee` names. It is not a
        pipe but the null device if `path` is None and nobody gets it, and the daemon's own output if that is what
        `path` means (/dev/stdout).
        Raises OSError if there are no descriptors left, or after `close`.
        """
        is_told = tee is not None and tee.has_destination
        if path is None and not is_told:
            return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        if path is not None and path in DAEMON_STREAMS:
            return os.dup(DAEMON_STREAMS[path])
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        take = CapturePipe(os.fstat(reading).st_ino, "" if path is None else str(path.absolute()), maxbytes, backups)
        if tee is not None and is_told:
            take = take._replace(
                syslog=str(self._syslog_at) if tee.syslog else "",
                journal=str(self._journal_at) if tee.journal else "",
                program=tee.program,
                channel=tee.channel,
                attempt=tee.attempt,
                events=tee.events,
                capture=tee.capture,
            )
        if not self._order(lambda: self._handover.add(reading, take)):
            os.close(reading)
            os.close(writing)
            raise OSError(errno.ESHUTDOWN, "Logs are closed")
        return writing

    def reopen(self) -> None:
        """Opens all files again by their names, for whoever has rotated them."""
        self._order(lambda: self._handover.say(ReopenFiles()))

    async def clear(self, path: Path) -> None:
        """Empties a log file and deletes its backups; waits for it. Raises OSError, TimeoutError among them.

        Of the daemon's descriptors nothing is deleted. No thread that others need waits for the disk.
        """
        if path in DAEMON_STREAMS:
            return
        done: Future[bool] = Future()
        if not self._order(lambda: self._handover.clear(str(path.absolute()), done)):
            done.set_result(False)
        try:
            async with asyncio.timeout(ANSWER_S):
                if not await asyncio.shield(asyncio.wrap_future(done)):
                    await self._disks.run(path, truncate_with_backups, path)
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"its disk did not answer within {ANSWER_S:g} s") from None

    def close(self) -> None:
        """Writes what can still be read, closes everything, ends keeper and thread; waits about CLOSE_S at most."""
        self._leave(EndCapture(drain=True))

    def detach(self) -> None:
        """Closes everything here; the keeper goes on for the next daemon while there is something to read."""
        self._leave(None)

    def _leave(self, last_word: EndCapture | None) -> None:
        self._order(lambda: self._handover.leave(last_word), last=True)
        self._thread.join(CLOSE_S + 1)
        if self._thread.is_alive():
            log.error("log_keeper.stuck", effect="the last words of programs may be missing in their log files")

    def _order(self, order: Callable[[], None], last: bool = False) -> bool:
        """Has the thread do something; False if it was told to end before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = last
            self._orders.append(order)
            os.eventfd_write(self._bell, 1)
            return True

    def _run(self) -> None:
        """The thread: waits for orders and for the keeper."""
        while not self._handover.is_over:
            link, wants_room, patience_s = self._handover.wishes()
            waiting = select.poll()
            waiting.register(self._bell, select.POLLIN)
            if link is not None:
                waiting.register(link, select.POLLIN | (select.POLLOUT if wants_room else 0))
            if any(descriptor == self._bell for descriptor, _ in waiting.poll(patience_s * 1000)):
                os.eventfd_read(self._bell)
                while self._orders:
                    self._orders.popleft()()
            self._handover.turn()
        self._handover.close()
        os.close(self._bell)
