"""`worker.Run`: restores before the training loop, counts steps, saves when it is due or requested."""

import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

import tensorflow as tf

from supervisor.protocol.layout import SKIPPED
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.messages import Done, Exported, WorkerExit
from worker.checkpoint.tensorflow_writer import StepBoundary
from worker.checks import reachability
from worker.checks.dataset_checks import find_made_in_epoch
from worker.checks.findings import Finding
from worker.checks.watch.kept_values import Kept
from worker.data import collectives
from worker.data.batches import BatchReader
from worker.data.checks import find_problems
from worker.data.resume_dataset import Batch
from worker.devices import tensorflow_conditions
from worker.export import ExportError, export_run
from worker.microbatch import parts_of
from worker.process import local_processes
from worker.progress.arguments import check_interval, check_list, check_on_nan, require_names
from worker.progress.divergence import (
    Divergence,
    DivergenceWatch,
    abbreviate,
    add_skipped,
    batch_names,
    read_skipped,
)
from worker.progress.metrics import metric_values, replica_metrics
from worker.progress.run_base import PROGRESS_INTERVAL_S, RunBase
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.replay.replayed_run import LoopAccess, LoopState
from worker.replay.replays import NO_BATCHES, Replays
from worker.run.epoch_head import copy_saved_state
from worker.run.gang_checkpoints import GangCheckpoints
from worker.run.misuse import check_tracked, explain
from worker.run.replayed_state import ReplayedTensorFlow, Values, batch_bytes
from worker.run.run_checkpoints import RunCheckpoints
from worker.state import extra_state
from worker.state.dataset_passes import PassLog, seed_state
from worker.state.description import differences
from worker.state.replica_values import ALONE, MetricState, Place
from worker.state.run_state import HasState
from worker.state.script_conditions import SET_AT_STEP
from worker.state.state_file import Position

_REMEDY = (
    "track it in the tf.train.Checkpoint, give a Keras metric to worker.Run(state={...}), a generator to "
    "worker.Run(generators=), or what never changes to "
    "worker.Run(leave_out=)"
)


_NOT_DETERMINISTIC = Finding(
    "anything, as deterministic = true has no effect before worker.strategy()",
    "call worker.strategy() before the dataset and the model are made, and train with the strategy it returns",
)


class Run(RunBase):
    """One training run around a loop of the script's own, as a context manager.

    Entering restores into `checkpoint` (what the daemon selected, or else the newest that verifies), or begins at step
    0. Leaving the block normally means that training is complete, at whatever step: the last checkpoint is committed,
    then `done` is reported. An exception saves nothing, because it may have come from the middle of a step. A request
    to stop (SIGTERM, the daemon) leaves `step_done` as SystemExit with status 143, after the save.
    """

    _set_at_step = SET_AT_STEP
    """How the script does something once, after the restore of a checkpoint."""
    _why_no_replays = NO_BATCHES
    """Why no step is trained a second time where the run does not read the batches."""

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
        gang = self._gang = collectives.gang_of(strategy)
        super().__init__(
            total_steps, summaries if gang is None or gang.is_chief else None, summary_every, state, leave_out
        )
        self.strategy = strategy
        self._on_nan = self._attempt.launch.on_nan or check_on_nan(on_nan) or "stop"
        told = self._attempt.launch
        self._tracked = checkpoint
        self._directory = told.checkpoint_dir or (Path(directory).absolute() if directory is not None else None)
        self._checkpoints = _open_run_checkpoints(
            gang,
            checkpoint,
            strategy,
            self._attempt,
            self._directory,
            told.checkpoint_interval or check_interval(interval),
            extra_state.check_own_generators(check_list(generators, "generators", "[rng]")),
            self._not_finite if self._on_nan != "off" else None,
            self.state,
        )
        self._watch = DivergenceWatch(told.loss_spike) if self._on_nan != "off" else None
        self._left_out: frozenset[tuple[int, int]] = frozenset()
        self._uses_microbatches = told.microbatches <= 1
        self._strict = strict or told.strict
        self._checked = False
        self._passes = PassLog()
        self._seeds_before_head: Any = None  # until the first epoch's data are read
        self._made_in_epoch: list[Finding] = []
        self._reader: BatchReader | None = None
        self._metrics: Mapping[str, Any] = {}
        self._waited_s = 0.0  # for data, since the last report
        self._replays: Replays[Values, tuple[Batch, Position]] | None = None

    def __enter__(self) -> Self:
        self._enter()
        is_first_run = not self._attempt.has_begun_run
        try:
            check_tracked(self._tracked, self.strategy)
            found = self._checkpoints.restore_or_begin(self.total_steps, self._set_at_step)
        except BaseException:
            self._checkpoints.close()
            raise
        if found is None and is_first_run:
            self._explain_own_restore(extra_state.optimizer_steps(self._tracked))
        if found is not None:
            self._passes = PassLog(found.passes)
            self.step, self._metrics = found.step, found.metrics
            self._continue_at(found.position)
        self._left_out = self._read_left_out()
        self._attempt.requests.step = self.step
        self._attempt.requests.can_export = True
        if self._attempt.launch.replay is not None:
            self._replays = self._open_replays()
        self._begin()
        return self

    def _failed(self, error: BaseException) -> None:
        if (text := explain(error, self.strategy)) is not None:
            error.add_note(f"stepkeeper: {text}")
        if (others := local_processes.find_local_processes()) is not None and isinstance(error, tf.errors.OpError):
            others.wait_for_member_failure()
        super()._failed(error)

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.abandon()
        self._checkpoints.close()

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
        batches = self._batches(source)
        return batches if self._replays is None else self._replays.watch(batches)

    def _batches(self, source: Any) -> Iterator[Batch]:
        if self._seeds_before_head is not None:
            self._made_in_epoch = find_made_in_epoch(source, self._seeds_before_head)
            self._seeds_before_head = None
        yield from self._over_epochs(
            "run.batches",
            lambda: self._rest_of_epoch(self._reader_of(source)),
            lambda: self._reader_of(source).skip_epoch(),
        )
        if self.reached or (self._data_ended and self._position.epoch == self._last_epoch):
            self._checkpoints.save_final(self._step_boundary())

    def _rest_of_epoch(self, reader: BatchReader) -> Iterator[Batch]:
        batches = ((batch, reader.consumed) for batch in self._report_waits(reader.rest_of_epoch()))
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
        are left out of messages and manifests. Call it last in the loop's body: a `break` behind it is named.
        RuntimeError inside of a tf.function, or of what `strategy.run` runs.
        """
        if not self._checked:
            require_names(unnamed)
            self._require_with("run.step_done")
            _require_python_loop()
        if self._is_replaying:
            self._count_replayed_step()
            self._metrics = metrics
            return
        self._count_step()
        self._attempt.requests.step = self.step
        self._metrics = metrics
        if self._watch is not None:
            self._watch.record_step(
                self.step, metrics, self._reader.pop_handed_out() if self._reader is not None else ()
            )
        self._checkpoints.record_step()
        if not self._checked:
            self._checked = True
            self._check_complete(sys._getframe(1))
            self._checkpoints.report_first_step(
                differences(dict(self._passes.described_before), dict(self._passes.described or {}))
            )
            self._check_microbatches()
            if self._replays is not None and self._reader is None:
                self._replays.give_up(self._why_no_replays)
        elif self._step_watch is not None:
            self._report_changed_values(sys._getframe(1))
        self._write_summary()
        if self._report_progress(
            self._position.epoch, self._numbers, self._checkpoints.interval_s, self._checkpoints.paused_s
        ):
            self._check_divergence()
        if self._attempt.proof is not None:
            self._record_for_proof(self._attempt.proof, metrics)
        if not self._body_step:
            self._on_step_boundary()

    def _on_step_boundary(self) -> None:
        if self._attempt.proof is not None:
            self._follow_proof(self._attempt.proof, self._save_now, self._checkpoints.settle)
        exports = bool(self._attempt.requests.pending_exports)
        saves = self._checkpoints.has_work(self.step) or exports
        if saves:
            self._report_section("save")
        if exports:
            self._checkpoints.stalled_s += self._serve_exports()
        self._checkpoints.on_step_boundary(self.step, self._step_boundary)
        if saves:
            self._report_section(None)

    def _open_replays(self) -> Replays[Values, tuple[Batch, Position]]:
        loop = LoopAccess(
            self._read_loop,
            self._passes.to_json,
            lambda: self.step,
            self._write_loop,
            lambda: self._consumed is None,
            self._begin_replay,
            self._end_replay,
            self._on_step_boundary,
            metric_values,
        )
        replayed = ReplayedTensorFlow(loop, self._checkpoints, self._tracked)
        replays: Replays[Values, tuple[Batch, Position]] = Replays(replayed, self._attempt, self._directory)
        if self._gang is not None or self._attempt.launch.member is not None:
            replays.give_up("several processes train together")
        return replays

    def _leave_replay(self) -> None:
        if self._replays is not None:
            self._replays.leave()

    def _read_loop(self) -> LoopState:
        generators = extra_state.read_generators(self._checkpoints.own)
        passes = self._passes.to_json()
        return LoopState(self.step, self._position, self.state.copied(), generators, self._metrics, passes)

    def _write_loop(self, loop: LoopState) -> None:
        self.step, self._position, self._metrics, self._consumed = loop.step, loop.position, loop.metrics, None
        self.state.put_back(loop.values)
        extra_state.write_generators(loop.generators, self._checkpoints.own)

    def _end_replay(self, took_s: float) -> None:
        self._checkpoints.replayed_s += took_s
        super()._end_replay(took_s)

    def _save_now(self) -> None:
        self._checkpoints.save_final(self._step_boundary())

    @property
    def split(self) -> int:
        """Into how many parts to divide each batch, because memory ran out before; 1: not at all."""
        self._uses_microbatches = True
        return self._attempt.launch.microbatches

    def microbatches(self, batch: Any) -> Iterator[tuple[Batch, float]]:
        """The batch in the parts that fit into memory, each with its share of the examples; see `worker.microbatch`."""
        return parts_of(batch, self.split)

    def _report_waits(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Passes batches on and measures the waits for them; reports each wait where steps are slow."""
        while True:
            reports = self._last_progress is not None and (self._last_progress.step_s or 0.0) >= PROGRESS_INTERVAL_S
            if reports:
                self._report_section("data")
            began = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited_s += time.monotonic() - began
                if reports:
                    self._report_section(None)
            yield batch

    def _reader_of(self, source: Any) -> BatchReader:
        """The reader in use, if it reads this source and its position is that of training; else a new one."""
        if self._reader is None or self._reader.data is not source or self._reader.position != self._position:
            self._reader = BatchReader(source, self.strategy, self._position, self._left_out, self._gang, self._passes)
        return self._reader

    def _report_findings(self, findings: Sequence[Finding]) -> None:
        self._checkpoints.report_findings((), "", findings, self.step, strict=self._strict)

    def _agree_on_order(self, digest: bytes) -> None:
        if self._gang is None:
            return
        mine = [zlib.crc32(digest)]
        if self._gang.sum([int(self._gang.from_chief(mine) != mine)])[0]:
            raise RuntimeError(
                "cannot train: the workers go through the epoch in different orders, of which a checkpoint holds one; "
                "draw the order of run.order from a generator that has the same seed in all of them"
            )

    def _begin_body(self) -> None:
        super()._begin_body()
        if self.step == 0 and self._in_epochs:
            self._seeds_before_head = seed_state()

    def _copy_saved_state(self) -> Callable[[], None]:
        return copy_saved_state(self._tracked, self.state, self._checkpoints.own)

    def _copy_generators(self) -> Callable[[], None]:
        own = self._checkpoints.own
        states = extra_state.read_generators(own)
        return lambda: extra_state.write_generators(states, own)

    def _step_boundary(self) -> StepBoundary:
        self._check_divergence()
        means, each = metric_values(self._metrics), replica_metrics(self._metrics)
        position = replace(self._position, ended=self._data_ended)
        return StepBoundary(self.step, position, means, each, self._passes.to_json())

    @property
    def _saving_s(self) -> float | None:
        return self._checkpoints.saving_s

    def _numbers(self) -> Mapping[str, float]:
        return metric_values(self._metrics)

    def _write_summary(self) -> None:
        if self._tensorboard is not None and self._tensorboard.is_due(self.step):
            rows = self._reader.rows if self._reader is not None else None
            replicas = replica_metrics(self._metrics)
            self._tensorboard.write_step(
                self.step, metric_values(self._metrics), replicas, self._checkpoints.paused_s, rows
            )

    def _pop_data_wait_s(self) -> float | None:
        """Seconds of waiting for data since the last report; None if the script gets its data elsewhere."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return None if self._reader is None else waited_s

    def _check_divergence(self) -> None:
        """Exits if a metric since the last check shows that training diverged."""
        divergence = self._watch.find_divergence() if self._watch is not None else None
        if divergence is not None:
            self._exit_diverged(divergence)

    def _not_finite(self, step: int, text: str, fine_at: int) -> NoReturn:
        self._exit_diverged((self._watch or DivergenceWatch()).divergence_at(step, text, fine_at))

    def _exit_diverged(self, divergence: Divergence) -> NoReturn:
        text = divergence.text
        batches: tuple[str, ...] = ()
        if self._on_nan == "skip" and self._directory is not None:
            try:
                add_skipped(self._directory, divergence, self._attempt.number)
                batches = batch_names(divergence.batches)
                listed = abbreviate(batches) or "none, as the script does not use run.batches"
                text += f"; batches left out from now on (epoch:batch, from 0): {listed}"
            except (OSError, ValueError) as error:
                text += f"; cannot record which batches to leave out: {error}"
        self._attempt.exit_diverged(text, divergence.step, self._on_nan in ("rollback", "skip"), batches)

    def _read_left_out(self) -> frozenset[tuple[int, int]]:
        """The batches that were left out before; a restart has to leave them out too, to train on the same data."""
        if self._directory is None:
            return frozenset()
        try:
            found = read_skipped(self._directory)
        except (OSError, ValueError) as error:
            self._checkpoints.close()
            self._attempt.exit_with_error(
                WorkerExit.DIRECTORY_UNUSABLE,
                f"cannot read which batches to leave out: {error}",
                errno=error.errno if isinstance(error, OSError) else None,
            )
        if found:
            self._attempt.reporter.show_message(
                f"leaving out {counted(len(found), 'batch', 'batches')} on which training diverged (see {SKIPPED})"
            )
        return found

    def _check_complete(self, frame: FrameType) -> None:
        """Looks for state that the loop in `frame` uses and no checkpoint would hold."""
        self.state.check()
        roots = self._roots_of_loop(frame)
        self._checkpoints.check_completeness(
            roots,
            (*self._leave_out, *self.state.values()),
            self._strict,
            self.step,
            _REMEDY,
            lambda: [*self._find_problems(roots), *self._find_lost_values(frame)],
        )

    def _report_changed_values(self, frame: FrameType | None) -> None:
        self._checkpoints.report_findings((), "", self._find_changed_values(frame), self.step, strict=self._strict)

    def _keep(self, kept: Kept) -> None:
        tracked = tf.train.TrackableView(self._tracked).descendants()
        # asked of the class, as reading an attribute of a variable of several processes makes them wait for each other
        kept.identities |= {id(each) for each in tracked if hasattr(type(each), "deserialize")}

    def _adapt_state(self, value: Any) -> HasState | None:
        return MetricState.of(value, ALONE if self._gang is None else Place(self._gang.rank, self._gang.size))

    def _find_problems(self, roots: list[reachability.Root], data: Any = None) -> list[Finding]:
        """What of the data and of the traced functions would not be the same after a restart."""
        data = self._reader.data if self._reader is not None else data
        found = find_problems(roots, self._leave_out, self._tracked, data, self._passes, self.total_steps)
        found += self._made_in_epoch
        if self._attempt.launch.deterministic and not tensorflow_conditions.has_op_determinism():
            found.append(_NOT_DETERMINISTIC)
        return found

    def _check_microbatches(self) -> None:
        if not self._uses_microbatches:
            self._attempt.reporter.show_message(
                f"memory ran out, but this script does not divide its batches into {self.split} parts; "
                f"use worker.Training, or run.microbatches(batch)"
            )

    def _finish(self) -> None:
        self._report_section(None)  # reports the wait for data since the last step
        self._checkpoints.save_final(self._step_boundary())
        self._export()
        self._serve_exports()
        results = metric_values({**self._metrics, **self._summary})
        self._attempt.reporter.send_message(Done(self._attempt.number, self.step, results))

    def _serve_exports(self) -> float:
        """Answers all requested exports with one export. Returns the seconds that it took."""
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
            return None, "cannot export from this worker: the chief worker exports; ask its daemon"
        try:
            return str(export_run(self._tracked, folder, self.step)), None
        except ExportError as error:
            return None, str(error)

    def _export(self) -> None:
        """Exports the trained model, if the job has an export_dir. Exits with SAVE_FAILED if that fails."""
        folder = self._attempt.launch.export_dir
        if folder is None or (self._gang is not None and not self._gang.is_chief):
            return
        try:
            export_run(self._tracked, folder, self.step)
        except ExportError as error:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", self.step)


def _require_python_loop() -> None:
    """Raises RuntimeError if this is called while TensorFlow traces a function: it would run once only."""
    if tf.inside_function():
        where, what = "a tf.function", "it would run once, when the function is traced, and count no step after that"
    elif tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        where, what = "strategy.run", "each replica would count every step"
    else:
        return
    raise RuntimeError(
        f"cannot count a step inside {where}: {what}; call run.step_done in the Python loop, after the function "
        f"that trains"
    )


def _open_run_checkpoints(gang: collectives.Gang | None, *given: Any) -> RunCheckpoints:
    """The checkpoints of this run; they agree with the other workers if there are others."""
    return RunCheckpoints(*given) if gang is None else GangCheckpoints(gang, *given)
