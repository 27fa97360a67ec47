"""A loop whose steps may be trained a second time (`replay`): what a replay reads, puts back and counts of the loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.base.checked_loop import CheckedLoop
from worker.process.attempt import Attempt
from worker.progress.metrics import metric_values
from worker.progress.progress_reports import ProgressReports
from worker.replay.replayed_run import LoopAccess, LoopState, ReplayedRun
from worker.replay.replays import NO_BATCHES, Replays, report_no_replays
from worker.state.run_state import RunState


class ReplayableLoop(CheckedLoop):
    """The loops of a run, with replays if the job asks for them."""

    _why_no_replays = NO_BATCHES
    """Why no step is trained a second time where the run does not read the batches."""

    def __init__(
        self,
        total_steps: int | None,
        state: RunState,
        attempt: Attempt,
        leave_out: tuple[Any, ...],
        directory: Path | None,
    ) -> None:
        super().__init__(total_steps, state, attempt, leave_out)
        self._directory = directory
        self._metrics: Mapping[str, Any] = {}  # of the newest step
        self._reports = ProgressReports(attempt)
        self._replays: Replays[Any, Any] | None = None
        self._is_replaying = False  # steps are trained a second time, and don't count

    @property
    def _reads_batches(self) -> bool:
        """Whether the script takes its batches from this run."""
        return False

    def _replayed_run(self, loop: LoopAccess) -> ReplayedRun[Any] | None:
        """What replays copy, put back and compare; None if this kind of run has none."""
        return None

    @property
    def _trains_with_others(self) -> bool:
        """Whether several processes train together."""
        return False

    def _open_replays(self) -> None:
        """The job asks for steps to be trained a second time."""
        loop = LoopAccess(
            self._read_loop,
            self._read_passes,
            lambda: self.step,
            self._write_loop,
            lambda: self._consumed is None,
            self._begin_replay,
            self._end_replay,
            self._on_step_boundary,
            metric_values,
        )
        replayed = self._replayed_run(loop)
        if replayed is None:
            report_no_replays(self._attempt, self._why_no_replays)
            return
        self._replays = Replays(replayed, self._attempt, self._directory)
        if self._trains_with_others:
            self._replays.give_up("several processes train together")

    def _read_passes(self) -> Mapping[str, Any]:
        """The passes over the data that were made."""
        return {}

    def _read_loop(self) -> LoopState:
        values, generators = self.state.copied(), self._read_generators()
        return LoopState(self.step, self._position, values, generators, self._metrics, self._read_passes())

    def _write_loop(self, loop: LoopState) -> None:
        self.step, self._position, self._metrics, self._consumed = loop.step, loop.position, loop.metrics, None
        self.state.put_back(loop.values)
        self._write_generators(loop.generators)

    def _begin_replay(self) -> None:
        self._is_replaying = True
        self._report_replay()

    def _count_replayed_step(self, metrics: Mapping[str, Any]) -> None:
        """A step was done a second time: it counts for the loop and for nobody else."""
        self._metrics = metrics
        self.step += 1
        if self._consumed is not None:
            self._position, self._consumed = self._consumed, None
        self._report_replay()

    def _report_replay(self) -> None:
        """Reports that the loop is alive: a step was done a second time."""
        if self._reports.is_alive_due():
            self._report_section(None)

    def _end_replay(self, took_s: float) -> None:
        self._checkpoints.replayed_s += took_s
        self._is_replaying = False
        self._report_section(None)

    def _report_section(self, section: str | None) -> None:
        """Reports what the loop does from now on."""
        section = section or ("replay" if self._is_replaying else None)
        self._reports.send_section(section, self._pop_data_wait_s, self._checkpoints.saving_s)

    def _pop_data_wait_s(self) -> float | None:
        """Seconds spent waiting for data since the last report; None if the script does not get them from the run."""
        return None
