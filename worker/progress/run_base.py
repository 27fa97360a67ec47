"""The base class of all runs, whatever writes their checkpoints: counts steps, reports progress, checks the loop."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.messages import Progress, WorkerExit
from worker.checks.findings import Finding
from worker.checks.loop_source import Entered, ScriptFrame, names_in_loops, script_frame_of, script_frames
from worker.checks.own_loops import LoopJudge
from worker.checks.reachability import Root, roots_of_frame
from worker.checks.value_snapshot import snapshot
from worker.checks.watch.kept_values import Kept
from worker.checks.watch.step_watch import StepWatch
from worker.process.attempt import DRAIN_TIMEOUT_S, DeliberateExit
from worker.process.proof_mode import ProofMode
from worker.process.reporting import describe_error
from worker.process.signals import StopSignals
from worker.process.startup import current_attempt
from worker.progress.arguments import check_list, check_total_steps
from worker.progress.index_loops import IndexLoops
from worker.progress.tensorboard import TensorBoardWriter
from worker.state.run_state import HasState, RunState

PROGRESS_INTERVAL_S = 0.1  # between two progress messages; each one waits for the step's metrics


_PROVE = "whether a kill changes a bit, a proof of the job shows"


class RunBase(IndexLoops):
    """A training run, as a context manager. `step` of `total_steps` steps are done (None: the loop decides)."""

    def __init__(
        self,
        total_steps: int | None,
        summaries: str | Path | None,
        summary_every: int,
        state: Mapping[str, Any] | None = None,
        leave_out: Iterable[Any] = (),
    ) -> None:
        super().__init__(check_total_steps(total_steps), RunState(state, self._adapt_state))
        self._leave_out = check_list(leave_out, "leave_out", "[teacher]")
        self._attempt = current_attempt()
        if self._attempt.proof is not None:
            self._leave_out = self._attempt.proof.without_left_out(self._leave_out)
        self._stop = StopSignals(self._attempt.requests)
        self._tensorboard: TensorBoardWriter | None = None
        if summaries is not None:
            self._tensorboard = TensorBoardWriter(Path(summaries), self._attempt.reporter, summary_every)
            self._attempt.reporter = self._tensorboard
        self._summary: dict[str, Any] = {}
        self._reported_at: float | None = None  # monotonic, without the time that saves took
        self._reported_step = 0
        self._last_progress: Progress | None = None
        self._entered: Entered | None = None
        self._is_open = False  # inside of `with`
        self._is_replaying = False  # steps are trained a second time, and don't count
        self._replay_reported_at = 0.0
        self._checked_sites: set[Any] = set()  # where `batches` is called
        self._numbered = False  # the script says the place of its steps itself
        self._step_watch: StepWatch | None = None  # from the first step on, until nothing is compared any more

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            if error is None:
                self._leave_replay()
                self._end_loops()
                self._finish()
            elif not isinstance(error, DeliberateExit):
                self._failed(error)
        except BaseException as later:
            self._end_run(later)
            raise
        self._end_run(error)

    def _end_run(self, cause: BaseException | None) -> None:
        """Releases everything. `cause`: the exception that ends the run; a failure in here must not hide it."""
        try:
            if self._step_watch is not None:
                self._step_watch.close()
            self._stop.remove()
            self._release()
        except (Exception, DeliberateExit) as error:
            if cause is None:
                raise
            self._attempt.reporter.show_message(f"cannot end the run cleanly after that error: {describe_error(error)}")
        finally:
            self._attempt.reporter.drain(DRAIN_TIMEOUT_S)
            self._close_tensorboard()

    def _adapt_state(self, value: Any) -> HasState | None:
        """Gives and takes the state of an object of this run's framework, for `run.state`; None for other values."""
        return None

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Wrap an evaluation between two steps in this, so that its duration is not taken for a hang of training."""
        self._report_section("evaluation")
        try:
            yield
        finally:
            self._report_section(None)

    def summary(self, **metrics: Any) -> None:
        """Results of the whole training, of an evaluation for example; reported together with `done`."""
        self._summary |= metrics

    def _enter(self) -> None:
        """The script enters the run; the caller of `__enter__` is the frame of its `with`."""
        frame = script_frame_of(sys._getframe(2))
        self._entered = None if frame is None else Entered(frame.f_code, frame.f_lineno)
        self._is_open = True

    def _explain_own_restore(self, steps: int) -> None:
        """Says what follows if the script restored its state of `steps` steps itself. Called if a script's first run
        begins at step 0. It may also have trained on purpose before the run, so this is never an error."""
        if steps:
            self._attempt.reporter.show_message(
                f"this run counts from step 0, but {counted(steps, 'step')} had been made before; if the script "
                f"restores a checkpoint of its own, take that out: after a death in the first steps it would restore "
                f"another one; to start from that checkpoint, name it as initial_checkpoint"
            )

    def _require_with(self, what: str) -> None:
        """Raises RuntimeError unless the script is inside of `with`: else nothing was restored or would be saved."""
        if self._is_open:
            return
        kind = type(self)
        name = f"{kind.__module__.removesuffix('.run').removesuffix('.run').removesuffix('.files_run')}.{kind.__name__}"
        if self._entered is not None:
            raise RuntimeError(f"cannot use {what} after the end of the with block of {name}: training is complete")
        raise RuntimeError(
            f"cannot use {what}: the run was not entered, so no checkpoint was restored and none would be saved; "
            f'write "with {name}(...) as run:" around the loop'
        )

    def _roots_of_loop(self, frame: FrameType) -> list[Root]:
        """What training can reach from the frame of its loop: the names that the loop uses."""
        frames = script_frames(frame, self._entered)
        names = names_in_loops(frames[0]) if frames and frames[0].frame is script_frame_of(frame) else None
        return [root for root in roots_of_frame(frame) if names is None or root[0] in names]

    def _find_lost_values(self, frame: FrameType | None) -> list[Finding]:
        """The values that the loop in `frame` carries and no checkpoint would hold. Called at the first step; from now
        on, what changes is watched."""
        self._note_draws()  # of a body that reads nothing of the run, with its first step
        self._step_watch = StepWatch(
            self._keep_all,
            (self, *self._leave_out),
            self.state.items,
            self._entered,
            self._watched_roots(),
            self._head_draws,
        )
        loops = self._judge_loops(script_frames(frame, self._entered))
        return [*loops, *self._step_watch.look(self.step, self._position.epoch, frame)]

    def _find_changed_values(self, frame: FrameType | None) -> list[Finding]:
        """What changed since the last look and no checkpoint holds. Called while `_step_watch` is set."""
        watch = self._step_watch
        if watch is None:
            return []
        try:
            found = watch.look(self.step, self._position.epoch, frame)
        except Exception as error:  # noqa: BLE001 - it inspects objects of every kind, and must not end training
            watch.close()
            self._step_watch = None
            return [Finding(f"some values, perhaps: comparing them failed with {describe_error(error)}", _PROVE)]
        if watch.is_over:
            watch.close()
            if watch.not_looked_at:
                self._attempt.reporter.show_message(
                    "the loop reaches more than could be compared between steps in a quarter of a second, so some of "
                    "what changes may not be named; to be sure, prove the job"
                )
            self._step_watch = None
        return found

    def _keep_all(self, kept: Kept) -> None:
        self._keep(kept)
        kept.identities.add(id(self._given_order))  # its copy is saved

    def _keep(self, kept: Kept) -> None:
        """Adds what this run's checkpoints hold, besides `run.state`."""

    def _watched_roots(self) -> list[Root]:
        """Where the watch begins, besides the names of the loop."""
        return []

    def _check_loops(self) -> None:
        """Raises RuntimeError if a loop around `batches` would begin again after a restart. Called by `batches`."""
        if self._in_epochs:
            return
        caller = script_frame_of(sys._getframe(2))
        site = None if caller is None else (caller.f_code, caller.f_lasti)
        is_new, frames = site not in self._checked_sites, script_frames(caller, self._entered)
        self._checked_sites.add(site)
        if is_new:
            if (text := LoopJudge(frames, self, self._pulls).explain_loop_that_begins_again()) is not None:
                raise RuntimeError(text)
        elif not frames and not self._reads_epoch and self.total_steps is None:
            raise RuntimeError(
                "cannot resume a loop that calls run.batches for each epoch: after a restart it begins again; write "
                '"for epoch in run.epochs(n):" around it'
            )

    def _begin(self) -> None:
        """The state is restored, and the script's loop follows."""
        self._stop.install()
        if self._attempt.proof is not None:
            kind = f"{type(self).__module__}.{type(self).__qualname__}"
            self._attempt.proof.begin_run(self._attempt.number, self.step, kind)
            if self._attempt.proof.watches_begin():
                self._attempt.proof.record_values(snapshot(sys._getframe(1), self._entered), is_begin=True)

    def _record_for_proof(self, proof: ProofMode, metrics: Mapping[str, Any]) -> None:
        """Records a step for a proof of exactness."""
        position, frame = self._position, sys._getframe(1)
        place = position.epoch, position.batch, position.examples
        proof.record_step(self.step, place, metrics, lambda: snapshot(frame, self._entered))

    def _follow_proof(self, proof: ProofMode, save: Callable[[], object], settle: Callable[[], object]) -> None:
        """Does at a step boundary what a proof of exactness has planned; training may end here, as complete."""
        if proof.follow_plan(save, settle):
            self._finish()
            raise DeliberateExit(int(WorkerExit.DONE))

    def _judge_loops(self, frames: Sequence[ScriptFrame]) -> list[Finding]:
        """What of the loops around a step begins anew after a restart, or reads ahead of it."""
        judge, names = LoopJudge(frames, self, self._pulls), frozenset(map(str, self._leave_out))
        breaks = [] if "break" in names else judge.early_ends()
        loops = [] if "loop" in names else judge.own_loops(self._reading is not None, self._numbered)
        return [*breaks, *loops, *judge.own_numbers(names)]

    def _check_loops_behind_data(self) -> None:
        judge = LoopJudge(script_frames(sys._getframe(1), self._entered), self, self._pulls)
        self._report_findings(judge.steps_behind_data())

    def _report_findings(self, findings: Sequence[Finding]) -> None:
        """Names what would not come back after a restart; ends a strict training."""
        raise NotImplementedError

    def _report_reading_ahead(self) -> None:
        where = (
            ""
            if (frame := script_frame_of(sys._getframe(1))) is None
            else (f" ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        )
        self._report_findings(
            [
                Finding(
                    f"the position in what {self._reading} gives{where}, which is read ahead of the steps",
                    "a restart would leave out what was read and not trained on; read ahead in the data, before "
                    "run.batches: dataset.prefetch(2), DataLoader(num_workers=2)",
                )
            ]
        )

    def _say_other_order(self, before: int, now: int) -> None:
        self._attempt.reporter.show_message(
            f"training continues on other data than before: the order of run.order has {now} entries, had {before}"
        )

    def _explain_second_step(self, reading: str | None) -> str:
        frames = script_frames(sys._getframe(1), self._entered)
        return LoopJudge(frames, self, self._pulls).explain_second_step(reading)

    @property
    def _saving_s(self) -> float | None:
        """For how long the save in progress has been written beside training; None if there is none."""
        return None

    def _pop_data_wait_s(self) -> float | None:
        """Seconds spent waiting for data since the last report; None if the script does not get them from the run."""
        return None

    def _finish(self) -> None:
        """Training is complete."""
        raise NotImplementedError

    def _release(self) -> None:
        """Releases what the run holds, however it ended."""
        raise NotImplementedError

    def _failed(self, error: BaseException) -> None:
        self._attempt.report_exception(error, self.step)

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None:
            self._attempt.reporter, self._tensorboard = self._tensorboard.close(), None

    def _report_progress(
        self,
        epoch: int,
        metrics: Callable[[], Mapping[str, float]],
        interval_s: float | None,
        stalled_s: float,
    ) -> bool:
        """Reports progress to the daemon, at most ten times a second. Returns whether it did.

        `stalled_s`: for how long saves and replays have stopped training so far, which does not count as a step's time.
        """
        now = time.monotonic() - stalled_s
        elapsed_s = None if self._reported_at is None else now - self._reported_at
        if elapsed_s is not None and elapsed_s < PROGRESS_INTERVAL_S and not self.reached:
            return False
        step_s = None if elapsed_s is None else elapsed_s / (self.step - self._reported_step)
        self._reported_at, self._reported_step = now, self.step
        self._last_progress = Progress(
            self._attempt.number,
            self.step,
            epoch,
            self.total_steps,
            step_s,
            metrics(),
            interval_s,
            data_s=self._pop_data_wait_s(),
            saving_s=self._saving_s,
        )
        self._attempt.reporter.send_progress(self._last_progress)
        return True

    def _begin_replay(self) -> None:
        """Steps are trained a second time from now on."""
        self._is_replaying = True
        self._report_replay()

    def _leave_replay(self) -> None:
        """The loop was left: if that was while steps were trained a second time, puts the state before that back."""

    def _count_replayed_step(self) -> None:
        """A step was done a second time: it counts for the loop and for nobody else."""
        self.step += 1
        if self._consumed is not None:
            self._position, self._consumed = self._consumed, None
        self._report_replay()

    def _report_replay(self) -> None:
        """Reports that the loop is alive, at most ten times a second: a step was done a second time."""
        now = time.monotonic()
        if now - self._replay_reported_at >= PROGRESS_INTERVAL_S:
            self._replay_reported_at = now
            self._report_section(None)

    def _end_replay(self, took_s: float) -> None:
        """Steps are new again, after so long."""
        self._is_replaying = False
        self._report_section(None)

    def _report_section(self, section: str | None) -> None:
        """Reports what the loop does from now on. Does nothing before the first report of progress."""
        section = section or ("replay" if self._is_replaying else None)
        if self._last_progress is not None:
            saving_s = self._saving_s
            self._last_progress = replace(
                self._last_progress, section=section, data_s=self._pop_data_wait_s(), saving_s=saving_s
            )
            self._attempt.reporter.send_progress(self._last_progress)
