"""A loop whose script is checked: what of it would not come back after a restart, and what is wrong already.

`worker.checks` finds it. Here is when it is asked, and what the run knows and the checks don't. Some is refused with an
error, the rest is named: at the first step, or later once it is seen.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from worker.checks.findings import Finding
from worker.checks.loop_checks import LoopChecks
from worker.checks.reachability import Root
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.set_once import keep_set_once, read_set_once
from worker.process.attempt import Attempt
from worker.progress.index_loops import IndexLoops
from worker.saving.scheduler import SaveScheduler
from worker.state.run_state import RunState


class CheckedLoop(IndexLoops):
    """The loops of a run, as the script has written them."""

    _checkpoints: SaveScheduler[Any, Any]
    _directory: Path | None
    _writes_directory = True
    """Whether this process may write into it: of several that train together, one does."""
    _seeded_by_epoch = "numpy.random.default_rng(epoch)"
    """A generator that each epoch can make for itself."""

    def __init__(self, total_steps: int | None, state: RunState, attempt: Attempt, leave_out: tuple[Any, ...]) -> None:
        """`leave_out`: objects and names of what may begin anew."""
        super().__init__(total_steps, state)
        self._attempt = attempt
        self._leave_out = leave_out
        self._numbered = False  # the script says the place of its steps itself
        self._is_checked = False  # the first step was looked at
        self._has_recorded = False  # what the first pass has set
        self._made_in_epoch: list[Finding] = []  # of the data
        self._in_head: list[Finding] = []  # of an epoch, that a restart has done again
        self._for_batches: tuple[int, list[Finding]] = 0, []  # the same, if batches of that epoch are left
        self._in_run_head: list[Finding] = []  # what stands between the `with` and the loop
        self._generators_at_begin: bytes | None = None  # at the `with`, until the loop begins
        self._loop_checks = LoopChecks(self, self._pulls, leave_out, self._keep, state)

    def _find_lost_values(self, frame: FrameType | None) -> list[Finding]:
        """What of the loop around the first step, in `frame`, would not come back. From now on changes are watched."""
        self._settle_head(frame)  # of a body that reads nothing of the run, with its first step
        checks = self._loop_checks
        loops = checks.loops_around_step(frame, reads=self._reading is not None, numbered=self._numbered)
        if not checks.has_begun_pass:
            self._begin_watch(None)
        values = checks.watch_values(self.step, self._position.epoch, frame, head_draws=self._head.draws)
        self._note_head_values()
        self._record_set_once()
        epoch, for_batches = self._for_batches
        in_head = [*self._in_head, *(for_batches if epoch == self._position.epoch else ())]
        return [*self._in_run_head, *in_head, *self._made_in_epoch, *loops, *values]

    def _begin_watch(self, frame: FrameType | None) -> None:
        """The first pass of the script's loop begins in `frame`, or somewhere if that is None."""
        self._loop_checks.begin_watch(frame, self._watched_roots, self._functions_of_data, self._recorded)

    def _begin_body(self, asks: FrameType | None = None) -> None:
        super()._begin_body(asks)
        if not self._is_checked and asks is None:
            self._begin_watch(sys._getframe(1))

    def _end_head(self) -> None:
        is_again = self._resumed_within
        super()._end_head()
        if not self._is_checked and self._loop_checks.was_entered:
            frame = sys._getframe(1)
            self._begin_watch(frame)
            if is_again and self._body is not None and self._body.epoch == self._position.epoch:
                epoch = self._body.epoch
                for_batches, self._in_head = self._loop_checks.head_otherwise(frame, self._body.made, epoch)
                self._for_batches = epoch, for_batches

    def _recorded(self) -> dict[str, int]:
        """What the first pass has set in the processes before."""
        is_new = self.step == 0 and not self._resumed_within
        return {} if is_new or self._directory is None else read_set_once(self._directory)

    def _record_set_once(self) -> None:
        """Keeps for later processes what the first pass has set."""
        self._has_recorded, digests = self._loop_checks.knows_set_once, self._loop_checks.set_once
        if digests is None or self._directory is None or not self._writes_directory:
            return
        with contextlib.suppress(RuntimeError):  # no thread can be started: a restart has less to compare
            Thread(
                target=keep_set_once, args=(self._directory, digests), name="stepkeeper-set-once", daemon=True
            ).start()

    def _begin_run_head(self) -> None:
        """The script has entered the run."""
        if self._loop_checks.was_entered:
            self._begin_watch(sys._getframe(1))
        self._generators_at_begin = self._digest_generators() if self.step == 0 else None

    def _end_run_head(self) -> None:
        """The script's loop begins."""
        before, self._generators_at_begin = self._generators_at_begin, None
        if before is not None:
            draws = before != self._digest_generators()
            self._in_run_head = self._loop_checks.changed_in_run_head(draws=draws)

    def _report_changed_values(self, frame: FrameType | None) -> None:
        """Names what changed since the last look and no checkpoint holds."""
        self._report_findings(self._loop_checks.changed_values(self.step, self._position.epoch, frame))
        self._note_head_values()
        if not self._has_recorded and self._loop_checks.knows_set_once:
            self._record_set_once()
        while self._loop_checks.remarks:
            self._attempt.reporter.show_message(self._loop_checks.remarks.pop(0))

    def _note_head_values(self) -> None:
        """Has checkpoints know what the head of this epoch has made."""
        if self._body is not None and self._body.epoch == self._position.epoch:
            made = self._loop_checks.made_in_head(self._body.epoch)
            if made != self._body.made:
                self._body = replace(self._body, made=dict(made))

    def _keep(self, kept: Kept) -> None:
        """Adds what this run's checkpoints hold, besides `run.state`."""
        if not self._gives_order_again:  # of one that is shuffled from epoch to epoch, a restart has the first
            kept.identities.add(id(self._given_order))  # its copy is saved

    def _watched_roots(self) -> list[Root]:
        """Where the watch begins, besides the names of the loop."""
        return []

    def _functions_of_data(self) -> Sequence[Root]:
        """The script's functions that make the data ahead of the steps, and the objects whose methods they are."""
        return ()

    def _report_findings(self, findings: Sequence[Finding]) -> None:
        """Names what would not come back after a restart; ends a strict training."""
        self._checkpoints.report_findings(findings, self.step)

    def _check_loops(self) -> None:
        self._end_run_head()
        if not self._in_epochs:
            asks_where = self._reads_epoch or self.total_steps is not None
            text = self._loop_checks.explain_loop_that_begins_again(sys._getframe(1), asks_where=asks_where)
            if text is not None:
                raise RuntimeError(text)
        self._settle_head(sys._getframe(1))

    def _settle_head(self, frame: FrameType | None) -> None:
        self._head.settle(lambda places: self._loop_checks.first_in_loop(frame, places))

    def _check_data_of_epoch(self, data: Any, dataset: Any = None) -> None:
        """Notes what of the data, of which the script begins to read an epoch, each epoch makes anew from what a
        restart does not bring back. Named with the first step, or at once behind it. `dataset`: on which alone it
        depends what `data` gives."""
        seeds_before, self._head.seeds_before = self._head.seeds_before, None
        if self._made_in_epoch or any(data is value for value in self._leave_out):
            return
        if self.step == 0 and self._head.draws:
            self._made_in_epoch = self._loop_checks.data_drawn_in_head(
                sys._getframe(1), data, dataset, self._seeded_by_epoch
            )
        if not self._made_in_epoch and seeds_before is not None:
            self._made_in_epoch = self._find_seeded_in_epoch(data, seeds_before)
        if self._is_checked:
            self._report_findings(self._made_in_epoch)

    def _find_seeded_in_epoch(self, data: Any, seeds_before: Any) -> list[Finding]:
        """What of the data has taken seeds from the framework's sequence since `seeds_before`, the beginning of the
        epoch's body."""
        del data, seeds_before
        return []

    def _check_loops_behind_data(self) -> None:
        self._report_findings(self._loop_checks.steps_behind_data(sys._getframe(1)))

    def _report_reading_ahead(self) -> None:
        self._report_findings([self._loop_checks.reading_ahead(sys._getframe(1), self._reading)])

    def _explain_second_step(self, reading: str | None) -> str:
        return self._loop_checks.explain_second_step(sys._getframe(1), reading)

    def _say_other_order(self, before: int, now: int) -> None:
        self._attempt.reporter.show_message(
            f"training continues on other data than before: the order of run.order has {now} entries, had {before}"
        )
