"""What decides the next step and is in no TensorFlow checkpoint: random state, and the other replicas' values."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state  # Keras has no public way to its global generator
from keras.src.random import seed_generator

from supervisor.protocol.wording import counted
from worker.state import random_generators as global_generators
from worker.state.random_generators import (
    as_json,
    from_json,
    read_python,
    write_python,
)

OwnGenerator = Any
"""A generator of the script's own: a Keras SeedGenerator, NumPy's Generator or RandomState, a random.Random."""


@dataclass(frozen=True, slots=True)
class ExtraVariables:
    """The variables that `tf.train.Checkpoint(model, optimizer)` leaves out, in construction order.

    `seeds`: Keras SeedGenerator states (Dropout, augmentation): not trackable, so lost in silence.
    `copies`: what replicas other than the first hold of variables that each replica updates for itself (moving
    averages of BatchNormalization); TensorFlow saves the first replica's and gives it to all.
    """

    seeds: tuple[Any, ...]
    copies: tuple[tf.Variable, ...]


def extra_variables(checkpoint: tf.train.Checkpoint) -> ExtraVariables:
    """Finds them in all Keras layers that `checkpoint` tracks. Call it after the models are built."""
    seeds: list[Any] = []
    copies: list[tf.Variable] = []
    for variable in keras_variables(checkpoint):
        if variable.name == "seed_generator_state":
            seeds.append(variable)
        elif not variable.trainable:
            copies.extend(getattr(variable.value, "values", ())[1:])
    return ExtraVariables(tuple(seeds), tuple(copies))


def keras_variables(checkpoint: tf.train.Checkpoint) -> Iterator[Any]:
    """Each Keras variable of each tracked layer, once."""
    seen: set[int] = set()
    for layer in tracked_objects(checkpoint, tf.keras.layers.Layer):
        for variable in layer.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def tracked_objects(checkpoint: tf.train.Checkpoint, kind: Any) -> list[Any]:
    """All objects of a kind that `checkpoint` reaches, parents before children."""
    return [found for found in tf.train.TrackableView(checkpoint).descendants() if isinstance(found, kind)]


def read_seeds(hidden: ExtraVariables) -> tuple[tuple[int, ...], ...]:
    """The seed states' values."""
    return tuple(tuple(_read_seed(seed)) for seed in hidden.seeds)


def write_seeds(hidden: ExtraVariables, values: Sequence[Sequence[int]]) -> None:
    """Gives them back, to every replica. Raises ValueError if there are not as many values as seeds."""
    if len(values) != len(hidden.seeds):
        raise ValueError(
            f"the checkpoint holds the random state of {counted(len(values), 'Keras layer')}, this program "
            f"has {len(hidden.seeds)}"
        )
    for seed, value in zip(hidden.seeds, values, strict=True):
        seed.assign(value)


def check_own_generators(generators: Iterable[Any]) -> tuple[OwnGenerator, ...]:
    """A script's own generators, of the kinds whose state can be kept here. Raises TypeError for any other."""
    checked = tuple(generators)
    for each in checked:
        if isinstance(each, tf.random.Generator):
            raise TypeError("a tf.random.Generator belongs into the tf.train.Checkpoint, as generator=..., not here")
        if not isinstance(
            each, tf.keras.random.SeedGenerator | np.random.Generator | np.random.RandomState | random.Random
        ):
            raise TypeError(
                f"cannot keep the state of a {type(each).__name__}; generators= takes Keras SeedGenerators, "
                f"numpy.random.Generators, numpy.random.RandomStates and random.Randoms"
            )
    return checked


def create_global_seed(strategy: tf.distribute.Strategy | None) -> None:
    """Creates the generator behind `keras.random` with seed=None.

    Keras would do it at the first use: inside a replica's step, too late for a restore.
    """
    before = random.getstate()  # Keras draws its seed there; the script's own draws must not shift
    with nullcontext() if strategy is None else strategy.scope():
        seed_generator.global_seed_generator()
    random.setstate(before)


def _global_seed() -> Any:
    """It, or None where nothing made it yet (`keras.utils.clear_session` forgets it)."""
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def read_generators(own: Sequence[OwnGenerator] = ()) -> dict[str, Any]:
    """State of the global generators (Python, NumPy, Keras) and of the script's own, as JSON holds it without loss."""
    keras = _global_seed()
    return {
        **global_generators.read(),
        "keras": None if keras is None else _read_seed(keras.state),
        "own": [_read_own(each) for each in own],
    }


def write_generators(states: Mapping[str, Any], own: Sequence[OwnGenerator] = ()) -> None:
    """Gives all of them the state that `read_generators` read. Raises ValueError if there are not as many own ones."""
    stored = states.get("own", ())
    if len(stored) != len(own):
        raise ValueError(
            f"the checkpoint holds the state of {counted(len(stored), 'generator')} of the script's own, worker.Run "
            f"was given {len(own)} (generators=)"
        )
    global_generators.write(states)
    keras = _global_seed()
    if keras is not None and states.get("keras") is not None:
        keras.state.assign(states["keras"])
    for each, state in zip(own, stored, strict=True):
        _write_own(each, state)


def _read_own(own: OwnGenerator) -> Any:
    if isinstance(own, random.Random):
        return read_python(own)
    if isinstance(own, np.random.RandomState):
        return as_json(own.get_state(legacy=False))
    return as_json(own.bit_generator.state) if isinstance(own, np.random.Generator) else _read_seed(own.state)


def _write_own(own: OwnGenerator, state: Any) -> None:
    if isinstance(own, random.Random):
        write_python(own, state)
    elif isinstance(own, np.random.RandomState):
        own.set_state(from_json(state))
    elif isinstance(own, np.random.Generator):
        own.bit_generator.state = from_json(state)
    else:
        own.state.assign(state)


def _read_seed(state: Any) -> list[int]:
    return [int(number) for number in state.numpy().tolist()]
