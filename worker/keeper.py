"""Keeps the checkpoints of one run: restores at its start, saves when due or asked, and answers for it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from supervisor.protocol import manifest
from supervisor.protocol.exitcodes import WorkerExit
from supervisor.protocol.launch import Interval
from supervisor.protocol.messages import Committed, Restored, SaveFailed
from worker import completeness, conditions, exact, foreign
from worker.attempt import Attempt, Leaving, one_line
from worker.cadence import Cadence, Pace, auto_of
from worker.checkpoint import CheckpointWriter, Figures, NotFinite, Origin, SaveError
from worker.lock import Overtaken
from worker.opening import Opened, open_directory
from worker.restore import Found, Unfit, build, restore
from worker.saving import Last, Save
from worker.state import State

LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a full disk may be freed by somebody's clean-up; a broken one won't mend


class Keeper:
    """Between a run and its checkpoint directory. Everything here happens on the thread that trains.

    A save that is due or asked for is copied there and written beside it, one at a time: a flush waits for the one in
    flight, or uses it if it holds the same step. What ends with the process is written while training waits.
    """

    def __init__(
        self,
        tracked: tf.train.Checkpoint,
        strategy: tf.distribute.Strategy | None,
        attempt: Attempt,
        directory: Path | None,
        interval: Interval | None,
        own: Sequence[exact.Own] = (),
        diverged: Callable[[int, str, int], NoReturn] | None = None,
    ) -> None:
        """`own`: generators of the script's own, whose state is kept too. `diverged`: called, between two steps, once
        the state of a step was refused because it is not finite, with the last step that was; None: nobody looks."""
        self.stalled_s = 0.0
        """For how long training stood still for saves."""
        self._tracked = tracked
        self._strategy = strategy
        self._own = own
        self._attempt = attempt
        self._diverged = diverged
        self._directory = directory
        self._opened: Opened | None = None
        self._writer: CheckpointWriter | None = None
        self._cadence = Cadence(interval, 0, time.monotonic(), auto_of(attempt.launch))
        self._pace = Pace()
        self._left_out: tuple[str, ...] = ()  # said with the first checkpoint
        self._last: Last | None = None
        self._changed: tuple[str, ...] = ()  # of what the bits depend on, since this job trained last
        self._beside = ThreadPoolExecutor(1, "stepkeeper-save")
        self._in_flight: tuple[Save, Future[Last | SaveError]] | None = None

    def begin(self, total_steps: int | None) -> State | None:
        """Restores and says so; None at a fresh start.

        Leaves the process (`WorkerExit`) where the directory can't be used or its checkpoint doesn't fit.
        """
        build(self._tracked, self._strategy)
        found = None
        if self._directory is not None:
            found = self._open_and_restore(self._directory)
        else:
            self._go_without()
        state = found.state if found is not None else None
        step = state.step if state is not None else 0
        self._cadence.begun(step, time.monotonic())
        restored = Restored(
            self._attempt.number,
            step,
            checkpoint=found.name if found is not None else None,
            restore_s=found.took_s if found is not None else 0.0,
            total_steps=total_steps,
            unmatched=found.unmatched if found is not None else (),
            changed=self._changed,
        )
        self._attempt.reporter.say(restored)
        return state

    @property
    def interval_s(self) -> float | None:
        """Seconds between periodic saves, where they are chosen here."""
        return self._cadence.chosen_s if self._writer is not None else None

    def check(
        self, roots: Iterable[completeness.Root], exempt: Iterable[Any], strict: bool, step: int, remedy: str
    ) -> None:
        """Looks for what training reaches from `roots` and no checkpoint would hold; `remedy` says what to do.

        It is named on stderr and with the first checkpoint; with `strict`, training ends here (INCOMPLETE).
        """
        if self._writer is None:
            return
        try:
            self._left_out = completeness.left_out(self._tracked, self._own, roots, exempt)
        except Exception as error:  # noqa: BLE001 - it meets objects of every kind, and must not end what it watches
            self._left_out = (f"perhaps more than is known: looking failed with {one_line(error)}",)
        if not self._left_out:
            return
        text = f"the checkpoints don't hold {', '.join(self._left_out)}; {remedy}"
        if strict:
            self._attempt.give_up(WorkerExit.INCOMPLETE, f"cannot train on (strict): {text}", step)
        self._attempt.reporter.remark(text)

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

    def serve(self, step: int, figures: Callable[[], Figures]) -> None:
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

    def save_last(self, figures: Figures) -> None:
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
        self._diverged = None  # it is over, one way or another
        try:
            self._settle()
        finally:
            self._beside.shutdown()
            if self._opened is not None:
                self._opened.lock.release()

    def _go_without(self) -> None:
        if self._attempt.channel is not None:
            self._attempt.channel.wait_for_go()
        self._attempt.reporter.remark(
            "trains without checkpoints; give worker.Run a directory=, or the job a checkpoint_dir"
        )

    def _open_and_restore(self, directory: Path) -> Found | None:
        opened = self._opened = self._open(directory)
        _ = self._tracked.save_counter  # so that `Checkpoint.restore(...).assert_consumed()` passes for other programs
        found = self._restore(opened.restore) if opened.restore is not None else None
        versions = conditions.versions()
        topology = conditions.topology(self._strategy)
        self._compare({**versions, **topology}, opened)
        self._writer = CheckpointWriter(
            self._tracked,
            opened.directory,
            Origin(self._attempt.launch.job, self._attempt.number, versions, topology),
            self._attempt.launch.retention,
            conditions.replica_count(self._strategy),
            self._own,
            self._attempt.launch.make_room,
            opened.lock.check,
            must_be_finite=self._diverged is not None,
            parts=self._parts,
        )
        return found

    def _open(self, directory: Path) -> Opened:
        return open_directory(self._attempt, directory)

    def _parts(self) -> Mapping[str, bytes]:
        """More files for the checkpoint that is being taken: by name, their contents."""
        return {}

    def _compare(self, present: conditions.Conditions, opened: Opened) -> None:
        """Notes what differs from the conditions trained under before; those of a first start are written down."""
        if opened.restore is not None and opened.restore.is_dir():
            before: conditions.Conditions | None = conditions.of_manifest(manifest.read(opened.restore))
        else:
            before = conditions.recorded(opened.directory)
            if before != present:
                self._record(present, opened.directory)
        self._changed = conditions.differences(before, present) if before is not None else ()
        if self._changed:
            self._attempt.reporter.remark(
                f"trains on under other conditions, so not to the same bits: {'; '.join(self._changed)}"
            )

    def _record(self, present: conditions.Conditions, directory: Path) -> None:
        try:
            conditions.record(directory, present)
        except OSError as error:
            self._attempt.reporter.remark(f"cannot write down in {directory} what this start depends on: {error}")

    def _restore(self, path: Path) -> Found:
        """One of ours from its folder, or another program's from its prefix."""
        try:
            if not path.is_dir():
                return foreign.restore(self._tracked, path)
            found = restore(self._tracked, path, conditions.replica_count(self._strategy), self._own)
        except Unfit as error:
            self._attempt.give_up(WorkerExit.CHECKPOINT_UNFIT, str(error))
        if path.parent == self._directory:  # another job's has to be saved here too
            self._last = Last(found.state.step, path.name, found.size_bytes)
        return found

    def _is_due(self, step: int) -> bool:
        """Whether to save now. An interval in steps is kept, if need be by waiting; one in seconds is put off."""
        if not self._cadence.is_due(step, time.monotonic()):
            return False
        if self._in_flight is not None:
            if self._cadence.interval.steps is None:
                return False
            self._settle()
        return self._cadence.is_due(step, time.monotonic())

    def _save(self, figures: Figures, flushes: tuple[int, ...], beside: bool) -> str | None:
        """Saves this step, unless a checkpoint holds it already, and has it answered; the error if there is one yet.

        `beside`: training goes on meanwhile, and an error comes later.
        """
        decided_at = time.monotonic()
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
            return self._refuse(figures.step, flushes, str(refused))
        goes_on = beside and taken.bundles is not None
        stall_s = time.monotonic() - started
        save = Save(
            self._writer,
            taken,
            self._attempt.reporter,
            flushes,
            decided_at,
            stall_s,
            waits=not goes_on,
            left_out=self._left_out,
        )
        del taken  # the save alone holds the copy, and lets it go when it is written
        if goes_on:
            self._in_flight = save, self._beside.submit(save.run)
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

    def _absorb(self, save: Save, outcome: Last | SaveError) -> str | None:
        if isinstance(outcome, SaveError):
            self._cadence.failed(time.monotonic())
            if isinstance(outcome, NotFinite) and self._diverged is not None:
                self._diverged(save.step, str(outcome), self._last.step if self._last is not None else 0)
            return str(outcome)
        self._last, self._left_out = outcome, ()
        self._cadence.succeeded()
        self._cadence.auto.measured(save.stall_s + self._pace.slowed_s(), save.save_s)
        return None

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
