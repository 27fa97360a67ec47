"""Which variables the training loop uses that no checkpoint of it would hold.

Looks where the loop can look: the names in the frame that calls `step_done`, or what `fit` was given, and what those
lead to (containers, closures, compiled functions, Keras and TensorFlow objects, the script's own classes). What the
loop can't reach it can't train with, so variables that merely live somewhere in the process are no false alarms.
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

MAX_OBJECTS = 200_000  # a bound for odd programs; a large Keras model is some ten thousand
MAX_ENTRIES = 10_000  # looked at in one container: longer ones hold data
MAX_NAMED = 20  # names listed; more help nobody

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL_GENERATORS = (random.getstate.__self__, np.random.mtrand._rand)  # type: ignore[attr-defined]
"""Python's and NumPy's own: saved anyway, and met as what `random.gauss` is a method of."""
_KERAS_METRICS = "_metrics"  # where a compiled model keeps those of `fit`, which a loop of its own doesn't use
_NOT_FOLLOWED = (
    str, bytes, int, float, np.ndarray, tf.Tensor, types.ModuleType, type, tf.distribute.Strategy, tf.Graph,
    tf.data.Iterator,
)  # fmt: skip
_SEED_NAME = "seed_generator_state"  # what Keras calls the variable of a SeedGenerator

Root = tuple[str, Any]
"""Where looking begins, with its name."""


def find_missing(
    tracked: tf.train.Checkpoint, own: Iterable[extra_state.OwnGenerator], roots: Iterable[Root], exempt: Iterable[Any]
) -> tuple[str, ...]:
    """Names of the variables and generators that a training reaches from `roots` and a checkpoint would not hold.

    `own`: generators that are saved besides. `exempt`: what need not be saved, with all that it leads to.
    """
    seen = _saved_identities(tracked) | {id(each) for each in (*own, *_GLOBAL_GENERATORS)}
    seen |= {id(each.state) for each in own if hasattr(each, "state")}
    for found, _ in _reachable_state([("", each) for each in exempt], set()):
        seen |= identities(found)
    names: dict[str, None] = {}
    for found, root in _reachable_state(list(roots), {id(each) for each in exempt}):
        if seen.isdisjoint(identities(found)):
            seen |= identities(found)
            names[f"{_display_name(found)} (reached as {root})"] = None
    return _abbreviate(list(names))


def _abbreviate(names: list[str]) -> tuple[str, ...]:
    more = len(names) - MAX_NAMED
    return tuple(names) if more <= 0 else (*names[:MAX_NAMED], f"{more} more")


def _saved_identities(tracked: tf.train.Checkpoint) -> set[int]:
    saved: set[int] = set()
    for found in [*tf.train.TrackableView(tracked).descendants(), *extra_state.extra_variables(tracked).seeds]:
        saved |= identities(found)
    return saved


def _display_name(found: Any) -> str:
    if isinstance(found, tf.keras.random.SeedGenerator):
        return f"Keras SeedGenerator {found.name}"
    if isinstance(found, tf.random.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return f"{type(found).__module__.partition('.')[0]} {type(found).__name__}"
    return str(getattr(found, "path", None) or found.name)


def roots_of_frame(frame: types.FrameType) -> list[Root]:
    """The names in a frame, its own and those of its module that it uses."""
    code = frame.f_code
    names = dict(frame.f_locals)
    names |= {name: frame.f_globals[name] for name in _global_names(code) if name in frame.f_globals}
    return list(names.items())


def _global_names(code: types.CodeType) -> set[str]:
    """Names that a function, or one written inside it, looks up in its module."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_global_names, inner))


def _reachable_state(roots: list[Root], visited: set[int]) -> Iterator[tuple[Any, str]]:
    """Each variable and generator that the roots lead to, once, with the name of the root."""
    alive = []  # what is made on the way, so that no identity is used twice
    waiting = list(roots)
    for found, root in ((found, root) for root, found in waiting):
        if id(found) in visited or len(visited) > MAX_OBJECTS:
            continue
        visited.add(id(found))
        alive.append(found)
        if isinstance(found, (tf.Variable, tf.keras.Variable, tf.keras.random.SeedGenerator, *_GENERATORS)):
            yield found, root
        elif isinstance(found, tf.random.Generator):
            yield found.state, root
        elif isinstance(found, tf.data.Dataset):
            yield from ((each, root) for each in _random_state_of_dataset(found))
        else:
            waiting.extend((root, each) for each in _referents(found))


def _referents(found: Any) -> Iterable[Any]:
    """What an object leads to."""
    if found is None or isinstance(found, _NOT_FOLLOWED):
        return ()
    if isinstance(found, Mapping):
        return _first_entries(found.values())
    if isinstance(found, list | tuple | set | frozenset):
        return _first_entries(found)
    if isinstance(found, functools.partial):
        return (found.func, *found.args, *found.keywords.values())
    if isinstance(found, types.MethodType):
        return (found.__self__, found.__func__)
    if isinstance(found, types.FunctionType):
        return _function_referents(found)
    if isinstance(found, tf.types.experimental.PolymorphicFunction):
        return (getattr(found, "python_function", None),)
    if isinstance(found, tf.keras.layers.Layer | tf.keras.optimizers.Optimizer):
        parts = (*found.variables, *_attributes(found), *script_methods_of(found))
        return (each for each in parts if not isinstance(each, tf.keras.Metric))
    if isinstance(found, tf.keras.Metric):
        return list(found.variables)
    if isinstance(found, tf.keras.losses.Loss):  # those of a compiled model hold metrics of `fit`
        return (each for name, each in vars(found).items() if name not in (_KERAS_METRICS, "metrics"))
    if isinstance(found, tf.Module | types.SimpleNamespace) or _is_script_class(type(found)):
        return _attributes(found)
    return ()


def _is_script_class(kind: type) -> bool:
    """Whether a class is the script's, or of a package whose objects are looked into."""
    return kind.__module__.partition(".")[0] not in LIBRARIES


def script_methods_of(found: Any) -> list[types.FunctionType]:
    """The functions in the script's own classes that an object is of: Keras calls them."""
    own = [kind for kind in type(found).__mro__ if _is_script_class(kind)]
    return [each for kind in own for each in vars(kind).values() if isinstance(each, types.FunctionType)]


def _random_state_of_dataset(dataset: tf.data.Dataset) -> list[Any]:
    """Random state that the functions of a dataset draw from: it runs ahead of training. What variables they read
    besides is not asked for, as they hardly ever change them (a Normalization layer's mean)."""
    functions, datasets = [], [dataset]
    for each in datasets:
        functions.append(getattr(getattr(each, "_map_func", None), "_func", None))
        datasets.extend(each._inputs())
    found = [leaf for leaf, _ in _reachable_state([("", each) for each in functions], set())]
    kinds = (tf.keras.random.SeedGenerator, *_GENERATORS)
    return [each for each in found if isinstance(each, kinds) or getattr(each, "name", "") == _SEED_NAME]


def _function_referents(found: types.FunctionType) -> Iterator[Any]:
    for cell in found.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from found.__defaults__ or ()
    yield from (found.__kwdefaults__ or {}).values()
    yield from (found.__globals__[name] for name in _global_names(found.__code__) if name in found.__globals__)


def _attributes(found: Any) -> Iterable[Any]:
    return [each for name, each in getattr(found, "__dict__", {}).items() if name != _KERAS_METRICS]


def _first_entries(entries: Iterable[Any]) -> Iterator[Any]:
    return iter(list(itertools.islice(entries, MAX_ENTRIES)))
