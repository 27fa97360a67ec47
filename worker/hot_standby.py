"""The hot standby: builds the model, traces its step and runs it once, before it becomes an attempt.

What the run changed is put back afterwards: the variables that the compiled step can reach, and the random generators.
The restore then overwrites everything that a checkpoint holds. A step that keeps state anywhere else is traced but not
run. The job's data are not touched. An attempt that has no checkpoint of its own job to restore starts in a fresh
process.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker import batch_spec, loop
from worker.checkpoint.restore import build_variables
from worker.data.batches import BatchReader
from worker.data.examples import Examples
from worker.devices import strategies
from worker.internals.tensorflow_internals import is_stateful
from worker.process import standby
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.state import extra_state
from worker.state.state_file import Position

_HARMLESS_OPERATIONS = frozenset(
    {"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "VarIsInitializedOp",
     "RngReadAndSkip", "StatefulPartitionedCall", "PartitionedCall", "If", "While", "Case", "Assert", "Print",
     "PrintV2", "NoOp", "CollectiveReduceV2", "CollectiveReduce", "NcclAllReduce", "Placeholder"}
)  # fmt: skip
"""Operations that TensorFlow calls stateful although their state is in variables, or has no influence on a step."""


@dataclass(frozen=True, slots=True)
class PreparedTraining:
    """A training that was built before the attempt begins. `step` is None if it was not traced."""

    training: loop.Training
    strategy: tf.distribute.Strategy
    step: loop.TrainStep | None
    microbatches: int


def prepare(present: Attempt, describe: Callable[[], object]) -> PreparedTraining | None:
    """Builds the model and traces its step. Returns None if that is impossible: the standby is then a warm one."""
    launch = present.launch
    if launch.checkpoint_dir is None:
        return None
    if not batch_spec.is_recorded(launch.checkpoint_dir):
        present.reporter.show_message("standby: warm instead of hot, because no worker of this job has trained yet")
        return None
    strategy = strategies.build_strategy(launch)
    training = loop.build_training(describe, strategy, present)
    build_variables(tf.train.Checkpoint(model=training.model, optimizer=training.optimizer), strategy)
    step = None
    if present.is_standby:  # once it is promoted, tracing ahead would only delay the restore
        step = _trace_step(present, training, strategy, launch.microbatches, launch.checkpoint_dir)
    return PreparedTraining(training, strategy, step, launch.microbatches)


def wait_for_promotion(present: Attempt, prepared: PreparedTraining) -> None:
    """Waits until this process is an attempt and knows its checkpoint.

    Executes the process anew if what was prepared can't be used for that attempt.
    """
    if present.is_standby:
        standby.wait_for_promotion(present, standby.HOT)
    go = present.channel.wait_for_go() if present.channel is not None else None
    if go is None or go.restore is None or not Path(go.restore).is_dir():
        standby.restart_process(present, "there is no checkpoint of this job that would undo what the standby did")
    if present.launch.microbatches != prepared.microbatches:
        standby.restart_process(
            present, "the batches are now divided into another number of parts than the standby traced"
        )


def _trace_step(
    present: Attempt, training: loop.Training, strategy: tf.distribute.Strategy, microbatches: int, directory: Path
) -> loop.TrainStep | None:
    """Returns the compiled step, which has run once if that changes nothing that can't be put back."""
    started_at = time.monotonic()
    generators = extra_state.read_generators()
    step = loop.train_step(training, strategy, microbatches)
    try:
        inputs, labels = batch_spec.zero_batch(directory, strategy)
        concrete = step.get_concrete_function(inputs, labels)  # type: ignore[attr-defined]
        unrestorable = unrestorable_state(concrete)
        if unrestorable:
            present.reporter.show_message(
                f"standby: traced the step without running it, because it keeps state in {', '.join(unrestorable)}"
            )
        else:
            _run_once(step, (inputs, labels), concrete.variables)
        _read_once(strategy)
    except (batch_spec.UnknownBatchSpec, tf.errors.OpError, ValueError, TypeError) as error:
        present.reporter.show_message(f"standby: cannot trace the step ahead of time: {describe_error(error)}")
        return None
    finally:
        extra_state.write_generators(generators)
    present.reporter.show_message(f"standby: traced the step in {time.monotonic() - started_at:.1f} s")
    return step


def _run_once(step: loop.TrainStep, batch: tuple[Any, Any], variables: Iterable[Any]) -> None:
    before = [(variable, variable.numpy()) for variable in _components(variables)]
    try:
        metrics = step(*batch)
        for value in metrics.values():  # reading the values waits for the step
            _ = [float(part) for part in getattr(value, "values", (value,))]
    finally:
        for variable, value in before:
            variable.assign(value)


def _read_once(strategy: tf.distribute.Strategy) -> None:
    """Reads one batch of made-up examples, so that whatever TensorFlow loads and compiles for any dataset is there."""
    rows = 8 * strategy.num_replicas_in_sync
    reader = BatchReader(Examples(tf.zeros([rows]), batch_size=rows), strategy, Position())
    next(reader.rest_of_epoch())
    reader.abandon()


def _components(variables: Iterable[Any]) -> list[Any]:
    """Each replica's own variables, without duplicates."""
    parts = [part for variable in variables for part in getattr(variable, "values", (variable,))]
    return list({id(part): part for part in parts}.values())


def unrestorable_state(concrete: Any) -> list[str]:
    """Where a traced step keeps state that can't be put back: kinds of operations, and captured resources."""
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    local = {function.signature.name for function in definition.library.function}
    kinds = {node.op for node in nodes} - _HARMLESS_OPERATIONS - local
    known = {id(part.handle) for part in _components(concrete.variables)}
    has_resources = any(
        outer.dtype in (tf.resource, tf.variant) and id(outer) not in known and not _is_ordering_token(inner)
        for outer, inner in concrete.graph.captures
    )
    stateful = [kind for kind in kinds if not kind.startswith("Resource") and is_stateful(kind)]  # but for variables
    return sorted(stateful) + (["a table or a dataset"] if has_resources else [])


def _is_ordering_token(captured: Any) -> bool:
    """Whether it is a token by which TensorFlow keeps collective operations in order; its value is never read."""
    kinds = [consumer.type for consumer in captured.consumers()]
    return bool(kinds) and all(kind.startswith("Collective") for kind in kinds)
