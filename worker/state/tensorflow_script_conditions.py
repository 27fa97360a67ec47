"""What a TensorFlow script sets before training: its Keras optimizers with all their settings, and its seeds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from worker.internals.keras_internals import generators_of, given_seed_of, learning_rate_of
from worker.internals.tensorflow_internals import global_seed
from worker.state import extra_state
from worker.state.script_conditions import (
    GOES_ON,
    Condition,
    Kind,
    Made,
    is_seed_of_script,
    leaves,
    limited,
    plain,
    seeds_of_generators,
)

_NOT_COMPARED = frozenset({"name", "module", "registered_name", "build_config", "compile_config", "shared_object_id"})
"""Keys of a Keras configuration that say nothing about training; names have numbers that depend on what was made."""


def read_conditions(tracked: tf.train.Checkpoint, own: Sequence[extra_state.OwnGenerator]) -> dict[str, Condition]:
    """The present conditions, by name. Before a restore, they are what the script made."""

    def every() -> Iterator[tuple[str, Condition]]:
        for name, optimizer in _optimizers(tracked):
            yield from _conditions_of(name, optimizer)
        yield "the dtype policy", Condition(plain(tf.keras.config.dtype_policy().name))
        yield from _seeds(tracked, own)

    return limited(every())


def _optimizers(tracked: tf.train.Checkpoint) -> Iterator[tuple[str, Any]]:
    """Yields the outermost optimizers with their paths from the checkpoint, which scripts mostly use as names too."""
    view = tf.train.TrackableView(tracked)
    waiting: list[tuple[str, Any]] = [("", tracked)]
    seen = {id(tracked)}
    for path, node in waiting:
        if isinstance(node, tf.keras.optimizers.Optimizer):
            yield path, node
            continue
        for name, child in view.children(node).items():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}.{name}".lstrip("."), child))


def _conditions_of(name: str, optimizer: Any) -> Iterator[tuple[str, Condition]]:
    yield f"the class of {name}", Condition(type(optimizer).__name__)
    try:
        config = optimizer.get_config()
    except Exception:  # noqa: BLE001 - the script's own class, or a setting that Keras has no configuration for
        config = {"learning_rate": _plain_rate(optimizer)}
    inner = getattr(optimizer, "inner_optimizer", None)  # of loss scaling
    if isinstance(inner, tf.keras.optimizers.Optimizer):
        config = {key: value for key, value in config.items() if key != "inner_optimizer"}
        yield from _conditions_of(f"{name}.inner_optimizer", inner)
    for path, value in leaves(_of_training(config), name):
        is_variable = path == f"{name}.learning_rate" and isinstance(value, float)
        if is_variable and inner is None:
            yield path, Condition(value, Kind.RESTORED, f"{path} = {value}")
        elif not is_variable:
            yield path, Condition(value)


def _plain_rate(optimizer: Any) -> Any:
    """The learning rate of an optimizer whose configuration can't be read; of a function its name."""
    rate = learning_rate_of(optimizer)
    return float(rate.numpy()) if isinstance(rate, tf.Variable | tf.keras.Variable) else plain(rate)


def _of_training(value: Any) -> Any:
    """A Keras configuration without names; objects in it (schedules) by their class, with what they were given."""
    if isinstance(value, Mapping):
        if "class_name" in value and "config" in value:
            return Made(value["class_name"], _of_training(value["config"]))
        return {key: _of_training(entry) for key, entry in value.items() if key not in _NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [_of_training(entry) for entry in value]
    return value


def _seeds(tracked: tf.train.Checkpoint, own: Sequence[extra_state.OwnGenerator]) -> Iterator[tuple[str, Condition]]:
    seed = global_seed()
    if seed is not None:
        yield (
            "the global seed",
            Condition(
                seed,
                Kind.SEED,
                f"keras.utils.set_random_seed({seed})",
                f"{GOES_ON}, while data without a seed of their own are in the order of the script's",
            ),
        )
    layers = extra_state.tracked_objects(tracked, tf.keras.layers.Layer)
    generators = [generator for layer in layers for generator in generators_of(layer)]
    of_keras = [made for made in [*generators, *own] if isinstance(made, tf.keras.random.SeedGenerator)]
    seeds = [seed if is_seed_of_script(seed) else None for seed in map(given_seed_of, of_keras)]
    if any(seed is not None for seed in seeds):
        yield "the seeds of Keras layers and SeedGenerators", Condition(plain(str(seeds)), Kind.SEED, used=GOES_ON)
    yield from seeds_of_generators(own)
