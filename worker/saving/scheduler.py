"""The saves of one run: when one is due or asked for, one at a time, beside training or while that waits."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from supervisor.protocol.messages import Committed, SaveFailed, WorkerExit
from worker.process.attempt import Attempt, DeliberateExit
from worker.saving.cadence import Cadence, StepPace
from worker.saving.commit import SaveError
from worker.saving.directory import AttemptSuperseded, OpenedDirectory
from worker.saving.save import CheckpointSave, CheckpointWriter, LastCheckpoint, T

LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a full disk may be freed by somebody's clean-up; a broken one won't mend


class AtStepBoundary(Protocol):
    """What the loop knows at a step boundary."""

    @property
    def step(self) -> int:
        """How many are done."""


F = TypeVar("F", bound=AtStepBoundary)


class SaveScheduler(Generic[F, T]):
    """Everything here happens on the thread that trains.

    A save that is due or asked for is copied there and written beside it, one at a time: a flush waits for the one in
    flight, or uses it if it holds the same step. What ends with the process is written while training waits; so is
    what can't be copied.
    """

    def __init__(self, attempt: Attempt, cadence: Cadence) -> None:
        self.stalled_s = 0.0
        """For how long training stood still for saves."""
        self._attempt = attempt
        self._cadence = cadence
        self._opened: OpenedDirectory | None = None
        self._writer: CheckpointWriter[F, T] | None = None  # None: this run has no checkpoints
        self._pace = StepPace()
        self._left_out: tuple[str, ...] = ()  # said with the first checkpoint
        self._last: LastCheckpoint | None = None
        self._save_thread = ThreadPoolExecutor(1, "stepkeeper-save")
        self._in_flight: tuple[CheckpointSave[T], Future[LastCheckpoint | SaveError]] | None = None

    @property
    def interval_s(self) -> float | None:
        """Seconds between periodic saves, where they are chosen here."""
        return self._cadence.chosen_interval_s if self._writer is not None else None

    def record_step(self) -> None:
        """A step was done: keeps count of how long steps take with a save beside them, and without."""
        self._pace.record_step(time.monotonic() - self.stalled_s, beside=self._in_flight is not None)

    @property
    def saving_s(self) -> float | None:
        """For how long a save has been written beside training; None if none is."""
        if self._in_flight is None or self._in_flight[1].done():
            return None
        return time.monotonic() - self._in_flight[0].began_at

    def has_work(self, step: int) -> bool:
        """Whether `serve` has anything to do now that may take long."""
        settled = self._in_flight is not None and self._in_flight[1].done()
        asked = self._attempt.requests.has_save_request
        return settled or asked or (self._writer is not None and self._cadence.is_due(step, time.monotonic()))

    def on_step_boundary(self, step: int, figures: Callable[[], F]) -> None:
        """At a step boundary: saves if it was asked for or is due. Leaves the process if that was asked for too."""
        if self._in_flight is not None and self._in_flight[1].done():
            self._wait_for_save()
        asked = self._attempt.requests.pop_save_request()
        if asked is None:
            if self._writer is not None and self._is_save_due(step):
                self._save_step(figures(), (), beside=True)
            return
        error = self._save_step(figures(), asked.flushes, beside=not asked.stop)
        if not asked.stop:
            return
        if error is not None and self._writer is not None:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", step)
        raise DeliberateExit(int(WorkerExit.STOPPED))

    def save_final(self, figures: F) -> None:
        """Commits the end of training, trying again for a while; leaves with SAVE_FAILED if it can't."""
        asked = self._attempt.requests.pop_save_request()
        flushes = asked.flushes if asked is not None else ()
        for pause_s in (*LAST_SAVE_PAUSES_S, None):
            error = self._save_step(figures, flushes, beside=False)
            if error is None or self._writer is None:
                return
            if pause_s is not None:
                time.sleep(pause_s)
        self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", figures.step)

    def close(self) -> None:
        """Waits for the save in flight, then lets another run use the directory."""
        try:
            self._wait_for_save()
        finally:
            self._save_thread.shutdown()
            if self._opened is not None:
                self._opened.lock.release()

    def _is_save_due(self, step: int) -> bool:
        """Whether to save now. An interval in steps is kept, if need be by waiting; one in seconds is put off."""
        if not self._cadence.is_due(step, time.monotonic()):
            return False
        if self._in_flight is not None:
            if self._cadence.interval.steps is None:
                return False
            self._wait_for_save()
        return self._cadence.is_due(step, time.monotonic())

    def _save_step(self, figures: F, flushes: tuple[int, ...], beside: bool) -> str | None:
        """Saves this step, unless a checkpoint holds it already, and has it answered; the error if there is one yet.

        `beside`: training goes on meanwhile, and an error comes later.
        """
        decided_at = started = time.monotonic()
        if self._in_flight is not None:
            if beside and self._in_flight[0].step == figures.step and self._in_flight[0].add_flushes(flushes):
                return None
            self._wait_for_save()
            started = time.monotonic()  # the wait for another save is that one's stall
        if self._writer is None:
            return self._report_cannot_save(figures.step, flushes, "cannot save: this run has no checkpoint directory")
        if self._last is not None and self._last.step == figures.step:
            self._report_already_saved(self._last, flushes, started)
            return None
        try:
            taken = self._writer.capture(figures, copied=beside)
        except SaveError as refused:
            self._cadence.record_failure(time.monotonic())
            said = self._report_cannot_save(figures.step, flushes, str(refused))
            self._on_save_failed(figures.step, refused)
            return said
        goes_on = beside and taken.is_copy
        taken_at = time.monotonic()
        save = CheckpointSave(
            self._writer,
            taken,
            self._attempt.reporter,
            flushes,
            decided_at,
            taken_at - started,
            waits_from=None if goes_on else taken_at,
            left_out=self._left_out,
        )
        del taken  # the save alone holds the copy, and lets it go when it is written
        if goes_on:
            try:
                self._in_flight = save, self._save_thread.submit(save.write_and_report)
            except RuntimeError:  # no thread can be started: a limit was reached, or the main one is over
                goes_on = False
                save.mark_training_blocked(taken_at)
        error = (
            None if goes_on else self._record_outcome(save, self._outcome_or_exit(save.write_and_report, figures.step))
        )
        self._cadence.restart_interval(figures.step, time.monotonic())
        self.stalled_s += time.monotonic() - started
        return error

    def _wait_for_save(self) -> None:
        """Waits for the save in flight, if there is one, and takes note of how it ended."""
        if self._in_flight is None:
            return
        (save, future), self._in_flight = self._in_flight, None
        started = time.monotonic()
        save.mark_training_blocked(started)
        outcome = self._outcome_or_exit(future.result, save.step)
        self.stalled_s += time.monotonic() - started
        self._record_outcome(save, outcome)

    def _outcome_or_exit(self, ask: Callable[[], LastCheckpoint | SaveError], step: int) -> LastCheckpoint | SaveError:
        """How a save ended. Leaves the process where a newer attempt writes into the directory."""
        try:
            return ask()
        except AttemptSuperseded as error:
            self._attempt.exit_with_error(WorkerExit.LOCKED, str(error), step)

    def _record_outcome(self, save: CheckpointSave[T], outcome: LastCheckpoint | SaveError) -> str | None:
        if isinstance(outcome, SaveError):
            self._cadence.record_failure(time.monotonic())
            self._on_save_failed(save.step, outcome)
            return str(outcome)
        self._last, self._left_out = outcome, ()
        self._cadence.record_success()
        self._cadence.auto.record_save(save.stall_s + self._pace.pop_slowdown_s(), save.save_s)
        return None

    def _on_save_failed(self, step: int, error: SaveError) -> None:
        """A save of `step` came to nothing, which the daemon knows already."""

    def _report_cannot_save(self, step: int, flushes: tuple[int, ...], error: str) -> str | None:
        """Answers what can't be saved; silent where there is no directory and nobody asked."""
        if flushes or self._writer is not None:
            self._attempt.reporter.send_message(SaveFailed(self._attempt.number, step, error, flushes))
            return error
        return None

    def _report_already_saved(self, last: LastCheckpoint, flushes: tuple[int, ...], decided_at: float) -> None:
        if flushes:
            took_s = time.monotonic() - decided_at
            said = Committed(
                self._attempt.number, last.step, last.name, last.size_bytes, took_s, stall_s=took_s, flushes=flushes
            )
            self._attempt.reporter.send_message(said)
