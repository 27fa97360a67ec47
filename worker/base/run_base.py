"""The base class of all runs: counts and reports steps, saves, replays, and has the script's loop checked."""

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, NoReturn

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Done, Progress
from worker.base.following_run import PARTS_REMEDY, FollowingRun
from worker.base.replayable_loop import ReplayableLoop
from worker.base.run_settings import RunSettings
from worker.process.attempt import DRAIN_TIMEOUT_S, DeliberateExit
from worker.process.proof_mode import ProofMode
from worker.process.reporting import describe_error
from worker.process.signals import StopSignals
from worker.process.startup import current_attempt
from worker.progress.divergence import Divergence, DivergenceWatch
from worker.progress.metrics import metric_values, replica_metrics
from worker.progress.tensorboard import TensorBoardWriter
from worker.state.run_state import HasState, RunState


class RunBase(ReplayableLoop):
    """A training run, as a context manager. `step` of `total_steps` steps are done (None: the loop decides)."""

    _parts_remedy = PARTS_REMEDY
    """What to write where a script trains in parts."""

    def __init__(self, settings: RunSettings) -> None:
        attempt = current_attempt()
        leave_out = settings.leave_out if attempt.proof is None else attempt.proof.without_left_out(settings.leave_out)
        state = RunState(settings.state, self._adapt_state, self._memory_of_parts)
        super().__init__(settings.total_steps, state, attempt, leave_out, settings.directory)
        self._strict = settings.strict
        self._on_nan = settings.on_nan
        self._stop = StopSignals(self._attempt.requests)
        self._tensorboard: TensorBoardWriter | None = None
        if settings.summaries is not None:
            self._tensorboard = TensorBoardWriter(settings.summaries, self._attempt.reporter, settings.summary_every)
            self._attempt.reporter = self._tensorboard
        self._summary: dict[str, Any] = {}
        self._divergence = DivergenceWatch(self._attempt.launch.loss_spike)
        self._is_open = False  # inside of `with`
        self._following = FollowingRun(attempt, settings.directory, self._parts_remedy)

    # --- the block of the run ---

    def _enter(self) -> None:
        """The script enters the run, which is not restored yet."""
        self._loop_checks.enter(sys._getframe(1))
        self._is_open = True
        self._attempt.leaving, self._attempt.failure_sent = None, False

    def _begin(self) -> None:
        """The state is restored, and the script's loop follows."""
        if self._attempt.launch.replay is not None:
            self._open_replays()
        self._stop.install()
        self._following.begin(self.step)
        self._begin_run_head()
        if self._attempt.proof is not None:
            kind = f"{type(self).__module__}.{type(self).__qualname__}"
            self._attempt.proof.begin_run(self._attempt.number, self.step, kind)
            if self._attempt.proof.watches_begin():
                self._attempt.proof.record_values(self._loop_checks.snapshot(sys._getframe(1)), is_begin=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_open = False
        self._leave_head()
        try:
            if error is None and self._attempt.leaving is not None:
                self._leave_nevertheless(self._attempt.leaving)
            elif error is None:
                if self._replays is not None:
                    self._replays.leave()
                self._end_loops()
                self._finish()
            elif not isinstance(error, DeliberateExit):
                self._failed(error)
        except BaseException as later:
            self._end_run(later)
            raise
        self._end_run(error)

    def _leave_nevertheless(self, code: WorkerExit) -> NoReturn:
        """Ends the process, whose exit the script has caught: training is not complete, so it is not to look so."""
        self._attempt.reporter.show_message(
            f"this process was to end at step {self.step}, and the script caught that (SystemExit); it ends now, and "
            f"training is not complete: let SystemExit pass"
        )
        self._attempt.leave(code)

    def _end_run(self, cause: BaseException | None) -> None:
        """Releases everything. `cause`: the exception that ends the run; a failure in here must not hide it."""
        try:
            self._loop_checks.close()
            self._stop.remove()
            self._release()
        except (Exception, DeliberateExit) as error:
            if cause is None:
                raise
            self._attempt.reporter.show_message(f"cannot end the run cleanly after that error: {describe_error(error)}")
        finally:
            self._attempt.reporter.drain(DRAIN_TIMEOUT_S)
            if self._tensorboard is not None:
                self._attempt.reporter, self._tensorboard = self._tensorboard.close(), None

    def _finish(self) -> None:
        """Training is complete."""
        self._save_now()
        self._following.end(self.step)
        self._export()
        results = metric_values({**self._metrics, **self._summary})
        self._attempt.reporter.send_message(Done(self._attempt.number, self.step, results))

    def _export(self) -> None:
        """Exports the trained model, if this kind of run can."""

    def _release(self) -> None:
        """Releases what the run holds, however it ended."""
        self._checkpoints.close()

    def _failed(self, error: BaseException) -> None:
        self._attempt.report_exception(error, self.step)

    def _require_with(self, what: str) -> None:
        if self._is_open:
            return
        kind = type(self)
        name = f"{kind.__module__.removesuffix('.run').removesuffix('.run').removesuffix('.files_run')}.{kind.__name__}"
        if self._loop_checks.was_entered:
            raise RuntimeError(f"cannot use {what} after the end of the with block of {name}: training is complete")
        raise RuntimeError(
            f"cannot use {what}: the run was not entered, so no checkpoint was restored and none would be saved; "
            f'write "with {name}(...) as run:" around the loop'
        )

    def _explain_own_restore(self, steps: int) -> None:
        """Says what follows if the script restored its state of `steps` steps itself. Called if a script's first run
        begins at step 0. It may also have trained on purpose before the run, so this is never an error."""
        if steps:
            self._attempt.reporter.show_message(
                f"this run counts from step 0, but {counted(steps, 'step')} had been made before; if the script "
                f"restores a checkpoint of its own, take that out: after a death in the first steps it would restore "
                f"another one; to start from that checkpoint, name it as initial_checkpoint"
            )

    def _adapt_state(self, value: Any) -> HasState | None:
        """Gives and takes the state of an object of this run's framework, for `run.state`; None for other values."""
        return None

    def _memory_of_parts(self) -> Collection[int]:
        """Where the memory of PyTorch tensors begins that the run restores itself, for `run.state`."""
        return frozenset()

    # --- a step and what follows it ---

    def _end_step(self, frame: FrameType, metrics: Mapping[str, Any]) -> None:
        """A step was counted, in the loop of `frame`: records and reports it, and saves if it is time.

        `metrics`: as the script gave them.
        """
        self._attempt.requests.step = self.step
        self._checkpoints.record_step()
        if not self._is_checked:
            self._is_checked = True
            self._check_first_step(frame)
            if self._replays is not None and not self._reads_batches:
                self._replays.give_up(self._why_no_replays)
        elif self._loop_checks.is_watching:
            self._report_changed_values(frame)
        self._write_summary()
        if self._report_progress():
            self._check_divergence()
        if self._attempt.proof is not None:
            self._record_for_proof(self._attempt.proof, frame, metrics)
        if self._boundary_waits:  # a loop was left in the pass before
            self._end_pass()
        elif self._reading is not None and self._loop_checks.has_code_behind_step(frame):
            self._boundary_waits = True
        elif not self._body_step:
            self._on_step_boundary()

    def _check_first_step(self, frame: FrameType) -> None:
        """Says what a restart would not bring back, and on what else training continues than before."""
        raise NotImplementedError

    def _on_step_boundary(self) -> None:
        self._loop_checks.begin_step()
        if self._attempt.proof is not None:
            self._follow_proof(self._attempt.proof)
        saves = self._checkpoints.has_work(self.step) or bool(self._attempt.requests.pending_exports)
        if saves:
            self._report_section("save")
        self._serve_exports()
        self._checkpoints.on_step_boundary(self.step, self._step_boundary)
        if saves:
            self._report_section(None)

    def _step_boundary(self) -> Any:
        """What this run's checkpoints have to know of the present step."""
        raise NotImplementedError

    def _save_now(self) -> None:
        self._checkpoints.save_final(self._step_boundary())

    def _serve_exports(self) -> None:
        """Answers the exports that were requested, if this kind of run can."""

    def _record_for_divergence(self, metrics: Mapping[str, Any], batches: Iterable[tuple[int, int]] = ()) -> None:
        """Keeps the metrics of this step for `_check_divergence`. `batches`: of the step, as epoch and batch."""
        if self._on_nan != "off":
            self._divergence.record_step(self.step, metrics, batches)

    def _check_divergence(self) -> None:
        """Exits if a metric since the last check shows that training diverged."""
        divergence = self._divergence.find_divergence() if self._on_nan != "off" else None
        if divergence is not None:
            self._exit_diverged(divergence)

    def _not_finite(self, step: int, text: str, fine_at: int) -> NoReturn:
        """A save of `step` was refused because the state is not finite; the checkpoint of `fine_at` was."""
        self._exit_diverged(self._divergence.divergence_at(step, text, fine_at))

    def _exit_diverged(self, divergence: Divergence) -> NoReturn:
        text, batches = self._leave_out_batches(divergence)
        self._attempt.exit_diverged(text, divergence.step, self._on_nan in ("rollback", "skip"), batches)

    def _leave_out_batches(self, divergence: Divergence) -> tuple[str, tuple[str, ...]]:
        """Has later attempts leave out what training diverged on. Returns what to say, and the batches."""
        return divergence.text, ()

    # --- proofs ---

    def _record_for_proof(self, proof: ProofMode, frame: FrameType, metrics: Mapping[str, Any]) -> None:
        place = self._position.epoch, self._position.batch, self._position.examples
        proof.record_step(self.step, place, metrics, lambda: self._loop_checks.snapshot(frame))

    def _follow_proof(self, proof: ProofMode) -> None:
        """Does at a step boundary what a proof of exactness has planned; training may end here, as complete."""
        if proof.follow_plan(self._save_now, self._checkpoints.settle):
            self._finish()
            self._attempt.leave(WorkerExit.DONE)

    # --- reports ---

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

    def _write_summary(self) -> None:
        if self._tensorboard is not None and self._tensorboard.is_due(self.step):
            means, replicas = metric_values(self._metrics), replica_metrics(self._metrics)
            self._tensorboard.write_step(self.step, means, replicas, self._checkpoints.paused_s, self._rows)

    @property
    def _rows(self) -> int | None:
        """The number of examples in a step; None if the script does not get them from the run."""
        return None

    def _report_progress(self) -> bool:
        """Reports a step to the daemon, if it is time. Returns whether it did."""
        checkpoints, copy = self._checkpoints, self._checkpoints.newest_copy
        return self._reports.send(
            self.step,
            checkpoints.paused_s,
            lambda step_s: Progress(
                self._attempt.number,
                self.step,
                self._position.epoch,
                self._expected_steps,
                step_s,
                metric_values(self._metrics),
                checkpoints.interval_s,
                data_s=self._pop_data_wait_s(),
                saving_s=checkpoints.saving_s,
                memory_step=None if copy is None else copy.step,
                memory_interval_s=None if copy is None else copy.interval_s,
                memory_cost_s=None if copy is None else copy.cost_s,
            ),
            is_last=self.reached,
        )
