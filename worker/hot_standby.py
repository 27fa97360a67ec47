"""The hot standby: a model that is built, and a step that is traced and has run once, before there is an attempt.

What the run changed is put back: the variables that the compiled step can reach, and the random generators; then the
restore writes all that a checkpoint holds. A step that keeps state anywhere else is traced and not run. The job's data
are not touched. What has no checkpoint of its own to begin from, begins in a fresh process.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry  # there is no public way to ask whether an operation has state

from supervisor.protocol.exit_codes import WorkerExit
from worker import batch_spec, loop
from worker.checkpoint import devices
from worker.checkpoint.restore import build_variables
from worker.data.batches import BatchReader, Examples
from worker.process import standby
from worker.process.attempt import Attempt, describe_error
from worker.state import extra_state
from worker.state.state_file import Position

_STATELESS_ENOUGH = frozenset(
    {"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "VarIsInitializedOp",
     "RngReadAndSkip", "StatefulPartitionedCall", "PartitionedCall", "If", "While", "Case", "Assert", "Print",
     "PrintV2", "NoOp", "CollectiveReduceV2", "CollectiveReduce", "NcclAllReduce", "Placeholder"}
)  # fmt: skip
"""Operations that TensorFlow calls stateful and whose state is in variables, or that have none that decides a step."""


@dataclass(frozen=True, slots=True)
class PreparedTraining:
    """What is there before the attempt begins. `step`: None where it was not traced."""

    training: loop.Training
    strategy: tf.distribute.Strategy
    step: loop.Step | None
    microbatches: int


def prepare(present: Attempt, describe: Callable[[], object]) -> PreparedTraining | None:
    """Builds and traces; None where that can't be, and the standby is to be a warm one."""
    told = present.launch
    if told.checkpoint_dir is None:
        return None
    if not batch_spec.is_recorded(told.checkpoint_dir):
        present.reporter.show_message("standby: warm, not hot: no worker of this job has trained yet")
        return None
    strategy = devices.build_strategy(told)
    with strategy.scope():
        training = describe()
    if not isinstance(training, loop.Training):
        present.exit_with_error(
            WorkerExit.BAD_LAUNCH, f"cannot train: got a {type(training).__name__}, not a worker.Training"
        )
    build_variables(tf.train.Checkpoint(model=training.model, optimizer=training.optimizer), strategy)
    step = None
    if present.is_standby:  # else there is no time to lose
        step = _trace_step(present, training, strategy, told.microbatches, told.checkpoint_dir)
    return PreparedTraining(training, strategy, step, told.microbatches)


def wait_for_promotion(present: Attempt, heated: PreparedTraining) -> None:
    """Waits to be an attempt, and for what it begins from; executes the process anew where that is not for it."""
    if present.is_standby:
        standby.wait_for_promotion(present, standby.HOT)
    go = present.channel.wait_for_go() if present.channel is not None else None
    if go is None or go.restore is None or not Path(go.restore).is_dir():
        standby.restart_process(present, "there is no checkpoint of this job that would undo what the standby did")
    if present.launch.microbatches != heated.microbatches:
        standby.restart_process(present, "batches are divided into other parts than the standby traced")


def _trace_step(
    present: Attempt, training: loop.Training, strategy: tf.distribute.Strategy, microbatches: int, directory: Path
) -> loop.Step | None:
    """The compiled step, run once where that leaves no trace."""
    began = time.monotonic()
    generators = extra_state.read_generators()
    step = loop.train_step(training, strategy, microbatches)
    try:
        inputs, labels = batch_spec.zero_batch(directory, strategy)
        concrete = step.get_concrete_function(inputs, labels)  # type: ignore[attr-defined]
        hidden = unrestorable_state(concrete)
        if hidden:
            present.reporter.show_message(
                f"standby: its step is traced, not run, as it keeps state in {', '.join(hidden)}"
            )
        else:
            _run_once(step, (inputs, labels), concrete.variables)
        _read_once(strategy)
    except (batch_spec.UnknownBatchSpec, tf.errors.OpError, ValueError, TypeError) as error:
        present.reporter.show_message(f"standby: its step is not traced: {describe_error(error)}")
        return None
    finally:
        extra_state.write_generators(generators)
    present.reporter.show_message(f"standby: traced its step in {time.monotonic() - began:.1f} s")
    return step


def _run_once(step: loop.Step, batch: tuple[Any, Any], variables: Iterable[Any]) -> None:
    kept = [(variable, variable.numpy()) for variable in _components(variables)]
    try:
        figures = step(*batch)
        _ = [float(each) for figure in figures.values() for each in getattr(figure, "values", (figure,))]  # waits
    finally:
        for variable, value in kept:
            variable.assign(value)


def _read_once(strategy: tf.distribute.Strategy) -> None:
    """Takes one batch of examples of nobody's: what TensorFlow loads and compiles for any dataset is there then."""
    rows = 8 * strategy.num_replicas_in_sync
    feed = BatchReader(Examples(tf.zeros([rows]), batch_size=rows), strategy, Position())
    next(feed.rest_of_epoch())
    feed.abandon()


def _components(variables: Iterable[Any]) -> list[Any]:
    """Each replica's own, once."""
    parts = [part for each in variables for part in getattr(each, "values", (each,))]
    return list({id(part): part for part in parts}.values())


def unrestorable_state(concrete: Any) -> list[str]:
    """Where a traced step keeps state that nobody can put back: kinds of operations, and captured resources."""
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    local = {function.signature.name for function in definition.library.function}
    kinds = {node.op for node in nodes} - _STATELESS_ENOUGH - local
    known = {id(part.handle) for part in _components(concrete.variables)}
    resources = any(
        outer.dtype in (tf.resource, tf.variant) and id(outer) not in known and not _is_ordering_token(inner)
        for outer, inner in concrete.graph.captures
    )
    return sorted(kind for kind in kinds if _has_state(kind)) + (["a table or a dataset"] if resources else [])


def _is_ordering_token(captured: Any) -> bool:
    """Whether it is a token by which TensorFlow keeps collective operations in order; nobody reads a value of it."""
    kinds = [consumer.type for consumer in captured.consumers()]
    return bool(kinds) and all(kind.startswith("Collective") for kind in kinds)


def _has_state(kind: str) -> bool:
    if kind.startswith("Resource"):  # reads and updates of variables
        return False
    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful
