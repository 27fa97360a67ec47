"""The saves of a run in which several processes train together (a gang).

The chief alone commits and reports. All agree between two steps whether to save or stop, and for the same step: a stop
that reaches any of them stops all. They agree about every fifth of a second, so that it costs training next to nothing.
"""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from functools import partial
from math import ceil
from typing import NoReturn

from supervisor.protocol import layout
from supervisor.protocol.wire.exits import WorkerExit
from worker.base.run_settings import RunSettings
from worker.checkpoint.sharded_writer import ShardedWriter
from worker.checkpoint.tensorflow_writer import CapturedTensors, StepBoundary
from worker.data.collectives import Gang
from worker.process import local_processes
from worker.process.attempt import Attempt
from worker.process.requests import SIGNAL_S
from worker.run import own_folders
from worker.run.gang_directory import GangDirectory
from worker.run.rank_reports import NO_CHECKPOINT, NewestCheckpoint, RankReports
from worker.run.run_checkpoints import SavedState
from worker.saving.commit import SaveError
from worker.saving.save import CheckpointWriter
from worker.saving.scheduler import LAST_SAVE_PAUSES_S

AGREE_S = 0.2  # between agreements; a flush may wait this much longer than its step


class _Follows(IntEnum):
    """What all workers do after a try to save before a stop, as the chief says."""

    STOP = 0  # it is saved
    FAILED = 1  # they stop without it
    SAVE_NOW = 2  # it could not be divided: once more, without the others' shares
    SAVE_LATER = 3  # once more, after a pause


@dataclass(frozen=True, slots=True)
class _Agreement:
    """What all workers do after this step. `held`: a checkpoint holds it already."""

    saves: bool
    stops: bool
    held: bool
    next_in: int


class GangCheckpoints(GangDirectory):
    """The checkpoints of one of several workers. All workers call the same methods between the same steps."""

    def __init__(
        self,
        gang: Gang,
        attempt: Attempt,
        settings: RunSettings,
        state: SavedState,
        not_finite: Callable[[int, str, int], NoReturn] | None,
    ) -> None:
        super().__init__(gang, attempt, settings, state, not_finite)
        self._next = 0  # the step at which the next agreement is due
        self._stepped_at: tuple[int, float] | None = None
        self._stop_by: float | None = None  # no try to save begins after that, once this worker was told to stop
        self._reports = RankReports(gang, attempt)
        self._share: Future[None] | None = None  # this worker's part in the chief's save in flight

    def has_work(self, step: int) -> bool:
        """For the report to the daemon, which comes from the chief alone."""
        return self._gang.is_chief and super().has_work(step)

    def on_step_boundary(self, step: int, boundary: Callable[[], StepBoundary]) -> None:
        """Does what the workers agree on, at the steps at which they agree."""
        if step < self._next:
            return
        agreed = self._agree_on_save(step, last=False)
        self._next = step + agreed.next_in
        if not agreed.saves:
            return
        if not agreed.stops:
            self._save_together(agreed, boundary(), self._pop_flushes(), beside=True)
            return
        error, is_failed = self._save_before_stop(agreed, boundary())  # nobody exits before the commit
        self._allow_exits()
        self._reports.report_stop(step, self._newest(), is_failed)
        if error is not None and self._writer is not None:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", step)
        self._attempt.leave(WorkerExit.STOPPED)

    def _save_before_stop(self, agreed: _Agreement, here: StepBoundary) -> tuple[str | None, bool]:
        """The save before a stop, with several tries that the chief decides on, as waiting loses nothing.

        Returns this worker's error, and whether the chief has failed.
        """
        pauses, flushes = list(LAST_SAVE_PAUSES_S), self._pop_flushes()
        deadline_at = self._stop_by if self._stop_by is not None else time.monotonic() + SIGNAL_S
        while True:
            was_divided = self._is_divided()
            error = self._save_together(agreed, here, flushes, beside=False)
            tries_alone = error is not None and was_divided and not self._is_divided()
            is_in_time = bool(pauses) and self._writer is not None and time.monotonic() + pauses[0] < deadline_at
            follows = _Follows.STOP if error is None else _Follows.FAILED
            if error is not None and (tries_alone or is_in_time):
                follows = _Follows.SAVE_NOW if tries_alone else _Follows.SAVE_LATER
            follows = _Follows(self._gang.from_chief([follows])[0])
            if follows in (_Follows.STOP, _Follows.FAILED):
                return error, follows is _Follows.FAILED
            if follows is _Follows.SAVE_LATER:
                time.sleep(pauses.pop(0))
            agreed = replace(agreed, held=False)  # what was in flight for this step has failed

    def _is_divided(self) -> bool:
        """Whether the next save may be one of which each worker writes its share; of the chief's writer."""
        return isinstance(self._writer, ShardedWriter) and self._writer.is_trusted

    def save_final(self, boundary: StepBoundary) -> None:
        """Saves the end of training together; the chief tries several times."""
        flushes: tuple[int, ...] = ()
        for pause_s in (*LAST_SAVE_PAUSES_S, None):
            agreed = self._agree_on_save(boundary.step, last=True)
            flushes += self._pop_flushes()
            error = self._save_together(agreed, boundary, flushes, beside=False)
            if not self._gang.from_chief([int(error is not None and self._writer is not None)])[0]:
                self._allow_exits()
                self._reports.report_stop(boundary.step, self._newest(), failed=False)
                return
            if pause_s is not None:
                time.sleep(pause_s)
        self._allow_exits()
        if not self._gang.is_chief:
            self._attempt.leave(WorkerExit.SAVE_FAILED)
        self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", boundary.step)

    def _agree_on_save(self, step: int, last: bool) -> _Agreement:
        gang, requests = self._gang, self._attempt.requests
        asked = requests.pop_save_request()
        if asked is not None and asked.stop:
            self._stop_by = asked.deadline_at
        if asked is not None and asked.flushes:
            self._reports.add_flushes(step, asked.flushes)
        wants, stops = asked is not None or last, asked is not None and asked.stop
        chiefs = [0] * (2 + len(astuple(NO_CHECKPOINT)))
        if gang.is_chief:
            if self._background.has_ended:
                self._wait_for_save()
            wants = wants or (self._writer is not None and self._is_save_due(step))
            chiefs = [int(self._is_held(step)), self._steps_until_next(step), *astuple(self._newest())]
        summed = gang.sum([int(wants), int(stops), *chiefs])
        newest = NewestCheckpoint(*summed[4:])
        self._reports.report_commit(newest)
        if self._gang_restore.has_own_folders and self._directory is not None and newest != NO_CHECKPOINT:
            own_folders.delete_old_parts(self._directory, layout.CheckpointName(newest.step, newest.attempt))
        return _Agreement(summed[0] > 0, summed[1] > 0, summed[2] > 0, summed[3])

    def _is_held(self, step: int) -> bool:
        save = self._background.save
        return (save is not None and save.step == step) or (self._last is not None and self._last.step == step)

    def _steps_until_next(self, step: int) -> int:
        """As many steps as take AGREE_S, but not beyond a step at which a save is due."""
        now, before = time.monotonic(), self._stepped_at
        self._stepped_at = step, now
        if before is None or step <= before[0] or now <= before[1]:
            return 1
        steps = max(1, int(AGREE_S * (step - before[0]) / (now - before[1])))
        every = self._cadence.interval.steps
        return steps if every is None else min(steps, every - step % every)

    def _newest(self) -> NewestCheckpoint:
        name = layout.parse_name(self._last.name) if self._last is not None else None
        if self._last is None or name is None:
            return NO_CHECKPOINT
        last, save_ms = self._last, ceil(1000 * self._last.save_s)
        return NewestCheckpoint(name.step, name.attempt, last.size_bytes, save_ms, int(last.age_s))

    def _pop_flushes(self) -> tuple[int, ...]:
        """Those that the chief's next save answers; a member keeps its own until the chief has committed."""
        return self._reports.pop_flushes() if self._gang.is_chief else ()

    def _save_together(
        self, agreed: _Agreement, boundary: StepBoundary, flushes: tuple[int, ...], beside: bool
    ) -> str | None:
        """The chief saves, with every worker's part. Returns the error, if there is one by now."""
        if agreed.held:
            return self._report_held(boundary.step, flushes)
        boundary = replace(boundary, position=self._gang.merge_shares(boundary.position))
        if self._gang.is_chief:
            return self._save_step(boundary, flushes, beside)
        if self._writer is not None:
            self._write_share(self._writer, boundary, beside)
        return None

    def _write_share(
        self, writer: CheckpointWriter[StepBoundary, CapturedTensors], boundary: StepBoundary, beside: bool
    ) -> None:
        """Takes part in the chief's save."""
        self._wait_for_share()
        if not isinstance(writer, ShardedWriter):
            writer.capture(boundary, copied=False)  # its collectives need every worker
            return
        try:
            captured = writer.capture(boundary, copied=beside)
        except SaveError:
            return  # it is one for all, and the chief reports it
        if beside and captured.is_copy:
            with contextlib.suppress(RuntimeError):  # no thread can be started: a limit was reached
                self._share = self._background.submit(partial(writer.write_share, captured))
                return
        writer.write_share(captured)

    def _wait_for_share(self) -> None:
        """Returns when the save in flight has ended, as far as this worker has a part in it."""
        if self._share is not None:
            self._share.result()
            self._share = None

    def settle(self) -> None:
        """Waits for the save in flight."""
        self._wait_for_share()
        super().settle()

    def close(self) -> None:
        """Waits for the save in flight, then releases the directory."""
        try:
            self._wait_for_share()
        finally:
            super().close()
            if self._gang.is_chief and self._link is not None:
                self._link.end()  # of a save that was captured and not begun: nobody is to wait for it

    def _report_held(self, step: int, flushes: tuple[int, ...]) -> str | None:
        """Reports the step that a checkpoint holds; a save that failed is not repeated, as no worker captured state."""
        if not self._gang.is_chief:
            return None
        started = time.monotonic()
        self._wait_for_save()
        if self._last is not None and self._last.step == step:
            self._report_already_saved(self._last, flushes, started)
            return None
        return self._report_cannot_save(step, flushes, f"cannot save step {step}: the save in flight failed")

    def _allow_exits(self) -> None:
        started = local_processes.find_local_processes()
        if started is not None:
            started.allow_exits()
