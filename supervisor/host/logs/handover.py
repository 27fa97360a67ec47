"""The daemon's connection to its logger: finds or starts one, hands pipes over, and replaces it if it dies.

logger.py says how the two work together.
"""

import os
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

import structlog

from supervisor import __version__
from supervisor.host.logs import start
from supervisor.host.logs.link import LOCK, Link, LinkLost, connect
from supervisor.host.logs.messages import (
    AttemptBegan,
    BeginAttempt,
    CaptureEnded,
    CapturePipe,
    CaptureRefused,
    EndCapture,
    FileCleared,
    LogFailure,
    LoggerHello,
    LoggerMessage,
    LoggerReady,
    LogProtocolError,
    OutputMissed,
    OutputPrinted,
    Rotation,
    StillAlive,
)
from supervisor.host.logs.output_events import OutputSubscribers
from supervisor.host.logs.pipes import CapturedPipes
from supervisor.host.logs.requests import UnansweredRequests

CLOSE_TIMEOUT_S = 5.0  # for leaving; the logger gives its disks a second less
SILENCE_LIMIT_S = 20.0  # without any message; the logger sends `StillAlive` every 5 s
RETRY_S = 0.2  # between attempts to connect: a logger that is about to exit needs a moment
RESTART_PAUSE_S = 1.0  # a logger that lived less long is not replaced at once
LOCK_HELD_LIMIT_S = 5.0  # a logger that holds its lock for longer without listening is not about to exit
POLL_S = 3600.0  # when there is nothing to wait for

log = structlog.get_logger()


class Handover:
    """The pipes, and the logger that reads them. Belongs to one thread, except `failures` and `logger_pid`."""

    def __init__(
        self, state_dir: Path, silence_limit_s: float, close_timeout_s: float, subscribers: OutputSubscribers
    ) -> None:
        self._state_dir = state_dir
        self._silence_limit_s = silence_limit_s
        self._close_timeout_s = close_timeout_s
        self._subscribers = subscribers
        self._pipes = CapturedPipes()
        self._file_failures: dict[Path, str] = {}
        self._logger_failure: str | None = None
        self._link: Link | None = None
        self._logger: LoggerHello | None = None
        self._is_ready = self._is_replacing = False
        self._started_at: float | None = None  # None if the logger was there before this daemon
        self._connect_at = self._last_received_at = self._missing_since = time.monotonic()
        self._unsent: deque[tuple[LoggerMessage, int | None]] = deque()
        self._requests = UnansweredRequests()
        self._final_request: EndCapture | None = None
        self._leave_by: float | None = None
        self._final_request_queued = False

    @property
    def logger_pid(self) -> int | None:
        """The logger's pid while connected."""
        logger = self._logger
        return logger.pid if logger else None

    @property
    def open_pipe_count(self) -> int:
        """How many pipes have a writer left."""
        return len(self._pipes)

    def is_captured(self, path: Path) -> bool:
        """Whether a pipe that leads to the file has a writer left, or may have something to read."""
        return path in self._pipes.paths

    @property
    def failures(self) -> dict[Path, str]:
        """Log files that can't be written at present, and why."""
        failure = self._logger_failure
        if failure is None:
            return dict(self._file_failures)
        return dict.fromkeys(self._pipes.paths, failure)

    def add_pipe(self, descriptor: int, request: CapturePipe) -> None:
        """Has the logger read one more pipe."""
        self._pipes.add(descriptor, request)
        self._hand_over_pipes()

    def queue_message(self, message: LoggerMessage) -> None:
        """Queues a message for the logger, if connected."""
        if self._link is not None:
            self._unsent.append((message, None))

    def clear_file(self, path: str, done: Future[bool], rotation: Rotation | None = None) -> None:
        """Has the logger empty or rotate a file; `done` becomes False where no logger could have it open."""
        if self._link is None and not self._pipes:
            done.set_result(False)
        else:
            self.queue_message(self._requests.add_clear(path, done, rotation))

    def begin_attempt(self, begins: BeginAttempt) -> None:
        """Has the logger say where the output of an attempt begins, whose pipe it has; the latest attempt counts."""
        self._requests.add_beginning(begins)
        if self._is_ready:
            self.queue_message(begins)

    def leave(self, final_request: EndCapture | None) -> None:
        """Begins to leave: hands over what is left, sends the final request, and waits until the logger has exited."""
        self._final_request, self._leave_by = final_request, time.monotonic() + self._close_timeout_s

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do before leaving, or no time left."""
        if self._leave_by is None:
            return False
        if time.monotonic() >= self._leave_by:
            return True
        if self._link is None:
            return self._final_request_queued or not self._pipes
        return self._final_request_queued and self._final_request is None and not self._unsent

    def close(self) -> None:
        """Closes everything."""
        if self._link is not None:
            self._link.close()
        self._link = self._logger = None
        self._pipes.close_all()
        self._requests.abandon_clears()

    def poll_interest(self) -> tuple[int | None, bool, float]:
        """The descriptor to wait for, whether to wait for room in it too, and for how many seconds at most."""
        now = time.monotonic()
        until = now + POLL_S
        if self._link is not None:
            until = self._last_received_at + self._silence_limit_s if self._logger_failure is None else until
        elif self._pipes:
            until = self._connect_at
        if self._leave_by is not None:
            until = min(until, self._leave_by)
        descriptor = self._link.fileno() if self._link is not None else None
        return descriptor, bool(self._unsent), max(0.0, until - now)

    def process_events(self) -> None:
        """Does what can be done now; waits for nothing but the start of a logger."""
        if self._link is None and self._pipes and time.monotonic() >= self._connect_at:
            self.connect_logger()
        try:
            if self._link is not None:
                self._receive_messages(self._link)
                self._queue_final_request()
                self._send_queued(self._link)
        except LinkLost:
            self._on_link_lost()

    def connect_logger(self) -> None:
        """Connects to the logger; starts one if there is none and there is something to read."""
        self._connect_at = time.monotonic() + RETRY_S
        started_at = None
        try:
            link = connect(self._state_dir)
            if link is None and self._pipes and start.start_logger(self._state_dir):
                started_at, link = time.monotonic(), connect(self._state_dir)
        except (OSError, start.LoggerStartError) as error:
            self._connect_at = time.monotonic() + RESTART_PAUSE_S
            self._set_logger_failure(f"cannot capture output: {error}")
            return
        if link is not None:
            self._link, self._started_at, self._last_received_at = link, started_at, time.monotonic()
        elif self._pipes and time.monotonic() - self._missing_since > LOCK_HELD_LIMIT_S:
            lock = self._state_dir / LOCK
            self._set_logger_failure(
                f"cannot reach the logger: a process holds {lock} but does not listen; kill it, its pid is in that file"
            )

    # --- from the logger ----------------------------------------------------------------------------------------------

    def _receive_messages(self, link: Link) -> None:
        try:
            while (received := link.receive()) is not None:
                self._last_received_at = time.monotonic()
                self._on_message(*received)
        except LogProtocolError as error:
            log.error("logger.message_refused", error=str(error))
        if time.monotonic() - self._last_received_at >= self._silence_limit_s:
            silence = f"the logger has sent nothing for {self._silence_limit_s:g} s"
            self._set_logger_failure(
                f"{silence}, so programs that print may wait; its pid is in {self._state_dir / LOCK}"
            )

    def _on_message(self, message: LoggerMessage, descriptor: int | None) -> None:
        if isinstance(message, CapturePipe) and descriptor is not None:
            self._pipes.add_handed_over(descriptor, message)
            return
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(message, LoggerHello):
            self._logger = message
        elif isinstance(message, LoggerReady):
            self._on_logger_ready()
        elif isinstance(message, CaptureEnded):
            self._pipes.close_pipe(message.id)
        elif isinstance(message, CaptureRefused):
            self._on_pipe_refused(message)
        elif isinstance(message, FileCleared):
            self._requests.on_file_cleared(message)
        elif isinstance(message, AttemptBegan):
            self._requests.on_attempt_began(message)
            self._subscribers.on_attempt_began(message)
        elif isinstance(message, LogFailure):
            self._set_file_failure(Path(message.path), message.text)
        elif isinstance(message, OutputPrinted):
            self._subscribers.on_printed(message)
        elif isinstance(message, OutputMissed):
            self._subscribers.on_missed(message.events, message.program)
        elif isinstance(message, StillAlive):
            self._on_logger_alive()

    def _on_logger_ready(self) -> None:
        """The logger has sent all its pipes. One of another version is asked to exit; a new one then gets the pipes."""
        assert self._logger is not None
        if self._started_at is None and self._logger.version != __version__:
            log.info("logger.replaced", pid=self._logger.pid, version=self._logger.version, by=__version__)
            self._is_replacing = True
            self.queue_message(EndCapture(drain=False))
            return
        self._is_ready = True
        event = "logger.found" if self._started_at is None else "logger.started"
        log.info(event, pid=self._logger.pid, pipes=len(self._pipes))
        self._on_logger_alive()
        for message in self._requests:
            self.queue_message(message)

    def _on_logger_alive(self) -> None:
        """The logger works: it gets the pipes that it does not have yet."""
        if self._logger_failure is not None:
            log.info("logger.recovered", pid=self.logger_pid)
            self._logger_failure = None
        self._hand_over_pipes()

    def _hand_over_pipes(self) -> None:
        for pipe in self._pipes.not_handed_over() if self._is_ready else ():
            pipe.is_handed_over = True
            self._unsent.append((pipe.request, pipe.descriptor))

    def _on_pipe_refused(self, message: CaptureRefused) -> None:
        path = self._pipes.mark_not_handed_over(message.id)  # tried again at the next sign of life
        if path is not None:
            self._set_file_failure(path, f"cannot write {path}: {message.why}")
            log.error("logger.refused", path=str(path), why=message.why, next="it is tried again")

    def _set_file_failure(self, path: Path, failure: str) -> None:
        if failure:
            self._file_failures[path] = failure
        else:
            self._file_failures.pop(path, None)

    def _set_logger_failure(self, failure: str) -> None:
        if self._logger_failure != failure:
            self._logger_failure = failure
            log.error("logger.missing", error=failure)

    # --- to the logger ------------------------------------------------------------------------------------------------

    def _send_queued(self, link: Link) -> None:
        while self._unsent:
            message, descriptor = self._unsent[0]
            has_ended = isinstance(message, CapturePipe) and message.id not in self._pipes
            if not has_ended and not link.send(message, descriptor):
                return
            self._unsent.popleft()

    def _queue_final_request(self) -> None:
        """Queues it once, when all pipes are handed over."""
        if self._leave_by is not None and self._is_ready and not self._final_request_queued:
            self._final_request_queued = True
            if self._final_request is not None:
                self.queue_message(self._final_request)

    def _on_link_lost(self) -> None:
        """The logger is gone. What it had not read is still in the pipes; the next logger gets them all."""
        pid = self.logger_pid
        assert self._link is not None
        self._link.close()
        self._link = self._logger = None
        self._is_ready = False
        self._unsent.clear()
        self._subscribers.drop_incomplete()
        self._file_failures.clear()
        self._pipes.mark_none_handed_over()
        now = time.monotonic()
        self._missing_since = self._connect_at = now
        if self._started_at is not None and now - self._started_at < RESTART_PAUSE_S:
            self._connect_at = now + RESTART_PAUSE_S
        if self._leave_by is None and not self._is_replacing and (pid is not None or self._started_at is not None):
            last_error = start.last_error_line(self._state_dir)
            log.warning("logger.died", pid=pid, error=last_error, pipes=len(self._pipes), next="starts another")
        self._is_replacing = False
        if pid is not None:
            start.reap_logger(pid)
        if not self._pipes:
            self._requests.abandon_clears()
