"""State that influences the next step and is in no TensorFlow checkpoint: random generators, replicas' own values."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.internals.keras_internals import generators_of, global_generator, make_global_generator
from worker.state import random_generators, random_operations
from worker.state.replica_values import SEED_NAME, is_own_variable, per_replica_variables

OwnGenerator = Any
"""A generator that the script made: a Keras SeedGenerator, a NumPy Generator or RandomState, a random.Random."""

_SEED_STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)  # golden ratio in 64 bits: keeps replicas' seeds far from other layers'


@dataclass(frozen=True, slots=True)
class ExtraVariables:
    """The variables that a `tf.train.Checkpoint` leaves out or does not save whole, in construction order.

    `seeds`: states of Keras SeedGenerators (Dropout, augmentation), which TensorFlow does not track.
    `per_replica`: variables that have a value of their own on each replica, of which TensorFlow saves one value.
    """

    seeds: tuple[Any, ...]
    per_replica: tuple[Any, ...]

    def saved_apart(self, replicas: int) -> list[Any]:
        """The `per_replica` variables whose values are saved besides; none if TensorFlow saves all there is.

        With one replica that is so, but for variables of the script's own, which other numbers of replicas divide.
        """
        return [variable for variable in self.per_replica if replicas > 1 or is_own_variable(variable)]


def extra_variables(checkpoint: tf.train.Checkpoint) -> ExtraVariables:
    """Finds them in what `checkpoint` tracks. Call it once the models are built."""
    seeds = tuple(variable for variable in keras_variables(checkpoint) if variable.name == SEED_NAME)
    return ExtraVariables(
        seeds, per_replica_variables(keras_variables(checkpoint), tracked_objects(checkpoint, tf.Variable))
    )


def keras_variables(checkpoint: tf.train.Checkpoint) -> Iterator[Any]:
    """Yields each Keras variable of each tracked layer once."""
    seen: set[int] = set()
    for layer in tracked_objects(checkpoint, tf.keras.layers.Layer):
        for variable in layer.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def tracked_objects(checkpoint: tf.train.Checkpoint, kind: Any) -> list[Any]:
    """All objects of a kind that `checkpoint` reaches, parents before children."""
    return [node for node in tf.train.TrackableView(checkpoint).descendants() if isinstance(node, kind)]


def tracked_by_path(checkpoint: tf.train.Checkpoint) -> Iterator[tuple[str, Any]]:
    """Each object that `checkpoint` reaches, once, under the shortest path, as TensorFlow names keys."""
    view, paths = tf.train.TrackableView(checkpoint), {id(checkpoint): ""}
    waiting: list[Any] = [checkpoint]
    for parent in waiting:
        for name, child in view.children(parent).items():
            if id(child) not in paths:
                paths[id(child)] = path = f"{paths[id(parent)]}/{name}".lstrip("/")
                waiting.append(child)
                yield path, child


def optimizer_steps(checkpoint: tf.train.Checkpoint) -> int:
    """How many steps the tracked optimizers have made; 0 if there is none."""
    optimizers = tracked_objects(checkpoint, tf.keras.optimizers.Optimizer)
    return max((int(optimizer.iterations.numpy()) for optimizer in optimizers), default=0)


def read_seeds(extra: ExtraVariables) -> tuple[tuple[int, ...], ...]:
    """The seed states' values."""
    return tuple(tuple(_read_seed(seed)) for seed in extra.seeds)


def write_seeds(extra: ExtraVariables, values: Sequence[Sequence[int]]) -> None:
    """Restores the seed states on every replica. Raises ValueError if the number of values is not that of the seeds."""
    if len(values) != len(extra.seeds):
        raise ValueError(
            f"the checkpoint contains the random state of {counted(len(values), 'Keras layer')}, this program "
            f"has {len(extra.seeds)}"
        )
    for seed, value in zip(extra.seeds, values, strict=True):
        seed.assign(value)


def check_own_generators(generators: Iterable[Any]) -> tuple[OwnGenerator, ...]:
    """Returns the script's generators. Raises TypeError for a kind whose state can't be saved here."""
    checked = tuple(generators)
    for generator in checked:
        if isinstance(generator, tf.random.Generator):
            raise TypeError(
                "cannot save a tf.random.Generator through generators=; track it in the tf.train.Checkpoint instead"
            )
        if not isinstance(
            generator, tf.keras.random.SeedGenerator | np.random.Generator | np.random.RandomState | random.Random
        ):
            raise TypeError(
                f"cannot save the state of a {type(generator).__name__}; generators= takes Keras SeedGenerators, "
                f"numpy.random.Generators, numpy.random.RandomStates and random.Randoms"
            )
    return checked


def create_global_seed(strategy: tf.distribute.Strategy | None) -> None:
    """Creates the generator behind `keras.random` with seed=None.

    Keras would create it at its first use, inside a replica's step, which is too late for a restore.
    """
    before = random.getstate()  # Keras draws the seed from it; what the script draws afterwards must not change
    with nullcontext() if strategy is None else strategy.scope():
        make_global_generator()
    random.setstate(before)


def read_generators(own: Sequence[OwnGenerator] = ()) -> dict[str, Any]:
    """The state of the global generators (Python, NumPy, Keras, TensorFlow) and of the script's, in a form for JSON."""
    keras = global_generator()
    return {
        **random_generators.read(),
        "keras": None if keras is None else _read_seed(keras.state),
        "tensorflow": random_operations.read(),
        "own": [_read_own(generator) for generator in own],
    }


def write_generators(states: Mapping[str, Any], own: Sequence[OwnGenerator] = ()) -> None:
    """Restores what `read_generators` returned. Raises ValueError for another number of generators of the script."""
    stored = states.get("own", ())
    if len(stored) != len(own):
        raise ValueError(
            f"the checkpoint contains the state of {counted(len(stored), 'generator')} of the script, but worker.Run "
            f"was given {len(own)} (generators=)"
        )
    random_generators.write({**states, "own": ()})
    keras = global_generator()
    if keras is not None and states.get("keras") is not None:
        keras.state.assign(states["keras"])
    random_operations.write(states.get("tensorflow"))
    for generator, state in zip(own, stored, strict=True):
        _write_own(generator, state)


def _read_own(own: OwnGenerator) -> Any:
    if isinstance(own, tf.keras.random.SeedGenerator):
        return _read_seed(own.state)
    return random_generators.read_generator(own)


def _write_own(own: OwnGenerator, state: Any) -> None:
    if isinstance(own, tf.keras.random.SeedGenerator):
        own.state.assign(state)
    else:
        random_generators.write_generator(own, state)


def _read_seed(state: Any) -> list[int]:
    return [int(number) for number in state.numpy().tolist()]


class ReplicaSeedGenerator(tf.keras.random.SeedGenerator):  # type: ignore[misc]  # Keras has no types
    """A Keras SeedGenerator that yields other seeds on each replica. Its state is the counter that Keras saves."""

    def next(self, ordered: bool = True) -> Any:
        """The seed of the next draw on the calling replica; outside of replicas, that of the first one."""
        seed = super().next(ordered)
        context = tf.distribute.get_replica_context()
        if context is None:
            return seed
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        return seed + tf.cast(tf.stack([replica * _SEED_STRIDE, tf.zeros_like(replica)]), seed.dtype)


def replica_streams(model: tf.keras.Model) -> tf.keras.Model:
    """Makes every random layer of `model` draw different numbers on each replica; returns `model`.

    Without it the replicas of a step share one seed and draw the same dropout masks. Call it after the model is built
    and before it is used. The first replica's numbers stay the same. A restart continues the sequences of all replicas;
    another number of replicas yields other ones.
    """
    for layer in tracked_objects(tf.train.Checkpoint(model=model), tf.keras.layers.Layer):
        for generator in generators_of(layer):
            if type(generator) is tf.keras.random.SeedGenerator:
                generator.__class__ = ReplicaSeedGenerator  # Keras makes it in the layer and accepts none from outside
    return model
