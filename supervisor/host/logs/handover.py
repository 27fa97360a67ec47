"""The daemon's side of the log keeper: finds or starts one, hands pipes over, and has another follow if it dies."""

import base64
import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import structlog

from supervisor import __version__
from supervisor.host.logs import start
from supervisor.host.logs.link import (
    LOCK,
    Link,
    LinkLost,
    connect,
)
from supervisor.host.logs.messages import (
    CaptureEnded,
    CapturePipe,
    CaptureRefused,
    ClearFile,
    EndCapture,
    FileCleared,
    LogFailure,
    LoggerHello,
    LoggerMessage,
    LoggerReady,
    LogProtocolError,
    OutputMissed,
    OutputPrinted,
    StillAlive,
)
from supervisor.host.logs.pipes import Pipes

CLOSE_S = 5.0  # how long the end may take; the keeper gives its disks a second less
SILENT_S = 20.0  # the keeper says every 5 s that it is alive
RETRY_S = 0.2  # between attempts to reach a keeper: one that is about to end needs a moment
CALM_S = 1.0  # a keeper that lived less long is not followed at once
BUSY_S = 5.0  # a keeper that holds its lock without listening for longer is not about to end
FOR_EVER_S = 3600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program printed, for the listeners of an event type (PROCESS_LOG_STDOUT)."""

    event: str
    program: str
    attempt: int
    data: bytes


@dataclass(slots=True)
class OutputSubscribers:
    """Who is told, in the thread of the handover, of what programs print, and how many events of it were dropped."""

    on_output: Callable[[ProgramOutput], None] = lambda _: None
    on_missed: Callable[[int], None] = lambda _: None


class Handover:
    """The pipes, and the keeper that reads them. Belongs to one thread, but for `troubles` and `keeper_pid`."""

    def __init__(self, state_dir: Path, silent_s: float, hearers: OutputSubscribers) -> None:
        self._state_dir = state_dir
        self._silent_s = silent_s
        self._hearers = hearers
        self._printed: list[str] = []  # the beginning of an event that goes on
        self._pipes = Pipes()
        self._file_troubles: dict[Path, str] = {}
        self._keeper_trouble: str | None = None
        self._link: Link | None = None
        self._keeper: LoggerHello | None = None
        self._is_ready = self._is_replacing = False
        self._started_at: float | None = None  # when we started this keeper; None if it was there before us
        self._try_at = self._heard_at = self._sought_at = time.monotonic()
        self._unsent: deque[tuple[LoggerMessage, int | None]] = deque()
        self._requests = itertools.count(1)
        self._clears: dict[int, tuple[str, Future[bool]]] = {}
        self._last_word: EndCapture | None = None
        self._leave_by: float | None = None
        self._has_left = False

    @property
    def logger_pid(self) -> int | None:
        """The keeper's pid while we are connected."""
        keeper = self._keeper
        return keeper.pid if keeper else None

    @property
    def open_pipe_count(self) -> int:
        """How many pipes somebody may still print into."""
        return len(self._pipes)

    @property
    def failures(self) -> dict[Path, str]:
        """Log files that can't be written at present, and why."""
        trouble = self._keeper_trouble
        if trouble is None:
            return dict(self._file_troubles)
        return dict.fromkeys(self._pipes.paths, trouble)

    def add(self, descriptor: int, take: CapturePipe) -> None:
        """Has the keeper read one more pipe."""
        self._pipes.add(descriptor, take)
        self._hand_over()

    def say(self, message: LoggerMessage) -> None:
        """Tells the keeper, if there is one."""
        if self._link is not None:
            self._unsent.append((message, None))

    def clear(self, path: str, done: Future[bool]) -> None:
        """Has the keeper empty a file; `done` gives False where there is no keeper that could have it open."""
        if self._link is None and not self._pipes:
            done.set_result(False)
            return
        request = next(self._requests)
        self._clears[request] = (path, done)
        self.say(ClearFile(request, path))

    def leave(self, last_word: EndCapture | None) -> None:
        """From now on: hand over what is left, say the last word, wait for the keeper's end if there was one."""
        self._last_word, self._leave_by = last_word, time.monotonic() + CLOSE_S

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do before leaving, or no time."""
        if self._leave_by is None:
            return False
        if time.monotonic() >= self._leave_by:
            return True
        if self._link is None:
            return self._has_left or not self._pipes
        return self._has_left and self._last_word is None and not self._unsent

    def close(self) -> None:
        """Closes everything."""
        if self._link is not None:
            self._link.close()
        self._link = self._keeper = None
        self._pipes.close()
        self._give_up_clears()

    def wishes(self) -> tuple[int | None, bool, float]:
        """What to wait for: the link, whether for room in it too, and how many seconds at most."""
        now = time.monotonic()
        until = now + FOR_EVER_S
        if self._link is not None:
            until = self._heard_at + self._silent_s if self._keeper_trouble is None else until
        elif self._pipes:
            until = self._try_at
        if self._leave_by is not None:
            until = min(until, self._leave_by)
        descriptor = self._link.fileno() if self._link is not None else None
        return descriptor, bool(self._unsent), max(0.0, until - now)

    def turn(self) -> None:
        """Does what can be done now; waits for nothing but the start of a keeper."""
        if self._link is None and self._pipes and time.monotonic() >= self._try_at:
            self.find()
        try:
            if self._link is not None:
                self._hear(self._link)
                self._say_last_word()
                self._send(self._link)
        except LinkLost:
            self._lost()

    def find(self) -> None:
        """Connects to the keeper; starts one if there is none and there is something to read."""
        self._try_at = time.monotonic() + RETRY_S
        started_at = None
        try:
            link = connect(self._state_dir)
            if link is None and self._pipes and start.start(self._state_dir):
                started_at, link = time.monotonic(), connect(self._state_dir)
        except (OSError, start.LoggerStartError) as error:
            self._try_at = time.monotonic() + CALM_S
            self._suffer(f"cannot capture output: {error}")
            return
        if link is not None:
            self._link, self._started_at, self._heard_at = link, started_at, time.monotonic()
        elif self._pipes and time.monotonic() - self._sought_at > BUSY_S:
            lock = self._state_dir / LOCK
            self._suffer(
                f"cannot reach the log keeper: one holds {lock} but does not listen; kill it: its pid is in there"
            )

    # --- what the keeper says -----------------------------------------------------------------------------------------

    def _hear(self, link: Link) -> None:
        try:
            while (received := link.receive()) is not None:
                self._heard_at = time.monotonic()
                self._heed(*received)
        except LogProtocolError as error:
            log.error("log_keeper.misspoke", error=str(error))
        if time.monotonic() - self._heard_at >= self._silent_s:
            lock = self._state_dir / LOCK
            self._suffer(f"the log keeper has not answered for {self._silent_s:g} s and output waits; its pid: {lock}")

    def _heed(self, message: LoggerMessage, descriptor: int | None) -> None:
        if isinstance(message, CapturePipe) and descriptor is not None:
            self._pipes.adopt(descriptor, message)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, LoggerHello):
            self._keeper = message
        elif isinstance(message, LoggerReady):
            self._begin()
        elif isinstance(message, CaptureEnded):
            self._pipes.forget(message.id)
        elif isinstance(message, CaptureRefused):
            self._refused(message)
        elif isinstance(message, FileCleared):
            self._cleared(message)
        elif isinstance(message, LogFailure):
            self._note(Path(message.path), message.text)
        elif isinstance(message, OutputPrinted):
            self._heard_printed(message)
        elif isinstance(message, OutputMissed):
            self._hearers.on_missed(message.events)
        elif isinstance(message, StillAlive):
            self._recover()

    def _heard_printed(self, message: OutputPrinted) -> None:
        self._printed.append(message.data)
        if message.goes_on:
            return
        pieces, self._printed = self._printed, []
        try:
            data = b"".join(base64.b64decode(each, validate=True) for each in pieces)
        except ValueError as error:
            raise LogProtocolError(f"cannot read what {message.program:.80} printed: {error}") from error
        self._hearers.on_output(ProgramOutput(message.event, message.program, message.attempt, data))

    def _begin(self) -> None:
        """The keeper has introduced itself. One of another version is asked to make room for its successor."""
        assert self._keeper is not None
        if self._started_at is None and self._keeper.version != __version__:
            log.info("log_keeper.replaced", pid=self._keeper.pid, version=self._keeper.version, by=__version__)
            self._is_replacing = True
            self.say(EndCapture(drain=False))
            return
        self._is_ready = True
        event = "log_keeper.found" if self._started_at is None else "log_keeper.started"
        log.info(event, pid=self._keeper.pid, pipes=len(self._pipes))
        self._recover()
        for request, (path, _) in self._clears.items():
            self.say(ClearFile(request, path))

    def _recover(self) -> None:
        """All is well with the keeper; what it has not, it gets."""
        if self._keeper_trouble is not None:
            log.info("log_keeper.recovered", pid=self.logger_pid)
            self._keeper_trouble = None
        self._hand_over()

    def _hand_over(self) -> None:
        for pipe in self._pipes.waiting() if self._is_ready else ():
            pipe.is_handed_over = True
            self._unsent.append((pipe.take, pipe.descriptor))

    def _refused(self, message: CaptureRefused) -> None:
        path = self._pipes.take_back(message.id)  # until the next sign of life
        if path is not None:
            self._note(path, f"cannot write {path}: {message.why}")
            log.error("log_keeper.refused", path=str(path), why=message.why, next="it is tried again")

    def _cleared(self, message: FileCleared) -> None:
        _, done = self._clears.pop(message.request, ("", None))
        if done is None:
            return
        if message.errno:
            done.set_exception(OSError(message.errno, message.why))
        else:
            done.set_result(True)

    def _note(self, path: Path, trouble: str) -> None:
        if trouble:
            self._file_troubles[path] = trouble
        else:
            self._file_troubles.pop(path, None)

    def _suffer(self, trouble: str) -> None:
        if self._keeper_trouble != trouble:
            self._keeper_trouble = trouble
            log.error("log_keeper.missing", error=trouble)

    # --- what it is told ----------------------------------------------------------------------------------------------

    def _send(self, link: Link) -> None:
        while self._unsent:
            message, descriptor = self._unsent[0]
            has_ended = isinstance(message, CapturePipe) and message.id not in self._pipes
            if not has_ended and not link.send(message, descriptor):
                return
            self._unsent.popleft()

    def _say_last_word(self) -> None:
        """Once, when all pipes are handed over."""
        if self._leave_by is not None and self._is_ready and not self._has_left:
            self._has_left = True
            if self._last_word is not None:
                self.say(self._last_word)

    def _lost(self) -> None:
        """The keeper is gone. What it had not read is still in the pipes; its successor gets them all."""
        pid = self.logger_pid
        assert self._link is not None
        self._link.close()
        self._link = self._keeper = None
        self._is_ready = False
        self._unsent.clear()
        self._printed.clear()
        self._file_troubles.clear()
        self._pipes.take_all_back()
        now = time.monotonic()
        self._sought_at = self._try_at = now
        if self._started_at is not None and now - self._started_at < CALM_S:
            self._try_at = now + CALM_S
        if self._leave_by is None and not self._is_replacing and (pid is not None or self._started_at is not None):
            said = start.last_word(self._state_dir)
            log.warning("log_keeper.died", pid=pid, said=said, pipes=len(self._pipes), next="another takes over")
        self._is_replacing = False
        if pid is not None:
            start.bury(pid)
        if not self._pipes:
            self._give_up_clears()

    def _give_up_clears(self) -> None:
        for _, done in self._clears.values():
            done.set_result(False)
        self._clears.clear()
