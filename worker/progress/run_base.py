"""The base class of all runs, whatever writes their checkpoints: counts steps and epochs, reports progress.

An epoch is done when the body of the script's loop over epochs ends, not at its last step: what stands behind the loop
over the batches (a scheduler's step, an evaluation) belongs to it. Until then `_position` stays behind the epoch's last
batch. So a restart from the checkpoint of that step yields no batch, runs the rest of the body again, from the state of
that step, and goes on. The body ends when `epochs` resumes, at the next `batches`, when `epoch` is read after the data
have ended, or with the run.

A restart in the middle of an epoch runs the head of the body again too, what stands before the loop over the batches.
What the head changes of the saved state is put back before the first batch (`_copy_saved_state`).
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.launch import ON_NAN
from supervisor.protocol.wire.messages import Progress
from worker.checks.findings import Finding
from worker.checks.loop_source import (
    Entered,
    explain_loop_that_begins_again,
    names_in_loops,
    script_frame_of,
    script_frames,
)
from worker.checks.loop_values import ContainerWatch, carried_values
from worker.checks.reachability import Root, roots_of_frame
from worker.process.attempt import DRAIN_TIMEOUT_S, DeliberateExit
from worker.process.reporting import describe_error
from worker.process.signals import StopSignals
from worker.process.startup import current_attempt
from worker.progress.arguments import check_list, check_total_steps
from worker.progress.tensorboard import TensorBoardWriter
from worker.state import random_generators
from worker.state.run_state import HasState, RunState
from worker.state.state_file import Position

CONTAINERS_COMPARED = 2  # steps after the first one
Batch = Any
"""What the loop trains on in one step, whatever the framework calls it."""

PROGRESS_INTERVAL_S = 0.1  # between two progress messages; each one waits for the step's metrics
MAX_METRICS = 100  # a message on the control pipe has at most 64 KiB


class RunBase:
    """A training run, as a context manager. `step` of `total_steps` steps are done (None: the loop decides)."""

    def __init__(
        self,
        total_steps: int | None,
        summaries: str | Path | None,
        summary_every: int,
        state: Mapping[str, Any] | None = None,
        leave_out: Iterable[Any] = (),
    ) -> None:
        self.step = 0
        self._leave_out = check_list(leave_out, "leave_out", "[teacher]")
        self.state = RunState(state, self._adapt_state)
        """Python values of the loop, by name, which each checkpoint holds."""
        self.total_steps = check_total_steps(total_steps)
        self._attempt = current_attempt()
        self._stop = StopSignals(self._attempt.requests)
        self._tensorboard: TensorBoardWriter | None = None
        if summaries is not None:
            self._tensorboard = TensorBoardWriter(Path(summaries), self._attempt.reporter, summary_every)
            self._attempt.reporter = self._tensorboard
        self._summary: dict[str, Any] = {}
        self._reported_at: float | None = None  # monotonic, without the time that saves took
        self._reported_step = 0
        self._last_progress: Progress | None = None
        self._position = Position()  # behind the newest step; its epoch's body is not done
        self._data_ended = False  # the epoch has no more batches, so only the tail of its body is left
        self._in_epochs = False  # inside `for epoch in run.epochs(n)`
        self._last_epoch: int | None = None  # of `epochs`
        self._resumed_within = False  # restored in the middle of an epoch's body, whose head is not done again yet
        self._put_back: Callable[[], None] | None = None
        self._entered: Entered | None = None
        self._is_open = False  # inside of `with`
        self._loops_checked = False
        self._reads_epoch = False  # the script asked where to begin
        self._containers: ContainerWatch | None = None  # until the first steps are compared

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            if error is None:
                if self._data_ended:
                    self._end_epoch()
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
            self._stop.remove()
            self._release()
        except (Exception, DeliberateExit) as error:
            if cause is None:
                raise
            self._attempt.reporter.show_message(f"cannot end the run cleanly after that error: {describe_error(error)}")
        finally:
            self._attempt.reporter.drain(DRAIN_TIMEOUT_S)
            self._close_tensorboard()

    @property
    def reached(self) -> bool:
        """Whether all steps are done."""
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def epoch(self) -> int:
        """The epoch in which training is, from 0.

        Outside of `epochs`, an epoch whose data have ended is done when this is read: for `while run.epoch < n` and
        `for epoch in range(run.epoch, n)`.
        """
        self._require_with("run.epoch")
        self._reads_epoch = True
        if not self._in_epochs:
            if self._data_ended:
                self._end_epoch()
            self._begin_body()
        return self._position.epoch

    @property
    def batch(self) -> int:
        """The next batch of the epoch, from 0: `for number, batch in enumerate(run.batches(data), run.batch)`."""
        self._end_head()
        return self._position.batch

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the epochs that are left of `count`: `for epoch in run.epochs(10):`.

        It begins with the epoch that the restored checkpoint is in. An epoch is done when the loop's body ends; after a
        restart behind its last step, `batches` yields nothing and the rest of the body runs. Ends early when
        `total_steps` are done. Raises TypeError for a count that is no number, RuntimeError inside another `epochs`.
        """
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"cannot train for {count!r} epochs; give run.epochs a number, as in run.epochs(10)")
        self._require_with("run.epochs")
        return self._epochs(int(count))

    def _epochs(self, count: int) -> Iterator[int]:
        if self._in_epochs:
            raise RuntimeError("cannot begin run.epochs inside of another run.epochs: one loop counts the epochs")
        if self._data_ended:
            self._end_epoch()
        self._in_epochs, self._last_epoch = True, count - 1
        try:
            # a restart from the last step has to do the tail of its epoch
            while self._position.epoch < count and (not self.reached or self._is_within_epoch):
                self._begin_body()
                epoch = self._position.epoch
                yield epoch
                if self._position.epoch == epoch:
                    self._end_epoch()
        finally:
            self._in_epochs = False

    def _over_epochs(
        self, rest_of_epoch: Callable[[], Iterator[Batch]], skip_rest: Callable[[], None] = lambda: None
    ) -> Iterator[Batch]:
        """Yields what is left of the epoch: what `batches` gives. Outside of `epochs`, with `total_steps`, goes on over
        further epochs. `skip_rest` is called instead of `rest_of_epoch` where a restart finds the data ended.

        Raises RuntimeError if a whole epoch ends without `step_done`.
        """
        is_one_epoch = self._in_epochs or self.total_steps is None
        while True:
            if self._data_ended and not self._in_epochs:
                self._end_epoch()
            self._end_head()
            self._data_ended = self._data_ended or self._position.ended
            if self._data_ended:
                skip_rest()
            elif not self.reached:
                yield from self._until_data_end(rest_of_epoch())
            if is_one_epoch or self.reached:
                return

    def _until_data_end(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        step, is_whole = self.step, self._position.batch == 0
        for batch in batches:
            yield batch
            if self.reached:
                return
        if self.step == step and is_whole:
            raise RuntimeError(
                f"cannot count steps: epoch {self._position.epoch} ended and run.step_done was never called; call "
                f"run.step_done(loss=loss) after each training step, in the loop over run.batches"
            )
        self._data_ended = True

    @staticmethod
    def _adapt_state(value: Any) -> HasState | None:
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

    def _find_lost_values(self, frame: FrameType) -> list[Finding]:
        """The values that the loop in `frame` carries and no checkpoint would hold. Called at the first step."""
        frames = script_frames(frame, self._entered)
        self._containers = ContainerWatch(frames, self.state, self._leave_out)
        self._containers_until = self.step + CONTAINERS_COMPARED
        return carried_values(frames, self.state, self._leave_out)

    def _find_changed_containers(self) -> list[Finding]:
        """Containers that a step changed without a trace in the loop's own lines. Called while `_containers` is set."""
        found = self._containers.changed() if self._containers is not None else []
        if self.step >= self._containers_until:
            self._containers = None
        return found

    def _check_loops(self) -> None:
        """Raises RuntimeError if a loop around `batches` would begin again after a restart. Called by `batches`."""
        if self._in_epochs:
            return
        frames = script_frames(sys._getframe(2), self._entered)
        if not self._loops_checked:
            self._loops_checked = True
            if (text := explain_loop_that_begins_again(frames, self)) is not None:
                raise RuntimeError(text)
        elif not frames and not self._reads_epoch and self.total_steps is None:
            raise RuntimeError(
                "cannot resume a loop that calls run.batches for each epoch: after a restart it begins again; write "
                '"for epoch in run.epochs(n):" around it'
            )

    @property
    def _is_within_epoch(self) -> bool:
        return self._position.batch > 0 or self._position.begun

    def _continue_at(self, position: Position) -> None:
        """Training continues at the position of the restored checkpoint."""
        self._position = position
        self._resumed_within = self._is_within_epoch

    def _begin_body(self) -> None:
        """The body of an epoch begins. If a restart runs its head again, that must not change the state."""
        if self._resumed_within and self._put_back is None:
            self._put_back = self._copy_saved_state()

    def _end_head(self) -> None:
        """The head of an epoch's body is done: its batches follow."""
        put_back, self._put_back, self._resumed_within = self._put_back, None, False
        if put_back is not None:
            put_back()
        if self._position.batch == 0:
            self._position = replace(self._position, begun=True)

    def _end_epoch(self) -> None:
        """The body of the epoch is done."""
        self._end_head()
        self._position, self._data_ended = Position(self._position.epoch + 1), False

    def _copy_saved_state(self) -> Callable[[], None]:
        """Copies what code between two steps may change of the saved state. Returns what puts it back."""
        values, generators = self.state.copied(), random_generators.read()

        def put_back() -> None:
            self.state.put_back(values)
            random_generators.write(generators)

        return put_back

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

        `stalled_s`: for how long saves have stopped training so far, which does not count as a step's time.
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

    def _report_section(self, section: str | None) -> None:
        """Reports what the loop does from now on. Does nothing before the first report of progress."""
        if self._last_progress is not None:
            saving_s = self._saving_s
            self._last_progress = replace(
                self._last_progress, section=section, data_s=self._pop_data_wait_s(), saving_s=saving_s
            )
            self._attempt.reporter.send_progress(self._last_progress)


def check_on_nan(on_nan: str | None) -> str | None:
    """Returns what a script gives as `on_nan`. Raises ValueError for anything that it can't be."""
    if on_nan is not None and on_nan not in ON_NAN:
        raise ValueError(f"cannot use on_nan={on_nan!r}; it can be {', '.join(ON_NAN)}")
    return on_nan


def metric_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Each metric as one number: the value of a tensor, or the mean over the replicas of a per-replica value.

    Waits for the step that computes them. Values that are not finite are left out, because JSON can't hold them.
    """
    values = {name: _mean(replica_values(value)) for name, value in list(metrics.items())[:MAX_METRICS]}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def replica_metrics(metrics: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """The values of all replicas, of those metrics that have more than one."""
    values = {name: tuple(replica_values(value)) for name, value in list(metrics.items())[:MAX_METRICS]}
    return {name: each for name, each in values.items() if len(each) > 1}


def replica_values(value: Any) -> list[float]:
    """Each replica's number of a per-replica value, or the one number. Raises TypeError or ValueError."""
    return [float(each) for each in getattr(value, "values", (value,))]


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
