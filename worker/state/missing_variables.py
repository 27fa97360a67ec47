"""Finds the variables that the training loop uses but its checkpoints would not contain.

The search follows references as the loop could: from the names in the frame that calls `step_done`, or from the
arguments of `fit`, through containers, closures, compiled functions, Keras and TensorFlow objects and objects of the
script's classes. The loop can't train with what it can't reach, so variables that merely exist somewhere in the process
cause no false alarm.
"""

import functools
import itertools
import random
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.state import extra_state
from worker.state.object_values import LIBRARIES, identities
from worker.state.replica_values import SEED_NAME

MAX_OBJECTS = 200_000  # a limit for unusual programs; a large Keras model has some ten thousand
MAX_ENTRIES = 10_000  # searched in one container: longer ones hold data
MAX_NAMED = 20  # names in one message

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL_GENERATORS = (random.getstate.__self__, np.random.mtrand._rand)  # type: ignore[attr-defined]
"""Python's and NumPy's global generators, which are saved anyway. They are reached as the objects of bound methods such
as `random.gauss`."""
_STATE = (
    tf.Variable, tf.keras.Variable, tf.keras.random.SeedGenerator, tf.random.Generator, tf.data.Dataset, *_GENERATORS
)  # fmt: skip
"""What the search ends at."""
_KERAS_METRICS = "_metrics"  # a compiled model's metrics for `fit`, which a custom loop doesn't use
_NOT_FOLLOWED = (
    str, bytes, int, float, np.ndarray, tf.Tensor, types.ModuleType, type, tf.distribute.Strategy, tf.Graph,
    tf.data.Iterator,
)  # fmt: skip
_FROM_GENERATOR = "_GeneratorState"  # TensorFlow's class that holds the function of `Dataset.from_generator`

Root = tuple[str, Any]
"""A name that the user knows, and the object where the search begins."""


def find_missing(
    tracked: tf.train.Checkpoint, own: Iterable[extra_state.OwnGenerator], roots: Iterable[Root], exempt: Iterable[Any]
) -> tuple[str, ...]:
    """Names of the variables and generators that are reachable from `roots` but not in a checkpoint of `tracked`.

    `own`: the script's generators, which are saved too. `exempt`: objects that need not be saved, with everything that
    they refer to.
    """
    seen = _saved_identities(tracked) | {id(each) for each in (*own, *_GLOBAL_GENERATORS)}
    seen |= {id(each.state) for each in own if hasattr(each, "state")}
    for item, _ in _reachable_state([("", each) for each in exempt], set()):
        seen |= identities(item)
    names: dict[str, None] = {}
    for item, root in _reachable_state(list(roots), {id(each) for each in exempt}):
        if seen.isdisjoint(identities(item)):
            seen |= identities(item)
            names[f"{_display_name(item)} (reached as {root})"] = None
    return _abbreviate(list(names))


def _abbreviate(names: list[str]) -> tuple[str, ...]:
    more = len(names) - MAX_NAMED
    return tuple(names) if more <= 0 else (*names[:MAX_NAMED], f"{more} more")


def _saved_identities(tracked: tf.train.Checkpoint) -> set[int]:
    saved: set[int] = set()
    for item in [*tf.train.TrackableView(tracked).descendants(), *extra_state.extra_variables(tracked).seeds]:
        saved |= identities(item)
    return saved


def _display_name(item: Any) -> str:
    if isinstance(item, tf.keras.random.SeedGenerator):
        return f"Keras SeedGenerator {item.name}"
    if isinstance(item, tf.random.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return f"{type(item).__module__.partition('.')[0]} {type(item).__name__}"
    return str(getattr(item, "path", None) or item.name)


def roots_of_frame(frame: types.FrameType) -> list[Root]:
    """The local names of a frame, and the names of its module that it uses."""
    code = frame.f_code
    names = dict(frame.f_locals)
    names |= {name: frame.f_globals[name] for name in _global_names(code) if name in frame.f_globals}
    return list(names.items())


def _global_names(code: types.CodeType) -> set[str]:
    """The names that a function, or a function inside it, looks up in its module."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_global_names, inner))


def reachable_objects(roots: list[Root], visited: set[int] | None = None) -> Iterator[Any]:
    """Yields each object that is reachable from the roots once. `visited`: ids of objects to leave out."""
    return (item for item, _ in _reachable(roots, set() if visited is None else visited))


def _reachable(roots: list[Root], visited: set[int]) -> Iterator[tuple[Any, str]]:
    alive = []  # keeps temporary objects alive, so that no id is used twice
    waiting = list(roots)
    for item, root in ((item, root) for root, item in waiting):
        if id(item) in visited or len(visited) > MAX_OBJECTS:
            continue
        visited.add(id(item))
        alive.append(item)
        yield item, root
        if not isinstance(item, _STATE):
            waiting.extend((root, each) for each in _referents(item))


def _reachable_state(roots: list[Root], visited: set[int]) -> Iterator[tuple[Any, str]]:
    """Yields each variable and generator that is reachable from the roots once, with the name of its root."""
    for item, root in _reachable(roots, visited):
        if isinstance(item, tf.random.Generator):
            yield item.state, root
        elif isinstance(item, tf.data.Dataset):
            yield from ((each, root) for each in _random_state_of_dataset(item))
        elif isinstance(item, _STATE):
            yield item, root


def _referents(item: Any) -> Iterable[Any]:
    """The objects that an object refers to, as far as the search follows them."""
    if item is None or isinstance(item, _NOT_FOLLOWED):
        return ()
    if isinstance(item, Mapping):
        return _first_entries(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return _first_entries(item)
    if isinstance(item, functools.partial):
        return (item.func, *item.args, *item.keywords.values())
    if isinstance(item, types.MethodType):
        return (item.__self__, item.__func__)
    if isinstance(item, types.FunctionType):
        return _function_referents(item)
    if type(item).__name__ == _FROM_GENERATOR:
        return (item._generator,)
    if isinstance(item, tf.types.experimental.PolymorphicFunction):
        return (getattr(item, "python_function", None),)
    if isinstance(item, tf.keras.layers.Layer | tf.keras.optimizers.Optimizer):
        parts = (*item.variables, *_attributes(item), *script_methods_of(item))
        return (each for each in parts if not isinstance(each, tf.keras.Metric))
    if isinstance(item, tf.keras.Metric):
        return list(item.variables)
    if isinstance(item, tf.keras.losses.Loss):  # the losses of a compiled model hold metrics of `fit`
        return (each for name, each in vars(item).items() if name not in (_KERAS_METRICS, "metrics"))
    if isinstance(item, tf.Module | types.SimpleNamespace) or _is_script_class(type(item)):
        return _attributes(item)
    return ()


def _is_script_class(kind: type) -> bool:
    """Whether a class belongs to the script, or to a package whose objects are searched."""
    return not is_of_library(kind.__module__)


def is_of_library(module: str) -> bool:
    """Whether a module belongs to a package whose objects are not searched."""
    return module.partition(".")[0] in LIBRARIES


def script_methods_of(item: Any) -> list[types.FunctionType]:
    """The functions in the script's classes of an object: Keras calls them."""
    own = [kind for kind in type(item).__mro__ if _is_script_class(kind)]
    return [each for kind in own for each in vars(kind).values() if isinstance(each, types.FunctionType)]


def _random_state_of_dataset(dataset: tf.data.Dataset) -> list[Any]:
    """Random state that the functions of a dataset use. A dataset runs ahead of training, so it can't be saved exactly.

    Other variables that these functions read (a Normalization layer's mean) hardly ever change and are not reported.
    """
    functions, datasets = [], [dataset]
    for each in datasets:
        functions.extend(functions_of_dataset(each))
        datasets.extend(each._inputs())
    item = [leaf for leaf, _ in _reachable_state([("", each) for each in functions], set())]
    kinds = (tf.keras.random.SeedGenerator, *_GENERATORS)
    return [each for each in item if isinstance(each, kinds) or getattr(each, "name", "") == SEED_NAME]


def functions_of_dataset(dataset: tf.data.Dataset) -> list[Any]:
    """The Python functions of one dataset, without those of the datasets that it reads."""
    return [each._func for each in vars(dataset).values() if callable(getattr(each, "_func", None))]


def _function_referents(item: types.FunctionType) -> Iterator[Any]:
    for cell in item.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from item.__defaults__ or ()
    yield from (item.__kwdefaults__ or {}).values()
    yield from (item.__globals__[name] for name in _global_names(item.__code__) if name in item.__globals__)


def _attributes(item: Any) -> Iterable[Any]:
    return [each for name, each in getattr(item, "__dict__", {}).items() if name != _KERAS_METRICS]


def _first_entries(entries: Iterable[Any]) -> Iterator[Any]:
    return iter(list(itertools.islice(entries, MAX_ENTRIES)))
