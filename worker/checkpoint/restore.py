"""Restores a checkpoint into the program, and accounts for everything that only one of them has."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.plurals import counted
from worker.checkpoint.replica_parts import ReplicaParts
from worker.checkpoint.restore_in_place import restore_in_place
from worker.checkpoint.snapshot import find_variables_not_finite, tensor_name
from worker.devices.tpu import host_io_options
from worker.internals.keras_internals import layers_of
from worker.saving.directory import UNFIT_REMEDY, Unfit
from worker.saving.memory_checkpoint import MemoryCheckpoint
from worker.state import extra_state
from worker.state import state_file as state
from worker.state.replica_values import ALONE, Place, assign_copies
from worker.state.state_file import TrainingState

MAX_NAMED = 50  # names listed in a message
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"  # variables of Keras 2's optimizers, which are no children of theirs


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A checkpoint that was restored. `unmatched`: what it holds and the program has no place for, in words.

    `created_wall_at`: as its manifest says; None if it has none.
    """

    name: str
    state: TrainingState
    unmatched: tuple[str, ...]
    size_bytes: int
    took_s: float
    created_wall_at: float | None = None


def build_variables(tracked: tf.train.Checkpoint, strategy: tf.distribute.Strategy | None) -> None:
    """Creates the variables that Keras would create at the first step, so that they can be restored.

    Raises ValueError, saying what to call, where a model or an optimizer can't be built from here.
    """
    models = extra_state.tracked_objects(tracked, tf.keras.Model)
    for model in models:
        if not has_variables(model):
            raise ValueError(
                f"cannot restore into model {model.name!r}: it has no variables yet; give it an Input, or call "
                f"it once, as in model(x), before worker.Run"
            )
    # loss scaling wraps another one
    optimizers = outermost(extra_state.tracked_objects(tracked, tf.keras.optimizers.Optimizer))
    waiting = [optimizer for optimizer in optimizers if not optimizer.built]
    outer = outermost(models)
    unclear = [optimizer for optimizer in waiting if _trained_by(optimizer, waiting, models) is None]
    if unclear:
        names = " and ".join(repr(optimizer.name) for optimizer in unclear)
        each = "" if len(unclear) == 1 else " of each"
        raise ValueError(
            f"cannot find out which variables {names} {'trains' if len(unclear) == 1 else 'train'}: the "
            f"tf.train.Checkpoint tracks {counted(len(outer), 'Keras model')} and "
            f"{counted(len(waiting), 'optimizer')} without variables; call build{each} with what it trains before "
            f"worker.Run, as in optimizer.build(model.trainable_variables)"
        )
    scope: AbstractContextManager[Any] = nullcontext() if strategy is None else strategy.scope()
    with scope:
        for optimizer in waiting:
            optimizer.build(_trained_by(optimizer, waiting, models))
    extra_state.create_global_seed(strategy)


def _trained_by(optimizer: Any, waiting: list[Any], models: list[tf.keras.Model]) -> list[Any] | None:
    """The variables that an optimizer trains, one of those `waiting` for theirs; None if that is unclear.

    They are those of the model that was compiled with it, unless that is frozen now, as a GAN's discriminator is; of
    one that no model was compiled with, those of the only model.
    """
    compiled = {id(model.optimizer): model for model in reversed(models) if getattr(model, "optimizer", None)}
    others = [item for item in waiting if id(item) not in compiled]
    outer = outermost(models)
    if id(optimizer) in compiled:
        return list(compiled[id(optimizer)].trainable_variables) or None
    return list(outer[0].trainable_variables) if len(outer) == len(others) == 1 else None


def has_variables(model: tf.keras.Model) -> bool:
    """Whether a model is built. One that was never called may consist of built layers (as a GAN has two models), and
    `build` of one that does not define it only says so: its layers have no variables then.
    """
    layers = layers_of(model)
    if model.built:
        return bool(model.weights) or all(layer.built for layer in layers)
    own_build = type(model).build is not tf.keras.Model.build
    return bool(layers) and not own_build and all(layer.built for layer in layers)


def outermost(objects: list[Any]) -> list[Any]:
    """The objects that are part of no other one in the list (a Sequential model holds a functional one)."""
    parts = {id(part) for whole in objects for part in tf.train.TrackableView(whole).descendants() if part is not whole}
    return [item for item in objects if id(item) not in parts]


def restore_checkpoint(
    tracked: tf.train.Checkpoint,
    folder: Path,
    replicas: int,
    own: Sequence[extra_state.OwnGenerator] = (),
    place: Place = ALONE,
    memory: MemoryCheckpoint | None = None,
) -> RestoredCheckpoint:
    """Restores the verified checkpoint in `folder` into the tracked objects and the random generators.

    `own`: the script's own generators, in the order in which they were saved. `replicas`: those of all processes;
    `place`: of this one among them. The generators that it gets are the chief's, the per-replica values its own.
    `memory`: what `folder` shows.

    Raises Unfit if the program has a variable that the checkpoint does not hold: training from a half-restored state
    would look like progress. OSError or tf.errors.OpError if it can't be read.
    """
    started = time.monotonic()
    unmatched = _restore_tracked(tracked, folder, memory)
    try:
        host = state.parse_state((folder / layout.STATE).read_bytes())
        hidden = extra_state.extra_variables(tracked)
        extra_state.write_seeds(hidden, host.seeds)
        extra_state.write_generators(host.generators, own)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unfit(f"cannot restore {folder.name}: {error}; {UNFIT_REMEDY}") from error
    unmatched += _restore_copies(hidden, host, ReplicaParts(folder), replicas, place)
    whole, took_s = manifest.read_manifest(folder), time.monotonic() - started
    return RestoredCheckpoint(folder.name, host, tuple(unmatched), whole.size_bytes, took_s, whole.created_wall_at)


def finish_normalization(tracked: tf.train.Checkpoint) -> None:
    """Has each Normalization layer compute again with what was restored: it uses copies of its variables, which Keras
    makes where it loads them itself."""
    for layer in extra_state.tracked_objects(tracked, tf.keras.layers.Normalization):
        layer.finalize_state()


def require_finite(tracked: tf.train.Checkpoint, folder: Path) -> None:
    """Raises Unfit if a state that was in memory, and that nobody has checked yet, is not finite: training diverged.

    Whatever was not finite already when that training began is left out.
    """
    try:
        record = json.loads((folder / layout.FROM_MEMORY).read_bytes())
    except FileNotFoundError:
        return
    bad = sorted(find_variables_not_finite(tracked) - frozenset(record["not_finite"]))
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        name = tensor_name(bad[0])
        raise Unfit(f"cannot restore {folder.name}: {name}{more} is not finite; training diverged before it was copied")


def _restore_tracked(tracked: tf.train.Checkpoint, folder: Path, memory: MemoryCheckpoint | None) -> list[str]:
    prefix = str(folder / layout.PREFIX)
    if restore_in_place(tracked, folder / layout.PREFIX, proven=None if memory is None else memory.content):
        return []
    if memory is not None:
        memory.add_checksums(folder)
    try:
        status = tracked.read(prefix, options=host_io_options())
        try:
            status.assert_consumed()
            return []
        except AssertionError:  # the checkpoint holds more than the program has, or less
            status.assert_existing_objects_matched()
    except (ValueError, AssertionError, tf.errors.InvalidArgumentError) as error:
        cause = compare_variables(tracked, prefix).describe()
        if not cause and isinstance(error, tf.errors.OpError):
            raise
        cause = cause or " ".join(str(error).split())[:500]
        raise Unfit(f"cannot restore {folder.name}: it does not fit this program: {cause}; {UNFIT_REMEDY}") from error
    extra = compare_variables(tracked, prefix).only_stored
    return [f"{name} (only in the checkpoint)" for name in extra[:MAX_NAMED]]


def _restore_copies(
    hidden: extra_state.ExtraVariables, host: TrainingState, parts: ReplicaParts, replicas: int, place: Place
) -> list[str]:
    """Restores the own values of this process's replicas. Returns, in words, what could not be restored as it was."""
    if host.copies == 0 or host.replicas == 0:
        return []
    variables = hidden.saved_apart(host.replicas)
    values = parts.values_of(host, len(variables))
    if values is None:
        return [f"per-replica values ({host.copies} in the checkpoint, {len(variables)} variables in the program)"]
    for variable, copies in zip(variables, values, strict=True):
        assign_copies(variable, copies, place)
    if host.replicas == replicas:
        return []
    written = counted(host.replicas, "replica")
    return [f"per-replica values (written by {written}, now {replicas}: sums are kept, of averages the mean is taken)"]


@dataclass(frozen=True, slots=True)
class VariableDifferences:
    """Variables that only the program or only the checkpoint has, and those of other types or shapes, in words."""

    only_tracked: tuple[str, ...]
    only_stored: tuple[str, ...]
    differing: tuple[str, ...]

    def describe(self) -> str:
        """Why the checkpoint does not fit the program; empty if it does."""
        missing = f"it does not hold {_list(self.only_tracked)}" if self.only_tracked else ""
        return "; ".join(filter(None, [missing, _list(self.differing)]))


def compare_variables(tracked: tf.train.Checkpoint, prefix: str) -> VariableDifferences:
    """Compares a program's variables with those of the checkpoint at `prefix`."""
    stored = tf.train.CheckpointView(prefix)
    matched, only_stored, only_tracked = stored.diff(tracked)
    keys = {node: path + _VALUE for node, path in _paths(0, stored.children).items()}
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    pairs = [(variable, keys[node]) for node, variable in matched.items() if keys.get(node) in shapes]
    return VariableDifferences(
        only_tracked=tuple(sorted(_name(variable) for variable in only_tracked if isinstance(variable, _VARIABLES))),
        only_stored=tuple(sorted(keys[node].removesuffix(_VALUE) for node in only_stored if keys.get(node) in shapes)),
        differing=tuple(
            f"{_name(variable)} is {stored_as} in the checkpoint and {wanted} in the program"
            for variable, key in pairs
            if (stored_as := describe_tensor(dtypes[key], shapes[key]))
            != (wanted := describe_tensor(variable.dtype, variable.shape))
        ),
    )


def has_place_for_all(tracked: tf.train.Checkpoint, prefix: str) -> bool:
    """Whether the program has an object for everything in the checkpoint at `prefix`, so that a restore reads all of it
    at once: TensorFlow reads the rest later, from the same files, if the program makes such objects then."""
    stored = tf.train.CheckpointView(prefix)
    paths = _paths(0, stored.children)
    _, only_stored, _ = stored.diff(tracked)
    missing = tuple(f"{paths[node]}/.ATTRIBUTES/".lstrip("/") for node in only_stored if node in paths)
    names = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    return not any(name.startswith(missing) or _SLOT in name for name in names)


def describe_tensor(dtype: Any, shape: Any) -> str:
    """The type and the shape of a tensor in a few words."""
    return f"{tf.as_dtype(dtype).name} {list(shape)}"


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


_VARIABLES = (tf.Variable, tf.keras.Variable)


def _paths(root: int, children: Any) -> dict[int, str]:
    """The shortest path to each node, as TensorFlow names keys in a checkpoint."""
    paths, waiting = {root: ""}, [root]
    for node in waiting:
        for name, child in children(node).items():
            if child not in paths:
                paths[child] = f"{paths[node]}/{name}".lstrip("/")
                waiting.append(child)
    return paths


def _list(names: tuple[str, ...]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
