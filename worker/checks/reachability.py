"""Which objects can a training loop reach? References are followed as the loop could follow them.

From the names in the frame that calls `step_done`, through containers, closures, functions and objects of the script's
classes. What a loop can't reach can't influence it, so state that merely exists somewhere in the process causes no
false alarm. Imports no framework; each framework's own objects are followed by the module that knows them.
"""

import dis
import functools
import itertools
import random
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worker.state.plain_values import LIBRARIES, class_module
from worker.state.random_generators import GENERATORS

MAX_OBJECTS = 200_000  # a limit for unusual programs; a large Keras model has some ten thousand
MAX_ENTRIES = 10_000  # searched in one container: longer ones hold data
MAX_NAMED = 20  # names in one message
GLOBAL_GENERATORS = (random.getstate.__self__, np.random.mtrand._rand)  # type: ignore[attr-defined]
"""Python's and NumPy's global generators, which are saved anyway. They are reached as the objects of bound methods such
as `random.gauss`."""

_LOADS = {dis.opmap["LOAD_GLOBAL"]: 1, dis.opmap["LOAD_NAME"]: 0}
"""Instructions that look a name up in the module, and how many low bits of their argument say something else than the
name's index (documentation of `dis`, LOAD_GLOBAL, since Python 3.11)."""
DATA_MODULES = ("torch.utils.data", "tensorflow.python.data", "tensorflow.python.distribute.input_lib")
_INSTALLED = frozenset({"site-packages", "dist-packages"})

Root = tuple[str, Any]
"""A name that the user knows, and the object where the search begins."""


def roots_of_frame(frame: types.FrameType) -> list[Root]:
    """The local names of a frame, and the names of its module that it uses."""
    code = frame.f_code
    names = dict(frame.f_locals)
    names |= {name: frame.f_globals[name] for name in global_names(code) if name in frame.f_globals}
    return list(names.items())


@functools.cache
def global_names(code: types.CodeType) -> frozenset[str]:
    """The names that a function, or a function inside it, looks up in its module.

    `dis.get_instructions` says the same and takes ten times as long: seconds at the first step of a large program.
    """
    own, extended = set(), 0
    for opcode, low_byte in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended | low_byte
        extended = argument << 8 if opcode == dis.EXTENDED_ARG else 0
        if opcode in _LOADS:
            own.add(code.co_names[argument >> _LOADS[opcode]])
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(own).union(*map(global_names, inner))


def plain_referents(item: Any) -> Iterable[Any] | None:
    """What containers and functions refer to; None for an object of any other kind."""
    if isinstance(item, Mapping):
        return first_entries(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return first_entries(item)
    if isinstance(item, functools.partial):
        return (item.func, *item.args, *item.keywords.values())
    if isinstance(item, types.MethodType):
        return (item.__self__, item.__func__)
    if isinstance(item, types.FunctionType):
        return _function_referents(item)
    return None


def _function_referents(item: types.FunctionType) -> Iterator[Any]:
    yield from (value for _, value in closure_of(item))
    yield from defaults_of(item)
    yield from (value for _, value in globals_of(item))


def defaults_of(function: types.FunctionType) -> Iterator[Any]:
    """The defaults of a function's parameters."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def closure_of(function: types.FunctionType) -> Iterator[Root]:
    """The variables of functions around it that a function uses, as far as they are assigned, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def globals_of(function: types.FunctionType) -> Iterator[Root]:
    """What a function, or a function inside it, uses of its module, by name."""
    names, variables = global_names(function.__code__), function.__globals__
    return ((name, variables[name]) for name in names if name in variables)


def first_entries(entries: Iterable[Any]) -> Iterator[Any]:
    """The first entries, as many as are searched in one container."""
    return iter(list(itertools.islice(entries, MAX_ENTRIES)))


def is_installed_file(file: str | None) -> bool:
    """Whether a file came with an installed package, which nobody edits for a script."""
    return file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def is_script_class(kind: type) -> bool:
    """Whether a class belongs to the script, or to a package whose objects are searched."""
    return not is_of_library(class_module(kind))


def is_data(value: Any) -> bool:
    """Whether it is a dataset, or a loader of one, and no iterator of it."""
    kind = type(value)
    return not hasattr(kind, "__next__") and any(class_module(base).startswith(DATA_MODULES) for base in kind.__mro__)


def is_of_library(module: str) -> bool:
    """Whether a module belongs to a package whose objects are not searched."""
    return module.partition(".")[0] in LIBRARIES


def script_methods_of(item: Any) -> list[types.FunctionType]:
    """The functions in the script's classes of an object: its framework calls them."""
    own = [kind for kind in type(item).__mro__ if is_script_class(kind)]
    return [var for kind in own for var in vars(kind).values() if isinstance(var, types.FunctionType)]


def walk(
    roots: Iterable[Root], parts_of: Callable[[str, Any], Iterable[Root]], visited: set[int] | None = None
) -> Iterator[Root]:
    """Yields each object that is reached from the roots once, the nearest first, with its name.

    `parts_of`: what an object of this name refers to, each with a name. `visited`: ids of objects to leave out; those
    that are reached are added.
    """
    visited = set() if visited is None else visited
    alive, waiting = [], list(roots)  # `alive`: so that no id is used twice
    for name, item in waiting:
        if id(item) in visited or len(visited) > MAX_OBJECTS:
            continue
        visited.add(id(item))
        alive.append(item)
        yield name, item
        waiting.extend(parts_of(name, item))


def find_unsaved_generators(roots: Iterable[Root], saved: Iterable[Any], exempt: Iterable[Any]) -> tuple[str, ...]:
    """Names of NumPy's and Python's generators that are reachable from `roots` and not saved; for programs whose other
    objects nobody knows. `exempt`: objects that need not be saved, with what they refer to."""
    visited: set[int] = set()
    for _ in walk([("", item) for item in exempt], parts_of_script, visited):
        pass
    kept = {id(generator) for generator in (*saved, *GLOBAL_GENERATORS)}
    return abbreviate(
        [
            f"{type(item).__name__} (reached as {root})"
            for root, item in walk(roots, parts_of_script, visited)
            if isinstance(item, GENERATORS) and id(item) not in kept
        ]
    )


def parts_of_script(root: str, item: Any) -> Iterator[Root]:
    """What containers, functions and objects of the script refer to, under the name of their root."""
    if isinstance(item, GENERATORS):
        return
    parts = plain_referents(item)
    if parts is None and not isinstance(item, type | types.ModuleType) and is_script_class(type(item)):
        parts = list(getattr(item, "__dict__", {}).values())
    yield from ((root, part) for part in parts or ())


def abbreviate(names: list[str]) -> tuple[str, ...]:
    """At most MAX_NAMED names, and how many there are besides."""
    more = len(names) - MAX_NAMED
    return tuple(names) if more <= 0 else (*names[:MAX_NAMED], f"{more} more")
