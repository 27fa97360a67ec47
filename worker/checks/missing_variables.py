"""Finds the variables that the training loop uses but its checkpoints would not contain; see `reachability`."""

import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks.reachability import (
    GLOBAL_GENERATORS,
    Root,
    abbreviate,
    closure_of,
    defaults_of,
    globals_of,
    is_script_class,
    plain_referents,
    script_methods_of,
    walk,
)
from worker.internals.dataset_internals import functions_in, generator_of, inputs_of
from worker.internals.keras_internals import ATTRIBUTES_OF_FIT, METRICS_OF_FIT
from worker.internals.tensorflow_internals import global_random_generator
from worker.state import extra_state
from worker.state.object_values import identities
from worker.state.plain_values import class_module
from worker.state.random_generators import GENERATORS
from worker.state.replica_values import SEED_NAME

_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
_UNNAMED = (*_TABLES, tf.queue.QueueBase)
_STATE = (
    tf.Variable, tf.keras.Variable, tf.keras.random.SeedGenerator, tf.random.Generator, tf.data.Dataset, *_UNNAMED,
    *GENERATORS,
)  # fmt: skip
"""What the search ends at."""
_NOT_FOLLOWED = (
    str, bytes, int, float, np.ndarray, tf.Tensor, types.ModuleType, type, tf.distribute.Strategy, tf.Graph,
    tf.data.Iterator,
)  # fmt: skip


def find_missing(
    tracked: tf.train.Checkpoint, own: Iterable[extra_state.OwnGenerator], roots: Iterable[Root], exempt: Iterable[Any]
) -> tuple[str, ...]:
    """Names of the variables and generators that are reachable from `roots` but not in a checkpoint of `tracked`.

    `own`: the script's generators, which are saved too. `exempt`: objects that need not be saved, with everything that
    they refer to.
    """
    seen = _saved_identities(tracked) | {id(generator) for generator in (*own, *GLOBAL_GENERATORS)}
    seen |= {id(generator.state) for generator in own if hasattr(generator, "state")}
    for item, _ in _reachable_state([("", value) for value in exempt], set()):
        seen |= identities(item)
    names: dict[str, None] = {}
    whole = (
        *roots,
        ("tf.random.get_global_generator()", global_random_generator()),
    )  # reached through TensorFlow alone
    for item, root in _reachable_state(whole, {id(value) for value in exempt}):
        if seen.isdisjoint(identities(item)):
            seen |= identities(item)
            names[f"{_display_name(item)} (reached as {root})"] = None
    return abbreviate(list(names))


def _saved_identities(tracked: tf.train.Checkpoint) -> set[int]:
    saved: set[int] = set()
    for item in [*tf.train.TrackableView(tracked).descendants(), *extra_state.extra_variables(tracked).seeds]:
        saved |= identities(item)
    return saved


def _display_name(item: Any) -> str:
    if isinstance(item, tf.keras.random.SeedGenerator):
        return f"Keras SeedGenerator {item.name}"
    if isinstance(item, _UNNAMED):
        return type(item).__name__
    if isinstance(item, tf.random.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return f"{class_module(type(item)).partition('.')[0]} {type(item).__name__}"
    return str(getattr(item, "path", None) or item.name)


def reachable_objects(roots: Iterable[Root], visited: set[int] | None = None) -> Iterator[Any]:
    """Yields each object that is reachable from the roots once. `visited`: ids of objects to leave out."""
    return (item for _, item in walk(roots, _parts_of, visited))


def reachable_generators(roots: Iterable[Root]) -> list[Any]:
    """NumPy's and Python's generators that can be reached, also the global ones, always in the same order."""
    return [item for item in reachable_objects(roots) if isinstance(item, GENERATORS)]


def _parts_of(root: str, item: Any) -> Iterator[Root]:
    if isinstance(item, _STATE):
        return
    if isinstance(item, types.FunctionType):  # its own names say more than that of the function
        yield from (*closure_of(item), *globals_of(item))
        yield from ((root, default) for default in defaults_of(item))
    else:
        yield from ((root, part) for part in _referents(item))


def _reachable_state(roots: Iterable[Root], visited: set[int]) -> Iterator[tuple[Any, str]]:
    """Yields each variable and generator that is reachable from the roots once, with the name of its root."""
    for root, item in walk(roots, _parts_of, visited):
        if isinstance(item, tf.random.Generator):
            yield item.state, root
        elif isinstance(item, tf.data.Dataset):
            yield from ((state, root) for state in _random_state_of_dataset(item))
        elif isinstance(item, _STATE):
            yield item, root


def _referents(item: Any) -> Iterable[Any]:
    """The objects that an object refers to, as far as the search follows them."""
    if item is None or isinstance(item, _NOT_FOLLOWED):
        return ()
    plain = plain_referents(item)
    if plain is not None:
        return plain
    if (generator := generator_of(item)) is not None:
        return (generator,)
    if isinstance(item, tf.types.experimental.PolymorphicFunction):
        return (getattr(item, "python_function", None),)
    if isinstance(item, tf.keras.layers.Layer | tf.keras.optimizers.Optimizer):
        parts = (*item.variables, *_attributes(item), *script_methods_of(item))
        # the table of a StringLookup layer has the vocabulary, which no step changes
        return (part for part in parts if not isinstance(part, (tf.keras.Metric, *_TABLES)))
    if isinstance(item, tf.keras.Metric):
        return list(item.variables)
    if isinstance(item, tf.keras.losses.Loss):  # the losses of a compiled model hold metrics of `fit`
        return (var for name, var in vars(item).items() if name not in (METRICS_OF_FIT, "metrics"))
    with_variables = (tf.Module, types.SimpleNamespace, tf.train.ExponentialMovingAverage)
    if isinstance(item, with_variables) or is_script_class(type(item)):
        return _attributes(item)
    return ()


def _random_state_of_dataset(dataset: tf.data.Dataset) -> list[Any]:
    """Random state that the functions of a dataset use. A dataset runs ahead of training, so it can't be saved exactly.

    Other variables that these functions read (a Normalization layer's mean) hardly ever change and are not reported.
    """
    states: list[Any] = []
    datasets, seen = [dataset], {id(dataset)}
    kinds = (tf.keras.random.SeedGenerator, *GENERATORS)
    for part in datasets:
        for item in reachable_objects([("", function) for function in functions_in(part)], seen):
            if isinstance(item, tf.random.Generator):
                states.append(item.state)
            elif isinstance(item, tf.data.Dataset):
                datasets.append(item)
            elif isinstance(item, kinds) or getattr(item, "name", "") == SEED_NAME:
                states.append(item)
        inputs = {id(one): one for one in inputs_of(part) if id(one) not in seen}
        seen.update(inputs)
        datasets.extend(inputs.values())
    return states


def _attributes(item: Any) -> Iterable[Any]:
    """The attributes of an object, without those in which TensorFlow keeps again what it tracks."""
    attributes = getattr(item, "__dict__", {}).items()
    return [value for name, value in attributes if name not in ATTRIBUTES_OF_FIT and not name.startswith("_self_")]
