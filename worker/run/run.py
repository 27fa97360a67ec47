"""`worker.Run`: restores before the training loop, counts steps, saves when it is due or requested."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import tensorflow as tf

from worker.base.run_settings import check_settings, require_names
from worker.checkpoint.tensorflow_writer import StepBoundary
from worker.checks import reachability
from worker.checks.dataset_checks import find_made_in_epoch, script_functions
from worker.checks.findings import Finding
from worker.checks.watch.kept.kept_values import Kept
from worker.data.batches import BatchReader
from worker.data.checks import find_own_seeds, find_problems
from worker.data.examples import Examples
from worker.data.resume_dataset import Batch
from worker.internals.tensorflow_internals import is_op_determinism_enabled
from worker.microbatch import parts_of
from worker.process.startup import current_attempt
from worker.progress.divergence import Divergence, leave_out_batches
from worker.progress.metrics import metric_values, replica_metrics
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.run.misuse import check_tracked, require_python_loop
from worker.run.replayed_state import batch_bytes
from worker.run.run_data import RunData
from worker.run.tracked_run import TrackedRun
from worker.state import extra_state, random_operations
from worker.state.dataset_passes import seed_state
from worker.state.description import differences
from worker.state.script_conditions import SET_AT_STEP
from worker.state.state_file import Position

_REMEDY = (
    "track it in the tf.train.Checkpoint, give a Keras metric to worker.Run(state={...}), a generator to "
    "worker.Run(generators=), or what never changes to "
    "worker.Run(leave_out=)"
)


_NOT_DETERMINISTIC = Finding(
    "the bits, as deterministic = true has no effect before worker.strategy()",
    "call worker.strategy() before the dataset and the model are made, and train with the strategy it returns",
)


class Run(TrackedRun):
    """One training run around a loop of the script's own, as a context manager.

    Entering restores into `checkpoint` (what the daemon selected, or else the newest that verifies), or begins at step
    0. Leaving the block normally means that training is complete, at whatever step: the last checkpoint is committed,
    then `done` is reported. An exception saves nothing, because it may have come from the middle of a step. A request
    to stop (SIGTERM, the daemon) leaves `step_done` as SystemExit with status 143, after the save.
    """

    _public_name = "worker.Run"
    _set_at_step = SET_AT_STEP
    """How the script does something once, after the restore of a checkpoint."""

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
        state: Mapping[str, Any] | None = None,
        on_nan: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = SUMMARY_EVERY,
    ) -> None:
        """`checkpoint` tracks the model and the optimizer. `directory` and `interval` (as "500 steps" or "10 minutes";
        "auto" or None: chosen by what saves cost) apply where the job's configuration says nothing.
        `generators`: random generators of the script's own that no tf.train.Checkpoint takes (Keras SeedGenerators,
        NumPy's, Python's), always in the same order; the global ones and those of Keras layers are saved anyway.
        After the first step a warning names each variable that the loop can reach and no checkpoint would hold, and
        each plain value that it carries from step to step, except the objects in `leave_out` and the values whose
        names are in it; with `strict` it is an error. `on_nan`: what to do when training diverges,
        as the key of that name, where the configuration doesn't say. `summaries`: a folder for TensorBoard, which gets
        the metrics of each step that is a multiple of `summary_every`. Raises TypeError or ValueError for arguments
        that can't be used. `state`: the initial values of `run.state`, also Keras metrics; a restored checkpoint
        replaces them.
        """
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise TypeError(
                f"worker.Run needs a tf.train.Checkpoint(model=..., optimizer=...), not a {type(checkpoint).__name__}"
            )
        launch = current_attempt().launch
        settings = check_settings(
            launch, total_steps=total_steps, directory=directory, interval=interval, generators=generators,
            leave_out=leave_out, strict=strict, on_nan=on_nan, state=state, summaries=summaries,
            summary_every=summary_every,
        )  # fmt: skip
        super().__init__(checkpoint, strategy, settings)
        self._uses_microbatches = launch.microbatches <= 1
        self._run_data = RunData(self._attempt, strategy, self._gang, self._digest_generators)

    def __enter__(self) -> Self:
        self._enter()
        is_first_run = not self._attempt.has_begun_run
        try:
            check_tracked(self._tracked, self.strategy)
            restored = self._checkpoints.restore_or_begin(self.total_steps, self._set_at_step, self._parts_remedy)
            if self._directory is not None:
                self._run_data.read_left_out(self._directory)
        except BaseException:
            self._checkpoints.close()
            raise
        if restored is None and is_first_run:
            self._explain_own_restore(extra_state.optimizer_steps(self._tracked))
        if restored is not None:
            self._run_data.restore_passes(restored.passes)
            self.step, self._metrics = restored.step, restored.metrics
            self._continue_at(restored.position, restored.body)
        self._attempt.requests.step = self.step
        self._attempt.requests.can_export = True
        self._begin()
        return self

    def _release(self) -> None:
        self._run_data.close()
        super()._release()

    def batches(self, source: Any) -> Iterator[Batch]:
        """The batches that are left, from the exact position of the restored checkpoint on.

        `source`: a `worker.Examples`, a tf.data.Dataset (one pass is an epoch; resumed by `skip`), or a function from
        the epoch to its dataset. Spread over the replicas of the strategy. It ends with the epoch; outside of
        `run.epochs`, with `total_steps`, it goes on over epochs until that many steps are done. The last checkpoint is
        committed before it ends for the last time. A batch counts as consumed at the next `step_done`; of a step that
        takes several, all are taken again.
        """
        self._require_with("run.batches")
        self._check_loops()
        self._check_data_of_epoch(source)
        reader = self._run_data.reader
        is_new = reader is None or reader.data is not source
        if is_new or self._run_data.passes.is_of_epoch_before(self._position.epoch):
            self._run_data.passes.is_made_anew = self._loop_checks.makes_data(sys._getframe(1), source)
        batches = self._batches(source)
        return batches if self._replays is None else self._replays.watch(batches)

    def _batches(self, source: Any) -> Iterator[Batch]:
        yield from self._over_epochs(
            "run.batches",
            lambda: self._rest_of_epoch(self._run_data.reader_of(source, self._position)),
            lambda: self._run_data.reader_of(source, self._position).skip_epoch(),
        )
        if self.reached or (self._data_ended and self._position.epoch == self._last_epoch):
            self._checkpoints.save_final(self._step_boundary())

    def _rest_of_epoch(self, reader: BatchReader) -> Iterator[Batch]:
        if isinstance(reader.data, Examples):
            self._expect_steps(reader.data.left(self._position), reader.data.per_epoch)
        timed = self._run_data.report_waits(reader.rest_of_epoch(), self._reports, self._report_section)
        batches = ((batch, reader.consumed) for batch in timed)
        for batch, consumed in self._with_replays(batches):
            if self._consumed is None and not self._is_replaying:
                self._checkpoints.on_step_boundary(self.step, self._step_boundary)
            self._consumed = consumed
            yield batch

    def _with_replays(self, batches: Iterator[tuple[Batch, Position]]) -> Iterator[tuple[Batch, Position]]:
        return batches if self._replays is None else self._replays.over(batches, lambda read: batch_bytes(read[0]))

    def step_done(self, *unnamed: Any, **metrics: Any) -> None:
        """One optimizer step is complete on every replica: counts it, reports it, and saves if it is time.

        `metrics`: numbers, scalar tensors, or per-replica ones (the mean counts). They are read at most ten times a
        second, and for each checkpoint, so the loop may run ahead of the device in between. Those that are not finite
        are left out of messages and manifests. Code behind it in the body of a loop over `batches`, `range` or `order`
        belongs to the step, which is then saved at the next batch; a `break` behind it is named.
        RuntimeError inside of a tf.function, or of what `strategy.run` runs.
        """
        if not self._is_checked:
            require_names(unnamed)
            self._require_with("run.step_done")
            require_python_loop()
        if self._is_replaying:
            self._count_replayed_step(metrics)
            return
        self._count_step()
        self._metrics = metrics
        self._record_for_divergence(metrics, self._run_data.pop_handed_out())
        self._end_step(sys._getframe(1), metrics)

    def _check_first_step(self, frame: FrameType) -> None:
        self._check_complete(frame)
        passes = self._run_data.passes
        self._checkpoints.begin_steps(
            differences(dict(passes.described_before), dict(passes.described_skipped or passes.described or {}))
        )
        if not self._uses_microbatches:
            self._attempt.reporter.show_message(
                f"memory ran out, but this script does not divide its batches into {self.split} parts; "
                f"use worker.Training, or run.microbatches(batch)"
            )

    @property
    def _reads_batches(self) -> bool:
        return self._run_data.reader is not None

    def _find_seeded_in_epoch(self, data: Any, seeds_before: Any) -> list[Finding]:
        return find_made_in_epoch(data, seeds_before)

    def _functions_of_data(self) -> Sequence[reachability.Root]:
        return script_functions(self._run_data.passes.data)

    def _read_seed_sequence(self) -> Any:
        return seed_state()

    def _read_passes(self) -> Mapping[str, Any]:
        return self._run_data.passes.to_json()

    @property
    def split(self) -> int:
        """Into how many parts to divide each batch, because memory ran out before; 1: not at all."""
        self._uses_microbatches = True
        return self._attempt.launch.microbatches

    def microbatches(self, batch: Any) -> Iterator[tuple[Batch, float]]:
        """The batch in the parts that fit into memory, each with its share of the examples; see `worker.microbatch`."""
        return parts_of(batch, self.split)

    def _step_boundary(self) -> StepBoundary:
        self._check_divergence()
        means, replicas = metric_values(self._metrics), replica_metrics(self._metrics)
        position = replace(self._position, ended=self._data_ended)
        return StepBoundary(self.step, position, means, replicas, self._run_data.passes.to_json(), self._body)

    @property
    def _rows(self) -> int | None:
        return self._run_data.rows

    def _pop_data_wait_s(self) -> float | None:
        return self._run_data.pop_wait_s()

    def _leave_out_batches(self, divergence: Divergence) -> tuple[str, tuple[str, ...]]:
        if self._on_nan != "skip" or self._directory is None:
            return super()._leave_out_batches(divergence)
        return leave_out_batches(self._directory, divergence, self._attempt.number)

    def _check_complete(self, frame: FrameType) -> None:
        """Looks for state that the loop in `frame` uses and no checkpoint would hold."""
        self.state.check()
        roots = self._loop_checks.roots(frame)
        self._checkpoints.check_completeness(
            roots,
            (*self._leave_out, *self.state.held().values()),
            self.step,
            _REMEDY,
            lambda: [*self._find_problems(roots), *self._find_lost_values(frame)],
        )

    def _end_run_head(self) -> None:
        super()._end_run_head()
        random_operations.watch_own_seeds()

    def _report_changed_values(self, frame: FrameType | None) -> None:
        super()._report_changed_values(frame)
        if findings := find_own_seeds():
            self._report_findings(findings)

    def _keep(self, kept: Kept) -> None:
        super()._keep(kept)
        kept.has_data = self._run_data.reader is not None or self._run_data.passes.data is not None

    def _find_problems(self, roots: list[reachability.Root], data: Any = None) -> list[Finding]:
        """What of the data and of the traced functions would not be the same after a restart."""
        reader, passes = self._run_data.reader, self._run_data.passes
        data = reader.data if reader is not None else data
        has_epochs = self._in_epochs and self._last_epoch != 0
        findings = find_problems(
            roots, self._leave_out, self._tracked, data, passes, self.total_steps, has_epochs=has_epochs
        )
        if self._attempt.launch.deterministic and not is_op_determinism_enabled():
            findings.append(_NOT_DETERMINISTIC)
        return findings

    def _finish(self) -> None:
        self._report_section(None)  # reports the wait for data since the last step
        super()._finish()
