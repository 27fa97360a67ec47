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
    return [*names.items(), *_used_of_modules(code, names.items())]


@functools.cache
def global_names(code: types.CodeType) -> frozenset[str]:
    """The names that a function, or a function inside it, looks up in its module."""
    own = {code.co_names[argument >> _LOADS[opcode]] for opcode, argument in arguments_of(code) if opcode in _LOADS}
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(own).union(*map(global_names, inner))


def arguments_of(code: types.CodeType) -> Iterator[tuple[int, int]]:
    """Each instruction's opcode and argument.

    `dis.get_instructions` says the same and takes ten times as long: seconds at the first step of a large program.
    """
    extended = 0
    for opcode, low_byte in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended | low_byte
        extended = argument << 8 if opcode == dis.EXTENDED_ARG else 0
        yield opcode, argument


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
    if isinstance(item, types.GeneratorType):
        return [value for _, value in locals_of(item)]
    return None


def _function_referents(item: types.FunctionType) -> Iterator[Any]:
    yield from (value for _, value in closure_of(item))
    yield from defaults_of(item)
    variables = list(globals_of(item))
    yield from (value for _, value in (*variables, *_used_of_modules(item.__code__, variables)))


def _used_of_modules(code: types.CodeType, variables: Iterable[Root]) -> list[Root]:
    """What a function may use of the script's own modules, which it has imported by name: `tools.augment`."""
    own = [
        (name, vars(value))
        for name, value in variables
        if issubclass(type(value), types.ModuleType)  # a proxy may raise when it is asked for its class
        and not is_of_library(value.__name__)
        and not is_installed_file(getattr(value, "__file__", None))
    ]
    names = _names_in(code) if own else ()
    return [(f"{name}.{part}", held[part]) for name, held in own for part in names if part in held]


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def defaults_of(function: types.FunctionType) -> Iterator[Any]:
    """The defaults of a function's parameters."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def locals_of(generator: "types.GeneratorType[Any, Any, Any]") -> list[Root]:
    """The local values of a generator of the script's that has not ended, by name."""
    frame = generator.gi_frame
    if (
        frame is None
        or is_of_library(frame.f_globals.get("__name__", ""))
        or is_installed_file(frame.f_code.co_filename)
    ):
        return []
    return list(frame.f_locals.items())


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


def held_attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object itself holds, by name."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name in _slots_of(kind):
            if name not in attributes and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return attributes


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return tuple(
        f"{private}{name}" if name.startswith("__") else name
        for name in slots
        if isinstance(name, str) and not name.endswith("__")
    )


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
    if isinstance(item, type):
        parts = generators_of_class(item)
    elif parts is None and not isinstance(item, types.ModuleType) and is_script_class(type(item)):
        parts = [*held_attributes(item).values(), *generators_of_class(type(item))]
    yield from ((root, part) for part in parts or ())


def generators_of_class(kind: type) -> list[Any]:
    """NumPy's and Python's generators that are attributes of a class of the script's."""
    own = [owner for owner in kind.__mro__ if is_script_class(owner)]
    return [value for owner in own for value in vars(owner).values() if isinstance(value, GENERATORS)]


def abbreviate(names: list[str]) -> tuple[str, ...]:
    """At most MAX_NAMED names, and how many there are besides."""
    more = len(names) - MAX_NAMED
    return tuple(names) if more <= 0 else (*names[:MAX_NAMED], f"{more} more")
