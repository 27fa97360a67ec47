"""The saves of one run: when one is due or requested, one at a time, beside training or while training waits.

`commit.py` describes the steps of a save; this module decides about them at each step boundary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NoReturn, Protocol, TypeVar

from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Interval
from supervisor.protocol.wire.messages import SaveFailed
from worker.checks.findings import Finding
from worker.process.attempt import Attempt
from worker.process.requests import SaveRequest
from worker.saving.background_save import BackgroundSave
from worker.saving.cadence import Cadence, StepPace, auto_interval_of
from worker.saving.commit import NotFinite, SaveError
from worker.saving.directory import OpenedDirectory
from worker.saving.directory_lock import AttemptSuperseded
from worker.saving.memory_tier import RAN_OUT, MemoryTier, NewestCopy, has_copies, report_no_copies
from worker.saving.page_cache import CachedCheckpoint
from worker.saving.save import CheckpointSave, CheckpointWriter, LastCheckpoint, T
from worker.saving.unsaved_state import UnsavedState

LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a clean-up may free a full disk in this time


class AtStepBoundary(Protocol):
    """What the loop knows at a step boundary."""

    @property
    def step(self) -> int:
        """How many steps are done."""


F = TypeVar("F", bound=AtStepBoundary)


class SaveScheduler(Generic[F, T]):
    """Starts the saves of a run and takes care of their outcomes. All of it runs on the thread that trains.

    The state for a save is copied on this thread and written on another one. One save is in flight at a time: a flush
    waits for it, or joins it if it holds the same step. The save before an exit, and a state that can't be copied, are
    written while training waits.
    """

    def __init__(
        self,
        attempt: Attempt,
        interval: Interval | None,
        *,
        strict: bool = False,
        not_finite: Callable[[int, str, int], NoReturn] | None = None,
    ) -> None:
        """`interval`: between periodic saves; None: their costs choose it. `strict`: ends training that has findings.

        `not_finite`: called between two steps after a save was refused because the state is not finite: with that step,
        the error's text and the last saved step. None: states are not checked.
        """
        self.stalled_s = 0.0
        """How long training has waited for saves, in total."""
        self.replayed_s = 0.0
        """How long no step was new, because steps were trained a second time."""
        self.begun_step: int | None = None
        """The step of the newest checkpoint that this process has begun to write."""
        self._attempt = attempt
        self._not_finite = not_finite
        self._cadence = Cadence(interval, 0, time.monotonic(), auto_interval_of(attempt.launch))
        self._opened: OpenedDirectory | None = None
        self._cached: CachedCheckpoint | None = None
        self._writer: CheckpointWriter[F, T] | None = None  # None: this run has no checkpoints
        self._memory: MemoryTier[F] | None = None
        self._pace = StepPace()
        self._unsaved = UnsavedState(attempt, strict)
        self._last: LastCheckpoint | None = None
        self._background = BackgroundSave[T]()

    def begin(
        self, opened: OpenedDirectory, writer: CheckpointWriter[F, T], step: int, last: LastCheckpoint | None
    ) -> None:
        """Training begins at `step`. `last`: the checkpoint in this directory that holds it already."""
        self._opened, self._writer, self._last = opened, writer, last
        self._cadence.restart_interval(step, time.monotonic())
        if self._memory is None and has_copies(self._attempt):
            why = "only worker.Run and worker.keras.fit in one process make them"
            report_no_copies(self._attempt, RAN_OUT if self._attempt.no_copies else why)

    def report_findings(
        self, findings: Sequence[Finding], step: int, missing: Sequence[str] = (), remedy: str = ""
    ) -> None:
        """Names on stderr, and in the report of the next checkpoint, what would not come back after a restart.

        `missing`: state that no checkpoint would hold, with its `remedy`. If the run is strict, exits (INCOMPLETE).
        """
        self._unsaved.report(findings, step, missing, remedy)

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of what no checkpoint of this run holds."""
        return self._unsaved.names

    @property
    def interval_s(self) -> float | None:
        """Seconds between periodic saves, if the interval is chosen here."""
        return self._cadence.chosen_interval_s if self._writer is not None else None

    def record_step(self) -> None:
        """Records a step, to know how long steps take with a save beside them and without."""
        self._pace.record_step(time.monotonic() - self.paused_s, beside=self._background.save is not None)

    @property
    def step_s(self) -> float | None:
        """How long a step takes without a save beside it; None if that is not known yet."""
        return self._pace.step_s

    @property
    def paused_s(self) -> float:
        """How long training has made no new steps since it began: for saves and replays."""
        return self.stalled_s + self.replayed_s

    @property
    def newest_copy(self) -> NewestCopy | None:
        """The newest state that outlives this process in memory; None if there is none."""
        return None if self._memory is None else self._memory.newest

    @property
    def saving_s(self) -> float | None:
        """How long the save beside training has taken so far; None if there is none."""
        return self._background.running_s

    def has_work(self, step: int) -> bool:
        """Whether `on_step_boundary` may take long now."""
        if self._background.has_ended or self._attempt.requests.has_save_request:
            return True
        return self._writer is not None and self._cadence.is_due(step, time.monotonic())

    def on_step_boundary(self, step: int, boundary: Callable[[], F]) -> None:
        """Saves if a save was requested or is due, and exits after it if a stop was requested."""
        if self._background.has_ended:
            self._wait_for_save()
        request = self._attempt.requests.pop_save_request()
        if request is None:
            if self._writer is not None and self._is_save_due(step):
                self._save_step(boundary(), (), beside=True)
            elif self._memory is not None:
                self.stalled_s += self._memory.on_step_boundary(boundary)
            return
        if not request.stop:
            self._save_step(boundary(), request.flushes, beside=True)
            return
        error = self._save_before_exit(boundary(), request)
        if error is not None and self._writer is not None:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", step)
        self._attempt.leave(WorkerExit.STOPPED)

    def save_final(self, boundary: F) -> None:
        """Saves the end of training, with several tries; exits with SAVE_FAILED if none succeeds."""
        request = self._attempt.requests.pop_save_request() or SaveRequest()
        error = self._save_before_exit(boundary, replace(request, deadline_at=None))
        if error is not None and self._writer is not None:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", boundary.step)

    def _save_before_exit(self, boundary: F, request: SaveRequest) -> str | None:
        """Saves while training waits, with several tries, as waiting loses nothing. Returns the last error.

        Gives up early enough to say so itself: before the request's deadline, and if it is told to stop once more.
        """
        error = self._save_step(boundary, request.flushes, beside=False)
        for pause_s in LAST_SAVE_PAUSES_S:
            is_late = request.deadline_at is not None and time.monotonic() + pause_s >= request.deadline_at
            if error is None or self._writer is None or is_late:
                break
            time.sleep(pause_s)
            if request.stop and self._attempt.requests.has_save_request:
                break
            error = self._save_step(boundary, request.flushes, beside=False)
        return error

    def settle(self) -> None:
        """Waits for the save in flight."""
        self._wait_for_save()

    def close(self) -> None:
        """Waits for the save in flight, then releases the directory."""
        self._not_finite = None  # the run has ended: a save that fails now must not end it a second time
        try:
            self._wait_for_save()
        finally:
            self._background.close()
            if self._memory is not None:
                self._memory.close()
            if self._cached is not None:
                self._cached.stop()
            if self._opened is not None:
                self._opened.lock.release()

    def _is_save_due(self, step: int) -> bool:
        """Whether a periodic save has to begin now.

        While another save is in flight, an interval in steps waits for it, and one in seconds is put off.
        """
        if not self._cadence.is_due(step, time.monotonic()):
            return False
        if self._background.save is not None:
            if self._cadence.interval.steps is None:
                return False
            self._wait_for_save()
        return self._cadence.is_due(step, time.monotonic())

    def _save_step(self, boundary: F, flushes: tuple[int, ...], beside: bool) -> str | None:
        """Saves this step, unless a checkpoint holds it already. Returns the error, if there is one by now.

        `beside`: training goes on meanwhile, so an error comes later.
        """
        decided_at = started = time.monotonic()
        if self._background.save is not None:
            if beside and self._background.joins(boundary.step, flushes):
                return None
            self._wait_for_save()
            started = time.monotonic()  # the wait for another save is that one's stall
        if self._writer is None:
            return self._report_cannot_save(boundary.step, flushes, "cannot save: this run has no checkpoint directory")
        if self._last is not None and self._last.step == boundary.step:
            self._report_already_saved(self._last, flushes, started)
            return None
        try:
            captured = self._writer.capture(boundary, copied=beside)
        except SaveError as error:
            self._cadence.record_failure(time.monotonic())
            reported = self._report_cannot_save(boundary.step, flushes, str(error))
            self._on_save_failed(boundary.step, error)
            return reported
        self.begun_step = boundary.step
        if self._cached is None and self._opened is not None:
            self._cached = CachedCheckpoint(self._opened.directory, None if self._last is None else self._last.name)
        goes_on = beside and captured.is_copy
        captured_at = time.monotonic()
        save = CheckpointSave(
            self._writer,
            captured,
            self._attempt.reporter,
            flushes,
            decided_at,
            captured_at - started,
            blocked_since=None if goes_on else captured_at,
            left_out=self._unsaved.unreported,
            remember=self._opened.remember_commit if self._opened is not None else None,
            keep_cached=self._cached.replace if self._cached is not None else None,
        )
        del captured  # only the save holds the copy, and frees it when it is written
        failure = self._write(save, goes_on, captured_at)
        self._cadence.restart_interval(boundary.step, time.monotonic())
        self.stalled_s += time.monotonic() - started
        return failure

    def _write(self, save: CheckpointSave[T], goes_on: bool, captured_at: float) -> str | None:
        """Writes a captured step, beside training if that goes on. Returns the error, if there is one by now."""
        if goes_on:
            try:
                self._background.begin(save)
                return None
            except RuntimeError:  # no thread can be started
                save.mark_training_blocked(captured_at)
        return self._record_outcome(save, self._outcome_or_exit(save.write_and_report, save.step))

    def _wait_for_save(self) -> None:
        """Waits for the save in flight, if there is one, and records its outcome."""
        if (save := self._background.save) is None:
            return
        started = time.monotonic()
        save.mark_training_blocked(started)
        outcome = self._outcome_or_exit(self._background.wait, save.step)
        self.stalled_s += time.monotonic() - started
        self._record_outcome(save, outcome)

    def _outcome_or_exit(self, wait: Callable[[], LastCheckpoint | SaveError], step: int) -> LastCheckpoint | SaveError:
        """How a save ended. Exits if a newer attempt writes into the directory."""
        try:
            return wait()
        except AttemptSuperseded as error:
            self._attempt.exit_with_error(WorkerExit.LOCKED, str(error), step)

    def _record_outcome(self, save: CheckpointSave[T], outcome: LastCheckpoint | SaveError) -> str | None:
        if isinstance(outcome, SaveError):
            self._cadence.record_failure(time.monotonic())
            self._on_save_failed(save.step, outcome)
            return str(outcome)
        self._last = outcome
        self._unsaved.mark_reported(save.left_out)
        self._cadence.record_success()
        self._cadence.auto.record_save(save.stall_s + self._pace.pop_slowdown_s(), save.save_s)
        return None

    def _on_save_failed(self, step: int, error: SaveError) -> None:
        """A save of `step` failed, which the daemon was told already."""
        if isinstance(error, NotFinite) and self._not_finite is not None:
            self._not_finite(step, str(error), 0 if self._last is None else self._last.step)

    def _report_cannot_save(self, step: int, flushes: tuple[int, ...], error: str) -> str | None:
        """Reports a save that can't begin, but without a directory only if a flush waits. Returns what it reported."""
        if flushes or self._writer is not None:
            self._attempt.reporter.send_message(SaveFailed(self._attempt.number, step, error, flushes))
            return error
        return None

    def _report_already_saved(self, last: LastCheckpoint, flushes: tuple[int, ...], decided_at: float) -> None:
        if flushes:
            answer = last.answer_to(flushes, self._attempt.number, stall_s=time.monotonic() - decided_at)
            self._attempt.reporter.send_message(answer)
