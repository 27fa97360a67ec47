"""The saves of one run: when one is due or asked for, one at a time, beside training or while that waits."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from supervisor.protocol.exit_codes import WorkerExit
from supervisor.protocol.messages import Committed, SaveFailed
from worker.process.attempt import Attempt, Leaving
from worker.saving.cadence import Cadence, Pace
from worker.saving.directory import Opened
from worker.saving.directory_lock import Overtaken
from worker.saving.save import (
    Last,
    Save,
    SaveError,
    T,
    Writer,
)

LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a full disk may be freed by somebody's clean-up; a broken one won't mend


class AtStep(Protocol):
    """What the loop knows at a step boundary."""

    @property
    def step(self) -> int:
        """How many are done."""


F = TypeVar("F", bound=AtStep)


class Saves(Generic[F, T]):
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
        self._opened: Opened | None = None
        self._writer: Writer[F, T] | None = None  # None: this run has no checkpoints
        self._pace = Pace()
        self._left_out: tuple[str, ...] = ()  # said with the first checkpoint
        self._last: Last | None = None
        self._beside = ThreadPoolExecutor(1, "stepkeeper-save")
        self._in_flight: tuple[Save[T], Future[Last | SaveError]] | None = None

    @property
    def interval_s(self) -> float | None:
        """Seconds between periodic saves, where they are chosen here."""
        return self._cadence.chosen_s if self._writer is not None else None

    def stepped(self) -> None:
        """A step was done: keeps count of how long steps take with a save beside them, and without."""
        self._pace.step(time.monotonic() - self.stalled_s, beside=self._in_flight is not None)

    @property
    def saving_s(self) -> float | None:
        """For how long a save has been written beside training; None if none is."""
        if self._in_flight is None or self._in_flight[1].done():
            return None
        return time.monotonic() - self._in_flight[0].began_at

    def may_save(self, step: int) -> bool:
        """Whether `serve` has anything to do now that may take long."""
        settled = self._in_flight is not None and self._in_flight[1].done()
        asked = self._attempt.requests.is_asked
        return settled or asked or (self._writer is not None and self._cadence.is_due(step, time.monotonic()))

    def serve(self, step: int, figures: Callable[[], F]) -> None:
        """At a step boundary: saves if it was asked for or is due. Leaves the process if that was asked for too."""
        if self._in_flight is not None and self._in_flight[1].done():
            self._settle()
        asked = self._attempt.requests.take()
        if asked is None:
            if self._writer is not None and self._is_due(step):
                self._save(figures(), (), beside=True)
            return
        error = self._save(figures(), asked.flushes, beside=not asked.stop)
        if not asked.stop:
            return
        if error is not None and self._writer is not None:
            self._attempt.give_up(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", step)
        raise Leaving(int(WorkerExit.STOPPED))

    def save_last(self, figures: F) -> None:
        """Commits the end of training, trying again for a while; leaves with SAVE_FAILED if it can't."""
        asked = self._attempt.requests.take()
        flushes = asked.flushes if asked is not None else ()
        for pause_s in (*LAST_SAVE_PAUSES_S, None):
            error = self._save(figures, flushes, beside=False)
            if error is None or self._writer is None:
                return
            if pause_s is not None:
                time.sleep(pause_s)
        self._attempt.give_up(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", figures.step)

    def release(self) -> None:
        """Waits for the save in flight, then lets another run use the directory."""
        try:
            self._settle()
        finally:
            self._beside.shutdown()
            if self._opened is not None:
                self._opened.lock.release()

    def _is_due(self, step: int) -> bool:
        """Whether to save now. An interval in steps is kept, if need be by waiting; one in seconds is put off."""
        if not self._cadence.is_due(step, time.monotonic()):
            return False
        if self._in_flight is not None:
            if self._cadence.interval.steps is None:
                return False
            self._settle()
        return self._cadence.is_due(step, time.monotonic())

    def _save(self, figures: F, flushes: tuple[int, ...], beside: bool) -> str | None:
        """Saves this step, unless a checkpoint holds it already, and has it answered; the error if there is one yet.

        `beside`: training goes on meanwhile, and an error comes later.
        """
        decided_at = started = time.monotonic()
        if self._in_flight is not None:
            if beside and self._in_flight[0].step == figures.step and self._in_flight[0].join(flushes):
                return None
            self._settle()
            started = time.monotonic()  # the wait for another save is that one's stall
        if self._writer is None:
            return self._refuse(figures.step, flushes, "cannot save: this run has no checkpoint directory")
        if self._last is not None and self._last.step == figures.step:
            self._answer_held(self._last, flushes, started)
            return None
        try:
            taken = self._writer.take(figures, copied=beside)
        except SaveError as refused:
            self._cadence.failed(time.monotonic())
            said = self._refuse(figures.step, flushes, str(refused))
            self._failed(figures.step, refused)
            return said
        goes_on = beside and taken.is_apart
        taken_at = time.monotonic()
        save = Save(
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
                self._in_flight = save, self._beside.submit(save.run)
            except RuntimeError:  # no thread can be started: a limit was reached, or the main one is over
                goes_on = False
                save.wait_from(taken_at)
        error = None if goes_on else self._absorb(save, self._outcome(save.run, figures.step))
        self._cadence.begun(figures.step, time.monotonic())
        self.stalled_s += time.monotonic() - started
        return error

    def _settle(self) -> None:
        """Waits for the save in flight, if there is one, and takes note of how it ended."""
        if self._in_flight is None:
            return
        (save, future), self._in_flight = self._in_flight, None
        started = time.monotonic()
        save.wait_from(started)
        outcome = self._outcome(future.result, save.step)
        self.stalled_s += time.monotonic() - started
        self._absorb(save, outcome)

    def _outcome(self, ask: Callable[[], Last | SaveError], step: int) -> Last | SaveError:
        """How a save ended. Leaves the process where a newer attempt writes into the directory."""
        try:
            return ask()
        except Overtaken as error:
            self._attempt.give_up(WorkerExit.LOCKED, str(error), step)

    def _absorb(self, save: Save[T], outcome: Last | SaveError) -> str | None:
        if isinstance(outcome, SaveError):
            self._cadence.failed(time.monotonic())
            self._failed(save.step, outcome)
            return str(outcome)
        self._last, self._left_out = outcome, ()
        self._cadence.succeeded()
        self._cadence.auto.measured(save.stall_s + self._pace.slowed_s(), save.save_s)
        return None

    def _failed(self, step: int, error: SaveError) -> None:
        """A save of `step` came to nothing, which the daemon knows already."""

    def _refuse(self, step: int, flushes: tuple[int, ...], error: str) -> str | None:
        """Answers what can't be saved; silent where there is no directory and nobody asked."""
        if flushes or self._writer is not None:
            self._attempt.reporter.say(SaveFailed(self._attempt.number, step, error, flushes))
            return error
        return None

    def _answer_held(self, last: Last, flushes: tuple[int, ...], decided_at: float) -> None:
        if flushes:
            took_s = time.monotonic() - decided_at
            said = Committed(
                self._attempt.number, last.step, last.name, last.size_bytes, took_s, stall_s=took_s, flushes=flushes
            )
            self._attempt.reporter.say(said)
