"""Keras' names that are not public: its global generator, how it takes data, and how it builds models."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from worker.internals.required import require

_attributes = require("keras.src.backend.common.global_state", "get_global_attribute")
_seeds = require("keras.src.random.seed_generator", "global_seed_generator")
_GLOBAL_GENERATOR = "global_seed_generator"  # Keras 3.15 has a constant with this text, 3.5 to 3.12 only the text
_trainers = require("keras.src.backend.tensorflow.trainer", "reduce_per_replica", "_collective_all_reduce_multi_worker")
_models = require("keras.src.models.model", "Model._flatten_layers", "Model._symbolic_build")


def global_generator() -> Any:
    """The SeedGenerator behind `keras.random`; None if it does not exist yet (`keras.utils.clear_session` drops it)."""
    return _attributes.get_global_attribute(_GLOBAL_GENERATOR)


def make_global_generator() -> None:
    """Makes it, as Keras does at its first use."""
    _seeds.global_seed_generator()


def generators_of(layer: Any) -> list[Any]:
    """The SeedGenerators that a layer has made."""
    return list(getattr(layer, "_seed_generators", ()))


def given_seed_of(generator: Any) -> Any:
    """The seed with which a SeedGenerator was made, also one that Keras drew; None if there is none."""
    return getattr(generator, "_initial_seed", None)


def learning_rate_of(optimizer: Any) -> Any:
    """The learning rate as an optimizer keeps it: a variable, a schedule, or a function."""
    return getattr(optimizer, "_learning_rate", None)


def layers_of(model: Any) -> list[Any]:
    """All layers in a model, at any depth."""
    return list(model._flatten_layers(include_self=False))


def build_symbolically(model: Any, batch: Any) -> None:
    """Creates the variables of a model, of its metrics and of its optimizer. `batch`: the specs of one."""
    model._symbolic_build(data_batch=batch)


def strategy_of(model: Any) -> tf.distribute.Strategy | None:
    """The strategy under which a model was made; None if it was none."""
    return getattr(model, "_distribute_strategy", None)


def can_be_called(model: Any) -> bool:
    """Whether a model has a `call`, and not only a train step."""
    return type(model).call is not tf.keras.Model.call


def has_built_metrics(model: Any) -> bool:
    """Whether the metrics and the loss of a compiled model have their variables."""
    parts = [getattr(model, name, None) for name in ("_compile_metrics", "_compile_loss")]
    return all(part is None or part.built for part in parts)


@contextlib.contextmanager
def without_symbolic_build(model: Any) -> Iterator[None]:
    """Prevents Keras from reading a batch at the begin of each `model.fit` under a strategy."""
    object.__setattr__(model, "_maybe_symbolic_build", lambda **named: None)
    try:
        yield
    finally:
        object.__delattr__(model, "_maybe_symbolic_build")


def average_logs_over_workers() -> None:
    """Has Keras average over all replicas what a step returns, if several workers train together.

    Its own fails: it asks for a mean over the first axis, which the value of a metric does not have.
    """
    reduce_alone = _trainers.reduce_per_replica
    if getattr(reduce_alone, "averages_over_workers", False):
        return

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        averages = reduction in ("auto", "mean") and _trainers._collective_all_reduce_multi_worker(strategy)
        return _averaged(values, strategy) if averages else reduce_alone(values, strategy, reduction)

    reduce_per_replica.averages_over_workers = True  # type: ignore[attr-defined]
    setattr(_trainers, "reduce_per_replica", reduce_per_replica)  # noqa: B010 - the type of a module has no names


def _averaged(values: Any, strategy: tf.distribute.Strategy) -> Any:
    """All in one collective operation for each type: of several small ones, each would wait for the others' workers."""
    parts = [_on_a_device(part, strategy) for part in tf.nest.flatten(values)]
    averages = list(parts)
    for dtype in dict.fromkeys(_dtype_of(part) for part in parts):
        numbers = [number for number, part in enumerate(parts) if _dtype_of(part) == dtype]
        pairs = [(parts[number], parts[number]) for number in numbers]
        reduced = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs)
        for number, part in zip(numbers, reduced, strict=True):
            averages[number] = strategy.experimental_local_results(part)[0]
    return tf.nest.pack_sequence_as(values, averages)


def _on_a_device(part: Any, strategy: tf.distribute.Strategy) -> Any:
    """TensorFlow reduces a value to the device on which it lies. The result of Keras' Sum names none, and a variable of
    Keras, such as optimizer.iterations, or a number of Python has none."""
    if isinstance(part, tf.distribute.DistributedValues) or getattr(part, "device", None):
        return part
    with tf.device(strategy.extended.worker_devices[0]):
        return tf.identity(tf.convert_to_tensor(part))


def _dtype_of(part: Any) -> Any:
    return getattr(part, "dtype", None) or tf.convert_to_tensor(part).dtype


METRICS_OF_FIT = "_metrics"
"""The attribute of a compiled model with its metrics for `fit`, which a custom loop doesn't use."""
ATTRIBUTES_OF_FIT = frozenset({METRICS_OF_FIT, "_train_counter", "_test_counter", "_predict_counter"})
"""Attributes of models, of Keras 2 too, that only `fit` uses."""
