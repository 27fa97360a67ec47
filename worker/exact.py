"""What decides the next step and is in no TensorFlow checkpoint: random state, and the other replicas' values."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True, slots=True)
class Hidden:
    """The variables that `tf.train.Checkpoint(model, optimizer)` leaves out, in construction order.

    `seeds`: Keras SeedGenerator states (Dropout, augmentation): not trackable, so lost in silence.
    `copies`: what replicas other than the first hold of variables that each replica updates for itself (moving
    averages of BatchNormalization); TensorFlow saves the first replica's and gives it to all.
    """

    seeds: tuple[Any, ...]
    copies: tuple[tf.Variable, ...]


def hidden_variables(checkpoint: tf.train.Checkpoint) -> Hidden:
    """Finds them in all Keras layers that `checkpoint` tracks. Call it after the models are built."""
    seeds: list[Any] = []
    copies: list[tf.Variable] = []
    for variable in _own_variables(checkpoint):
        if variable.name == "seed_generator_state":
            seeds.append(variable)
        elif not variable.trainable:
            copies.extend(getattr(variable.value, "values", ())[1:])
    return Hidden(tuple(seeds), tuple(copies))


def _own_variables(checkpoint: tf.train.Checkpoint) -> Iterator[Any]:
    """Each Keras variable of each tracked layer, once."""
    seen: set[int] = set()
    for layer in tracked(checkpoint, tf.keras.layers.Layer):
        for variable in layer.variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                yield variable


def tracked(checkpoint: tf.train.Checkpoint, kind: Any) -> list[Any]:
    """All objects of a kind that `checkpoint` reaches, parents before children."""
    return [found for found in tf.train.TrackableView(checkpoint).descendants() if isinstance(found, kind)]


def read_seeds(hidden: Hidden) -> tuple[tuple[int, ...], ...]:
    """The seed states' values."""
    return tuple(tuple(int(number) for number in seed.numpy().tolist()) for seed in hidden.seeds)


def write_seeds(hidden: Hidden, values: Sequence[Sequence[int]]) -> None:
    """Gives them back, to every replica. Raises ValueError if there are not as many values as seeds."""
    if len(values) != len(hidden.seeds):
        raise ValueError(
            f"the checkpoint holds the random state of {len(values)} Keras layers, this program has {len(hidden.seeds)}"
        )
    for seed, value in zip(hidden.seeds, values, strict=True):
        seed.assign(value)


def read_generators() -> dict[str, Any]:
    """State of Python's and NumPy's global generators, as JSON can hold it without loss."""
    version, words, python_gauss = random.getstate()
    state: Any = np.random.get_state(legacy=False)
    return {
        "python": {"version": version, "words": list(words), "gauss": python_gauss},
        "numpy": {**state, "state": {"key": state["state"]["key"].tolist(), "pos": int(state["state"]["pos"])}},
    }


def write_generators(states: Mapping[str, Any]) -> None:
    """Gives both generators the state that `read_generators` read."""
    python, numpy = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    key = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy, "state": {"key": key, "pos": numpy["state"]["pos"]}})
