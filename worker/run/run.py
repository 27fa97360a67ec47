"""Run: what a training script uses. Restores before the loop, counts steps, saves when due or asked."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

import tensorflow as tf

from supervisor.protocol.launch import ON_NAN, parse_interval
from supervisor.protocol.layout import SKIPPED
from supervisor.protocol.messages import Done, Exported, WorkerExit
from supervisor.protocol.plurals import counted
from worker.checkpoint.tensorflow_writer import StepBoundary
from worker.data import collectives
from worker.data.batches import BatchReader
from worker.data.resume_dataset import Batch
from worker.export import ExportError, export_run
from worker.microbatch import parts_of
from worker.process import local_processes
from worker.progress.divergence import (
    Divergence,
    DivergenceWatch,
    abbreviate,
    add_skipped,
    batch_names,
    read_skipped,
)
from worker.progress.run_base import PROGRESS_INTERVAL_S, RunBase, metric_values, replica_metrics
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.run.gang_checkpoints import GangCheckpoints
from worker.run.run_checkpoints import RunCheckpoints
from worker.state import extra_state, missing_variables
from worker.state.state_file import Position

_REMEDY = (
    "track it in the tf.train.Checkpoint, give a generator to worker.Run(generators=), or what never changes to "
    "worker.Run(leave_out=)"
)


class Run(RunBase):
    """One training run around a loop of the script's own, as a context manager.

    Entering restores `checkpoint` (from what the daemon chose, or else the newest whole one) or begins at step 0.
    Leaving the block normally means that training is complete, at whatever step: the last checkpoint is committed, then
    `done` is said. An exception saves nothing, because it may have come from the middle of a step. A request to stop
    (SIGTERM, the daemon) leaves `step_done` as SystemExit with status 143, after the save.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        *,
        strategy: tf.distribute.Strategy | None = None,
        total_steps: int | None = None,
        directory: str | Path | None = None,
        interval: str | None = None,
        generators: Iterable[Any] = (),
        leave_out: Iterable[Any] = (),
        strict: bool = False,
        on_nan: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = SUMMARY_EVERY,
    ) -> None:
        """`checkpoint` tracks the model and the optimizer. `directory` and `interval` (as "500 steps" or "10 minutes";
        "auto" or None: what saves cost decides) hold where the job's configuration says nothing.
        `generators`: random generators of the script's own that no tf.train.Checkpoint takes (Keras SeedGenerators,
        NumPy's, Python's), always in the same order; the global ones and those of Keras layers are kept anyway.
        After the first step a warning names each variable that the loop can reach and no checkpoint would hold, but for
        those of the objects in `leave_out`; with `strict` it is an error. `on_nan`: what follows when training
        diverges, as the key of that name, where the configuration doesn't say. `summaries`: a folder for TensorBoard,
        which gets the figures of each step that is a multiple of `summary_every`. Raises TypeError or ValueError for
        what can't be used.
        """
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise TypeError(
                f"worker.Run needs a tf.train.Checkpoint(model=..., optimizer=...), not a {type(checkpoint).__name__}"
            )
        gang = self._gang = collectives.gang_of(strategy)
        super().__init__(total_steps, summaries if gang is None or gang.is_chief else None, summary_every)
        self.strategy = strategy
        if on_nan is not None and on_nan not in ON_NAN:
            raise ValueError(f"cannot use on_nan={on_nan!r}; it can be {', '.join(ON_NAN)}")
        told = self._attempt.launch
        self._tracked = checkpoint
        self._directory = told.checkpoint_dir or (Path(directory).absolute() if directory is not None else None)
        self._checkpoints = _keeper_of(
            gang,
            checkpoint,
            strategy,
            self._attempt,
            self._directory,
            told.checkpoint_interval or (parse_interval(interval) if interval not in (None, "auto") else None),
            extra_state.check_own_generators(generators),
            self._not_finite if (told.on_nan or on_nan) != "off" else None,
        )
        self._on_nan = told.on_nan or on_nan or "stop"
        self._watch = DivergenceWatch(told.loss_spike) if self._on_nan != "off" else None
        self._left_out: frozenset[tuple[int, int]] = frozenset()
        self._divides = told.microbatches <= 1
        self._leave_out, self._strict = tuple(leave_out), strict or told.strict
        self._checked = False
        self._position = Position()
        self._feed: BatchReader | None = None
        self._in_step = False  # a batch was handed out, and its step is not done
        self._metrics: Mapping[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._waited_s = 0.0  # for data, since the daemon was told of it

    @property
    def epoch(self) -> int:
        """The epoch that the data of the next step belongs to, from 0."""
        return self._position.epoch

    def __enter__(self) -> Self:
        try:
            found = self._checkpoints.restore_or_begin(self.total_steps)
        except BaseException:
            self._checkpoints.close()
            raise
        if found is not None:
            self.step, self._position = found.step, found.position
            self._metrics = found.metrics
        self._left_out = self._read_left_out()
        self._attempt.requests.step = self.step
        self._attempt.requests.can_export = True
        self._stop.install()
        return self

    def _failed(self, error: BaseException) -> None:
        if (others := local_processes.find_local_processes()) is not None and isinstance(error, tf.errors.OpError):
            others.wait_for_member_failure()
        super()._failed(error)

    def _release(self) -> None:
        if self._feed is not None:
            self._feed.abandon()
        self._checkpoints.close()

    def batches(self, source: Any) -> Iterator[Batch]:
        """The batches that are left, from the exact position of the restored checkpoint on.

        `source`: a `worker.Examples`, a tf.data.Dataset (one pass is an epoch; resumed by `skip`), or a function from
        the epoch to its dataset. Spread over the replicas of the strategy. With `total_steps` it goes on over epochs
        until that many steps are done, and commits the last checkpoint before it ends; without, it ends with the epoch.
        A batch counts as consumed at the next `step_done`; of a step that takes several, all are taken again.
        """
        feed = self._feed_of(source)
        while not self.reached:
            for batch in self._awaited(feed.rest_of_epoch()):
                if not self._in_step:
                    self._checkpoints.on_step_boundary(self.step, self._figures)
                self._in_step = True
                yield batch
                if self.reached:
                    break
            else:
                self._position = feed.position
            if self.total_steps is None:
                return
        self._checkpoints.save_final(self._figures())

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around an evaluation between two steps, so that its silence is not taken for a hang of training."""
        self._report_section("evaluation")
        try:
            yield
        finally:
            self._report_section(None)

    def step_done(self, **metrics: Any) -> None:
        """One optimizer step is complete on every replica: counts it, reports it, and saves if it is time.

        `metrics`: numbers, scalar tensors, or per-replica ones (the mean counts). They are read at most ten times a
        second, and for each checkpoint, so the loop may run ahead of the device in between. Those that are not finite
        are left out of messages and manifests. Call it last in the loop's body, and before a `break`. RuntimeError
        inside of a tf.function, or of what `strategy.run` runs.
        """
        if not self._checked:
            _be_in_the_loop()
        self.step += 1
        self._in_step = False
        self._attempt.requests.step = self.step
        self._metrics = metrics
        if self._feed is not None:
            self._position = self._feed.position
        if self._watch is not None:
            self._watch.record_step(self.step, metrics, self._feed.pop_handed_out() if self._feed is not None else ())
        self._checkpoints.record_step()
        if not self._checked:
            self._checked = True
            self._check_complete(sys._getframe(1))
            self._check_divides()
        self._write_summary()
        if self._report_progress(self.epoch, self._numbers, self._checkpoints.interval_s, self._checkpoints.stalled_s):
            self._check_divergence()
        exports = bool(self._attempt.requests.pending_exports)
        saves = self._checkpoints.has_work(self.step) or exports
        if saves:
            self._report_section("save")
        if exports:
            self._checkpoints.stalled_s += self._export_asked()
        self._checkpoints.on_step_boundary(self.step, self._figures)
        if saves:
            self._report_section(None)

    @property
    def split(self) -> int:
        """Into how many parts each batch is to be divided, as memory ran out before; 1: not at all."""
        self._divides = True
        return self._attempt.launch.microbatches

    def microbatches(self, batch: Any) -> Iterator[tuple[Batch, float]]:
        """The batch in the parts that fit into memory, each with its share of the examples; see `worker.microbatch`."""
        return parts_of(batch, self.split)

    def summary(self, **metrics: Any) -> None:
        """Results of the whole training, of an evaluation for example: said together with `done`."""
        self._summary |= metrics

    def _awaited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same; where steps are slow enough for it to cost nothing, the daemon is told that data are waited for."""
        while True:
            tells = self._last_progress is not None and (self._last_progress.step_s or 0.0) >= PROGRESS_INTERVAL_S
            if tells:
                self._report_section("data")
            began = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited_s += time.monotonic() - began
                if tells:
                    self._report_section(None)
            yield batch

    def _feed_of(self, source: Any) -> BatchReader:
        """The one in use, if it is of this source and stands where training stands; else a new one."""
        if self._feed is None or self._feed.given is not source or self._feed.position != self._position:
            self._feed = BatchReader(source, self.strategy, self._position, self._left_out, self._gang)
        return self._feed

    def _figures(self) -> StepBoundary:
        self._check_divergence()
        return StepBoundary(self.step, self._position, metric_values(self._metrics), replica_metrics(self._metrics))

    @property
    def _saving_s(self) -> float | None:
        return self._checkpoints.saving_s

    def _numbers(self) -> Mapping[str, float]:
        return metric_values(self._metrics)

    def _write_summary(self) -> None:
        if self._tensorboard is not None and self._tensorboard.is_due(self.step):
            rows = self._feed.rows if self._feed is not None else None
            replicas = replica_metrics(self._metrics)
            self._tensorboard.write_step(
                self.step, metric_values(self._metrics), replicas, self._checkpoints.stalled_s, rows
            )

    def _pop_data_wait_s(self) -> float | None:
        """Seconds that data were waited for since the daemon was told; None where the script gets them elsewhere."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return None if self._feed is None else waited_s

    def _check_divergence(self) -> None:
        """Leaves, if a figure since the last look says that training diverged. The newest of them was just read."""
        trouble = self._watch.find_divergence() if self._watch is not None else None
        if trouble is not None:
            self._diverged(trouble)

    def _not_finite(self, step: int, text: str, fine_at: int) -> NoReturn:
        self._diverged((self._watch or DivergenceWatch()).divergence_at(step, text, fine_at))

    def _diverged(self, trouble: Divergence) -> NoReturn:
        text = trouble.text
        batches: tuple[str, ...] = ()
        if self._on_nan == "skip" and self._directory is not None:
            try:
                add_skipped(self._directory, trouble, self._attempt.number)
                batches = batch_names(trouble.batches)
                text += f"; left out from now on (epoch:batch, from 0): {abbreviate(batches) or 'nothing, as the '}"
                text += "" if batches else "script doesn't use run.batches"
            except (OSError, ValueError) as error:
                text += f"; cannot write down what to leave out: {error}"
        self._attempt.exit_diverged(text, trouble.step, self._on_nan in ("rollback", "skip"), batches)

    def _read_left_out(self) -> frozenset[tuple[int, int]]:
        """What was left out before stays so; it has to be, or a restart would train on other data than before it."""
        if self._directory is None:
            return frozenset()
        try:
            found = read_skipped(self._directory)
        except (OSError, ValueError) as error:
            self._checkpoints.close()
            self._attempt.exit_with_error(
                WorkerExit.DIRECTORY_UNUSABLE, f"cannot read which batches to leave out: {error}"
            )
        if found:
            self._attempt.reporter.show_message(
                f"leaves out {counted(len(found), 'batch', 'batches')} that made training diverge ({SKIPPED})"
            )
        return found

    def _check_complete(self, frame: FrameType) -> None:
        """Looks for what the loop in `frame` uses and no checkpoint would hold."""
        roots = missing_variables.roots_of_frame(frame)
        self._checkpoints.check_completeness(roots, self._leave_out, self._strict, self.step, _REMEDY)

    def _check_divides(self) -> None:
        if not self._divides:
            self._attempt.reporter.show_message(
                f"memory ran out, but this script does not divide its batches into {self.split} parts; "
                f"use worker.Training, or run.microbatches(batch)"
            )

    def _finish(self) -> None:
        self._report_section(None)  # what was waited for since the last steps told
        self._checkpoints.save_final(self._figures())
        self._export()
        self._export_asked()
        results = metric_values({**self._metrics, **self._summary})
        self._attempt.reporter.send_message(Done(self._attempt.number, self.step, results))

    def _export_asked(self) -> float:
        """Serves the exports that were asked for, all with one; how many seconds that took."""
        began_at, waiting = time.monotonic(), self._attempt.requests.pending_exports
        path = error = None
        while waiting:
            if path is None and error is None:
                path, error = self._try_to_export()
            self._attempt.reporter.send_message(
                Exported(self._attempt.number, waiting.popleft(), self.step, path, error)
            )
        return time.monotonic() - began_at

    def _try_to_export(self) -> tuple[str | None, str | None]:
        """The export's path, or why there is none."""
        folder = self._attempt.launch.export_dir
        if folder is None:
            return None, "cannot export: the job has no export_dir"
        if self._gang is not None and not self._gang.is_chief:
            return None, "cannot export here: the first of the processes that train together does; ask its daemon"
        try:
            return str(export_run(self._tracked, folder, self.step)), None
        except ExportError as error:
            return None, str(error)

    def _export(self) -> None:
        """The trained model, where the job is told to. Leaves with SAVE_FAILED if it can't."""
        folder = self._attempt.launch.export_dir
        if folder is None or (self._gang is not None and not self._gang.is_chief):
            return
        try:
            export_run(self._tracked, folder, self.step)
        except ExportError as error:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", self.step)


def _be_in_the_loop() -> None:
    """Raises RuntimeError where Python's loop is not what runs; looked at once, as that is how often it would run."""
    if tf.inside_function():
        where, what = "a tf.function", "it would run once, when the function is traced, and count no step after that"
    elif tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        where, what = "strategy.run", "each replica would count every step"
    else:
        return
    raise RuntimeError(
        f"cannot count a step inside of {where}: {what}; call run.step_done in the Python loop, after the function "
        f"that trains"
    )


def _keeper_of(gang: collectives.Gang | None, *given: Any) -> RunCheckpoints:
    """One that agrees with the other workers, where there are others."""
    return RunCheckpoints(*given) if gang is None else GangCheckpoints(gang, *given)
