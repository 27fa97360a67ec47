"""TensorFlow's names that are not public, but for those of tf.data."""

import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from worker.internals.required import require

_context: Any = require(
    "tensorflow.python.eager.context", "context", "global_seed", "set_global_seed",
    "Context.set_config_key_value", "Context.get_config_key_value", "Context.delete_config_key_value",
    "Context.get_task_states",
)  # fmt: skip
_distribute = require("tensorflow.python.distribute.distribute_lib", "_DefaultDistributionStrategy")
_functions = require(
    "tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function._list_all_concrete_functions"
)
_generators = require("tensorflow.python.ops.stateful_random_ops", "global_generator")
_operations = require("tensorflow.python.framework.op_def_registry", "get")
_config = require("tensorflow.python.framework.config", "is_op_determinism_enabled")
_built = require("tensorflow.python.util._pywrap_util_port", "IsMklEnabled")
_variables = require(
    "tensorflow.python.ops.resource_variable_ops",
    "BaseResourceVariable._serialize_to_tensors",
    "BaseResourceVariable._get_save_slice_info",
)
_trackable = require(
    "tensorflow.python.trackable.base",
    "Trackable._serialize_to_tensors",
    "Trackable._gather_saveables_for_checkpoint",
)
_values = require("tensorflow.python.distribute.values", "MirroredVariable")
_arrays = require("tensorflow.python.ops.tensor_array_ops", "TensorArray", "_EagerTensorArray")
_saveables = require("tensorflow.python.training.saving.saveable_object_util", "SaveableCompatibilityConverter.obj")
_saver = require(
    "tensorflow.python.checkpoint.checkpoint", "TrackableSaver._gather_serialized_tensors", "Checkpoint.write"
)
random_kernels = require(
    "tensorflow.python.ops.gen_random_ops",
    "random_standard_normal", "truncated_normal", "random_uniform", "random_uniform_int", "random_shuffle",
    "multinomial", "random_gamma", "random_poisson_v2",
)  # fmt: skip
"""What all of tf.random, tf.nn and tf.image draws through."""


# --- seeds ------------------------------------------------------------------------------------------------------------


def global_seed() -> int | None:
    """The seed of `tf.random.set_seed`; None if there is none."""
    seed = _context.global_seed()
    return None if seed is None else int(seed)


def global_random_generator() -> tf.random.Generator | None:
    """What `tf.random.get_global_generator` gives; None if nobody has called that yet, which would make one."""
    return _generators.global_generator


def on_new_global_seed(heard: Callable[[Any], None]) -> None:
    """From now on, calls `heard` with each global seed that is set."""
    set_global_seed = _context.set_global_seed

    def reseed(seed: Any) -> None:
        set_global_seed(seed)
        heard(seed)

    _context.set_global_seed = reseed


def seed_sequence() -> random.Random | None:
    """From which operations and datasets without a seed of their own take one; None without a global seed."""
    sequence = getattr(_context.context(), "_rng", None)
    return sequence if isinstance(sequence, random.Random) else None


# --- operations and functions -----------------------------------------------------------------------------------------


def is_stateful(operation: str) -> bool:
    """Whether a kind of operation has state; one that nobody knows has."""
    definition = _operations.get(operation)
    return definition is None or bool(definition.is_stateful)


def is_op_determinism_enabled() -> bool:
    """Whether TensorFlow's operations are deterministic."""
    return bool(_config.is_op_determinism_enabled())


def is_onednn_enabled() -> bool:
    """Whether TensorFlow uses oneDNN, which was decided when it was imported."""
    return bool(_built.IsMklEnabled())


def graphs_of(function: Any) -> list[Any]:
    """The graphs that a tf.function has traced by now, with those of the functions in them, each once."""
    graphs = [concrete.graph for concrete in function._list_all_concrete_functions()]
    seen = {id(graph) for graph in graphs}
    for graph in graphs:
        for inner in getattr(graph, "_functions", {}).values():
            if (other := getattr(inner, "graph", None)) is not None and id(other) not in seen:
                seen.add(id(other))
                graphs.append(other)
    return graphs


# --- variables and strategies -----------------------------------------------------------------------------------------


BaseResourceVariable: Any = _variables.BaseResourceVariable
"""What tf.Variable makes."""

_SAVE = "_serialize_to_tensors"


def save_method_of(kind: type) -> Any:
    """How objects of a class give their tensors to a saver; None if they don't."""
    return getattr(kind, _SAVE, None)


def may_save_itself(item: Any) -> bool:
    """Whether a tracked object may have state of its own, besides its children."""
    if getattr(item, "_self_saveable_object_factories", None):
        return True
    overridden = (_SAVE, "_gather_saveables_for_checkpoint")
    return any(getattr(type(item), name, None) is not getattr(_trackable.Trackable, name) for name in overridden)


def gather_serialized_tensors(tracked: tf.train.Checkpoint) -> tuple[Any, Any]:
    """What the saver of a checkpoint writes, by object, and the objects with a saver of their own.

    Raises AttributeError or TypeError if it is no saver of TensorFlow's.
    """
    gathered, _, registered, _ = tracked._saver._gather_serialized_tensors()
    return gathered, registered


def tensors_of_array(array: tf.TensorArray) -> list[Any]:
    """The tensors that were written to a `tf.TensorArray`; none in a graph. To read them in public may clear them."""
    implementation = getattr(array, "_implementation", None)
    held = implementation._tensor_array if isinstance(implementation, _arrays._EagerTensorArray) else []
    return [tensor for tensor in held if tensor is not None]


def slice_of(variable: Any) -> Any:
    """Of what a variable of TF1 is a part, with `full_name` and `full_shape`; None if it is whole."""
    return variable._get_save_slice_info()


def session_config(session: Any) -> Any:
    """The ConfigProto that a session of TF1 was given; None if it was given none."""
    return getattr(session, "_config", None)


def is_default_strategy(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is the one that TensorFlow uses where a script names none: one device, nothing spread."""
    return isinstance(strategy, _distribute._DefaultDistributionStrategy)


def is_mirrored(item: Any) -> bool:
    """Whether an object that `gather_serialized_tensors` names is a variable, of TensorFlow or Keras, that a strategy
    keeps the same on all of its replicas."""
    if isinstance(item, _saveables.SaveableCompatibilityConverter):
        item = item.obj
    return isinstance(item.value if isinstance(item, tf.keras.Variable) else item, _values.MirroredVariable)


# --- the coordination service of processes that train together --------------------------------------------------------

CAN_WAIT_FOR_TEXTS = "timeout_in_ms" in inspect.signature(_context.Context.get_config_key_value).parameters
"""Whether this release can stop waiting for a text."""


def publish_text(key: str, text: str) -> None:
    """Gives the other processes a text, under a key that has none. On any thread. Raises tf.errors.OpError."""
    _context.context().set_config_key_value(key, text)


def wait_for_text(key: str, timeout_s: float) -> str | None:
    """The text under a key, as soon as there is one; None after `timeout_s`. On any thread, and others run meanwhile.

    Raises tf.errors.OpError if the first process, which keeps the texts, can't be reached.
    """
    try:
        return str(_context.context().get_config_key_value(key, int(timeout_s * 1000)))
    except tf.errors.DeadlineExceededError:
        return None


def delete_texts(folder: str) -> None:
    """Deletes those whose keys begin with this and a slash."""
    _context.context().delete_config_key_value(folder)


def lost_processes(jobs: Sequence[tuple[str, int]]) -> list[int]:
    """The processes that were lost or failed, numbered in the order of `jobs`: name, and how many there are."""
    states = _context.context().get_task_states(list(jobs))
    return [number for number, state in enumerate(states) if state is not None]
