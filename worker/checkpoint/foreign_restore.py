"""Starts from a checkpoint that another program wrote: tf.train.CheckpointManager's by objects, TF1 Saver's by names.

It must hold all weights of the models: training a half-random model would look like progress. Other variables of the
program (moments of an optimizer, counters) keep their initial values if the checkpoint doesn't hold them, and are
reported. Data begin at the start of an epoch, and random state at its seed, as no such checkpoint holds them.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol.checkpoints import foreign
from supervisor.protocol.damage import BundleError
from supervisor.protocol.tensorbundle import verify
from worker.checkpoint.restore import MAX_NAMED, RestoredCheckpoint, compare_variables
from worker.devices.tpu import host_io_options
from worker.saving.directory import Unfit
from worker.state import extra_state
from worker.state.state_file import Position, TrainingState

SURE = ("global_step", "step", "iter")  # a step counter in the checkpoint itself, not a guess from its name
SLOTS = (("momentum", "Adam"), ("velocity", "Adam_1"), ("momentum", "Momentum"))  # of Keras optimizers, of TF1's
BOOKKEEPING = ("beta1_power", "beta2_power", "global_step")  # in TF1's Adam; Keras computes them from the step


def restore_foreign(tracked: tf.train.Checkpoint, prefix: Path) -> RestoredCheckpoint:
    """Restores the verified checkpoint at `prefix` into the tracked objects.

    Raises Unfit if it doesn't hold all weights of the models; OSError or tf.errors.OpError if it can't be read.
    """
    started = time.monotonic()
    try:
        bundle = verify.read_counters(prefix)
    except BundleError as error:  # it was whole a moment ago
        raise Unfit(f"cannot restore {prefix}: {error}") from error
    step, source = foreign.step_of_bundle(bundle)
    unmatched = _by_objects(tracked, prefix) if bundle.object_based else _by_names(tracked, prefix, step)
    if not any(word in source for word in SURE):
        unmatched.append(f"the step, which is taken to be {step}, from {source}")
    state = TrainingState(step=step, position=Position())
    return RestoredCheckpoint(
        prefix.name, state, tuple(unmatched[:MAX_NAMED]), bundle.size_bytes, time.monotonic() - started
    )


def _weights(tracked: tf.train.Checkpoint) -> list[Any]:
    """The weights of the program's models, without random state and statistics."""
    weights = {
        id(variable): variable
        for model in extra_state.tracked_objects(tracked, tf.keras.Model)
        for variable in model.trainable_variables
    }
    return list(weights.values())


def _by_objects(tracked: tf.train.Checkpoint, prefix: Path) -> list[str]:
    try:
        tracked.restore(str(prefix), options=host_io_options())
    except (ValueError, tf.errors.InvalidArgumentError) as error:  # another shape or type
        cause = compare_variables(tracked, str(prefix)).describe()
        if not cause and isinstance(error, tf.errors.OpError):
            raise
        cause = cause or " ".join(str(error).split())[:500]
        raise _unfit(prefix, cause) from error
    _, _, missing = tf.train.CheckpointView(str(prefix)).diff(tracked)
    without = {id(node) for node in missing}
    differences = compare_variables(tracked, str(prefix))
    bare = [weight.path for weight in _weights(tracked) if id(weight) in without]
    if bare or differences.differing:
        theirs = f"; what it holds and the program doesn't track: {', '.join(differences.only_stored[:MAX_NAMED])}"
        raise _unfit(prefix, differences.describe() + (theirs if differences.only_stored else ""))
    here = [f"{name} (not in the checkpoint)" for name in differences.only_tracked if name != "save_counter"]
    return [*here, *(f"{name} (only in the checkpoint)" for name in differences.only_stored if name != "save_counter")]


def _by_names(tracked: tf.train.Checkpoint, prefix: Path, step: int) -> list[str]:
    """Restores by variable names, which are paths in TF1 and in Keras; the first part may be the model's own name."""
    reader = tf.train.load_checkpoint(str(prefix))
    shapes = reader.get_variable_to_shape_map()
    placed: list[tuple[Any, str]] = []
    bare, here = [], []
    weights = {id(weight) for weight in _weights(tracked)}
    for variable in _model_variables(tracked):
        name = next((name for name in _names_of(variable) if shapes.get(name) == list(variable.shape)), None)
        if name is not None:
            placed.append((variable, name))
        elif id(variable) in weights:
            bare.append(f"{variable.path} {list(variable.shape)}")
        else:
            here.append(f"{variable.path} (not in the checkpoint)")
    if bare:
        held = ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items())[:MAX_NAMED])
        raise _unfit(prefix, f"it does not hold {', '.join(bare[:MAX_NAMED])}; it holds {held}")
    for optimizer in extra_state.tracked_objects(tracked, tf.keras.optimizers.Optimizer):
        set_iterations(optimizer, step)
        slots, without = _slots(optimizer, placed, shapes)
        placed, here = [*placed, *slots], [*here, *without]
    for variable, name in placed:
        variable.assign(reader.get_tensor(name))
    used = {name for _, name in placed}
    left = [name for name in sorted(shapes) if name not in used and name.rpartition("/")[2] not in BOOKKEEPING]
    return [*here, *(f"{name} (only in the checkpoint)" for name in left)]


def _model_variables(tracked: tf.train.Checkpoint) -> Iterator[Any]:
    """Every variable of the models that a checkpoint can hold, once."""
    seen: set[int] = set()
    for model in extra_state.tracked_objects(tracked, tf.keras.Model):
        for variable in model.weights:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def _names_of(variable: Any) -> list[str]:
    """The names that a variable may have in TF1: its path and the ends of it; the longest first."""
    parts = variable.path.split("/")
    return ["/".join(parts[first:]) for first in range(len(parts))]


def set_iterations(optimizer: Any, step: int) -> None:
    """Has an optimizer go on from so many updates; one that accumulates gradients counts batches."""
    batches = getattr(optimizer, "gradient_accumulation_steps", None) or 1
    counter = optimizer.iterations
    if batches > 1:
        counter = next(variable for variable in optimizer.variables if variable.name == "iteration")
    counter.assign(step * batches)


def _slots(
    optimizer: Any, placed: list[tuple[Any, str]], shapes: dict[str, list[int]]
) -> tuple[list[tuple[Any, str]], list[str]]:
    """An optimizer's moments with their names in the checkpoint, and the paths of those that it lacks."""
    own = {variable.path: variable for variable in optimizer.variables}
    names: dict[str, str] = {}
    for weight, name in placed:
        for ours, theirs in SLOTS:
            path = f"{optimizer.name}/{weight.path.replace('/', '_')}_{ours}"
            if path in own and f"{name}/{theirs}" in shapes:
                names.setdefault(path, f"{name}/{theirs}")
    rest = [path for path in own if path not in names and path.rpartition("/")[2] not in ("iteration", "learning_rate")]
    return [(own[path], name) for path, name in names.items()], [f"{path} (not in the checkpoint)" for path in rest]


def _unfit(prefix: Path, cause: str) -> Unfit:
    return Unfit(
        f"cannot begin from {prefix}: it does not fit this program: {cause}; track the same objects under the same "
        f"names as the program that wrote it"
    )
