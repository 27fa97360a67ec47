"""Every value that a training loop can reach, by the name that the user knows: `agent.memory`, `model.beta`, `lr`.

From the names that the loop reads, through containers, functions and their globals, bound methods, iterators, classes,
modules and objects of the script and of other packages. No attribute is asked of an object that may compute it: reading
a variable of several processes would make them wait for each other. What frameworks keep in their own objects is not
followed: for an object of Keras or PyTorch, only attributes that its framework does not know, and its parts. Imports no
framework.
"""

import collections
import functools
import sys
import time
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from worker.checks import digests
from worker.checks.reachability import MAX_OBJECTS, global_names
from worker.state.plain_values import class_module
from worker.state.random_generators import GENERATORS

FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras", "torch", "tensorflow_probability", "keras_rs", "keras_hub"})
"""Packages whose objects keep their own state in ways that other checks know."""
_DISPLAY = frozenset(
    {"tqdm", "rich", "progress", "alive_progress", "logging", "loguru", "structlog", "absl", "wandb", "mlflow",
     "tensorboard", "tensorboardX", "matplotlib", "PIL", "prettytable", "comet_ml", "neptune", "aim", "clearml"}
)  # fmt: skip
"""Packages that show what happens in training and do not change it."""
_SKIPPED = frozenset({"numpy", "pandas", "worker", "supervisor", "google", "h5py"}) | _DISPLAY


Part = tuple[str, Any, int | None, str | None]
"""What something refers to: its path, itself, the id of the object that has it as an attribute, and its binding."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One value. `path`: its name; `binding`: the name that is bound to it directly, an attribute or a name of a module
    that code assigns, None for others. `owner`: the id of the object that has the attribute. `identity`: its own, 0 of
    a plain value, which `value` is."""

    path: str
    kind: str
    digest: int
    identity: int
    owner: int | None = None
    binding: str | None = None
    value: object = None


@dataclass(slots=True)
class Kept:
    """What checkpoints hold. `identities`: ids of objects; `attributes`: pairs of an object's id and an attribute;
    `names`: names of the script's functions; `contents`: digests of values that objects give as their state, by the
    last part of their name."""

    identities: set[int] = field(default_factory=set)
    attributes: set[tuple[int, str]] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    contents: dict[str, set[int]] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    """Keeps temporary objects alive, so that no id is used twice."""

    def keep_contents(self, state: Any, name: str = "") -> None:
        """Takes what an object gives as its state: its values are kept under their names in it."""
        if isinstance(state, Mapping):
            for key, value in list(state.items())[: digests.ENTRIES]:
                self.keep_contents(value, str(key))
        if (digest := digest_of(state)) is not None:
            self.contents.setdefault(name, set()).add(digest)

    def has(self, reached: Reached) -> bool:
        """Whether a checkpoint holds a value."""
        name = short_name(reached.path)
        return (
            reached.identity in self.identities
            or (reached.owner, reached.binding) in self.attributes
            or (reached.owner is None and reached.path in self.names)
            or reached.digest in self.contents.get(name, ())
            or reached.digest in self.contents.get(name.lstrip("_"), ())
        )


def short_name(path: str) -> str:
    """The last name of a path, without an index: `memory` of `agent.memory`."""
    return path.partition("[")[0].rpartition(".")[2]


def digest_of(value: Any) -> int | None:
    """The digest of a plain value, an array, or a container of such; None for anything else."""
    if isinstance(value, digests.PLAIN):
        return digests.digest_plain(value)
    if digests.is_array(value):
        return digests.digest_array(value)
    if isinstance(value, digests.CONTAINERS):
        parts = [digest_of(entry) for _, entry in digests.entries_of(value)]
        return digests.digest_all(part for part in (len(value), *parts) if part is not None)
    return None


class Search:
    """One search from some roots. `values`: what it has found; `codes`: the code of the script's functions on its way;
    `ended`: that the time was over before all was seen."""

    def __init__(self, kept: Kept, until: float) -> None:
        """`until`: when to end, in seconds of this thread (time.thread_time), as a busy host must not end it."""
        self.values: dict[str, Reached] = {}
        self.codes: set[types.CodeType] = set()
        self.ended = False
        self._kept = kept
        self._until = until
        self._seen: set[int] = set()
        self._alive: list[Any] = []
        self._waiting: collections.deque[Part] = collections.deque()

    def run(self, roots: Iterable[tuple[str, Any]]) -> "Search":
        """Follows everything from these names on."""
        for name, value in roots:
            self._waiting.append((name, value, None, name))
        count = 0
        while self._waiting:
            count += 1
            if count > MAX_OBJECTS or (count % 64 == 0 and time.thread_time() > self._until):
                self.ended = True
                break
            self._visit(*self._waiting.popleft())
        self._alive.clear()
        return self

    def _visit(self, path: str, value: Any, owner: int | None, binding: str | None) -> None:
        if (owner, binding) in self._kept.attributes:
            return
        if isinstance(value, digests.PLAIN):
            plain = Reached(path, "value", digests.digest_plain(value), 0, owner, binding, value)
            self.values.setdefault(path, plain)
            return
        identity = id(value)
        if identity in self._kept.identities or identity in self._seen:
            return
        self._seen.add(identity)
        self._alive.append(value)
        if digests.is_array(value):
            if not is_parameter(value):
                self._add(path, "array", _digest_or_none(value), identity, owner, binding)
        elif isinstance(value, digests.CONTAINERS):
            self._add(path, "container", self._digest_container(path, value), identity, owner, binding)
        elif hasattr(type(value), "__next__") and not isinstance(value, type):
            self._add_iterator(path, value, identity, owner, binding)
        else:
            self._waiting.extend(self._parts(path, value))

    def _add(
        self, path: str, kind: str, digest: int | None, identity: int, owner: int | None, binding: str | None
    ) -> None:
        if digest is not None:
            self.values.setdefault(path, Reached(path, kind, digest, identity, owner, binding))

    def _digest_container(self, path: str, container: Any, depth: int = 8) -> int:
        """The digest of what is plain in a container; the objects in it wait for their turn."""
        parts = [len(container)]
        try:
            entries = digests.entries_of(container)
        except (RuntimeError, TypeError):  # another thread changes it, or its keys can't be shown
            return 0
        if isinstance(container, Mapping):
            parts += [digests.digest_plain(key) for key, _ in entries]
        for key, entry in entries:
            if isinstance(entry, digests.PLAIN):
                parts.append(digests.digest_plain(entry))
            elif id(entry) in self._kept.identities or id(entry) in self._seen:
                continue
            elif digests.is_array(entry):
                self._alive.append(entry)
                parts.append(0 if is_parameter(entry) else _digest_or_none(entry) or 0)
            elif isinstance(entry, digests.CONTAINERS) and depth > 0:
                self._seen.add(id(entry))
                self._alive.append(entry)
                parts.append(self._digest_container(path + key, entry, depth - 1))
            else:
                self._waiting.append((path + key, entry, None, None))
        return digests.digest_all(part & (1 << 64) - 1 for part in parts)

    def _add_iterator(self, path: str, iterator: Any, identity: int, owner: int | None, binding: str | None) -> None:
        code = getattr(iterator, "gi_code", None)
        if package_of(type(iterator)) in _SKIPPED or (code is not None and _is_own(code)):
            return
        try:
            digest = digests.digest_position(iterator)
        except Exception:  # noqa: BLE001 - it inspects iterators of every kind
            return
        if digest is not None:
            self._add(path, "iterator", digest, identity, owner, binding)
        else:
            self._waiting.extend(self._parts(path, iterator))

    def _parts(self, path: str, value: Any) -> Iterator[Part]:
        """What an object that is no value itself refers to, as far as training can change it."""
        if isinstance(value, types.MethodType):
            yield path.rpartition(".")[0] or path, value.__self__, None, None
            yield path, value.__func__, None, None
        elif isinstance(value, functools.partial):
            yield path, value.func, None, None
            yield path, list(value.args), None, None
            yield path, dict(value.keywords), None, None
        elif isinstance(value, types.FunctionType):
            yield from self._parts_of_function(path, value)
        elif hasattr(type(value), "python_function"):  # of a tf.function
            yield path, value.python_function, None, None
        elif isinstance(value, types.ModuleType):
            if is_scripts(value.__name__, getattr(value, "__file__", None)):
                yield from _attributes_of(path, value, vars(value))
        elif isinstance(value, type):
            if is_scripts_class(value):
                yield from _attributes_of(path, value, vars(value))
                yield from self._methods_of(path, value)
        elif not isinstance(value, GENERATORS):
            yield from self._parts_of_object(path, value)

    def _parts_of_function(self, path: str, function: types.FunctionType) -> Iterator[Part]:
        if package_of_name(function.__module__ or "") in FRAMEWORKS | _SKIPPED | sys.stdlib_module_names:
            if (inner := getattr(function, "__wrapped__", None)) is not None:
                yield path, inner, None, None
            return
        self.codes.add(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents, None, name
            except ValueError:  # not assigned yet
                continue
        for default in function.__defaults__ or ():
            yield path, default, None, None
        for name in global_names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name], None, name
        if vars(function):
            yield from _attributes_of(path, function, vars(function))

    def _methods_of(self, path: str, kind: type) -> Iterator[Part]:
        for owner in kind.__mro__:
            if is_scripts_class(owner):
                for name, method in vars(owner).items():
                    if (function := _function_of(method)) is not None:
                        yield f"{path}.{name}", function, None, None

    def _parts_of_object(self, path: str, value: Any) -> Iterator[Part]:
        kind = type(value)
        packages = {package_of(each) for each in kind.__mro__}
        if packages & _SKIPPED - {"numpy"} or package_of(kind) in _SKIPPED:
            return
        if is_scripts_class(kind):
            yield kind.__name__, kind, None, None
        if (framework := next(iter(packages & FRAMEWORKS), None)) is not None:
            yield from _parts_in_framework(path, value, framework)
        elif package_of(kind) not in sys.stdlib_module_names or kind is types.SimpleNamespace:
            yield from _attributes_of(path, value, _attributes(value))


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name in _slots_of(kind):
            if name not in found and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in slots if isinstance(name, str) and not name.startswith("__"))


def _attributes_of(path: str, owner: Any, attributes: Mapping[str, Any]) -> Iterator[Part]:
    is_module = isinstance(owner, types.ModuleType)
    for name, value in list(attributes.items()):
        if name.startswith("__") or (is_module and isinstance(value, types.ModuleType | type | types.FunctionType)):
            continue
        if isinstance(value, property | staticmethod | classmethod) or (
            isinstance(owner, type) and isinstance(value, types.FunctionType)
        ):
            continue
        yield f"{path}.{name}", value, id(owner), name


def _parts_in_framework(path: str, value: Any, framework: str) -> Iterator[Part]:
    """Attributes of an object of a framework that the framework does not know, and the objects that it consists of."""
    known = _names_in_framework(cast("Any", type(value)))
    own = {name: each for name, each in _attributes(value).items() if name not in known}
    yield from _attributes_of(path, value, own)
    if framework == "torch":
        held = _attributes(value)
        modules = held.get("_modules")
        if isinstance(modules, dict):
            yield from ((f"{path}.{name}", module, None, None) for name, module in list(modules.items()))
            buffers = held.get("_buffers", {})
            for name in list(held.get("_non_persistent_buffers_set", ())):
                if buffers.get(name) is not None:
                    yield f"{path}.{name}", buffers[name], id(value), name
    else:
        for layer in list(_attributes(value).get("_layers") or ()):
            yield f"{path}.{getattr(layer, 'name', 'layer')}", layer, None, None


@functools.lru_cache(maxsize=4096)
def _names_in_framework(kind: type) -> frozenset[str]:
    """Names that the functions of a framework's classes use: attributes of that name are its own."""
    found: set[str] = set()
    for owner in kind.__mro__:
        if package_of(owner) in FRAMEWORKS:
            for member in vars(owner).values():
                if (function := _function_of(member)) is not None:
                    found |= _names_in_code(function.__code__)
            found |= set(vars(owner))
    return frozenset(found)


def _function_of(member: Any) -> types.FunctionType | None:
    """The function behind a member of a class: a method, a property, or what decorators have wrapped."""
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    function = getattr(function, "__wrapped__", function)
    return function if isinstance(function, types.FunctionType) else None


def _names_in_code(code: types.CodeType) -> set[str]:
    found = {*code.co_names, *(each for each in code.co_consts if isinstance(each, str) and each.isidentifier())}
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _names_in_code(each)
    return found


def package_of(kind: type) -> str:
    """The package of a class."""
    return package_of_name(class_module(kind))


def package_of_name(module: str) -> str:
    """The package of a module."""
    return module.partition(".")[0]


def is_scripts_class(kind: type) -> bool:
    """Whether a class is neither Python's nor of a framework, nor of a package that only shows what happens."""
    return package_of(kind) not in FRAMEWORKS | _SKIPPED | sys.stdlib_module_names or kind.__module__ == "__main__"


def is_scripts(module: str, file: str | None) -> bool:
    """Whether a module belongs to the script itself and not to an installed package."""
    if module == "__main__":
        return True
    installed = file is None or "site-packages" in file or "dist-packages" in file
    return not installed and package_of_name(module) not in FRAMEWORKS | _SKIPPED | sys.stdlib_module_names


def _is_own(code: types.CodeType) -> bool:
    return f"{sys.modules['worker'].__path__[0]}/" in code.co_filename if "worker" in sys.modules else False


def is_parameter(array: Any) -> bool:
    """Whether a PyTorch tensor is trained, so that its optimizer's owner saves it."""
    return bool(getattr(array, "requires_grad", False)) and bool(getattr(array, "is_leaf", False))


def _digest_or_none(array: Any) -> int | None:
    try:
        return digests.digest_array(array)
    except Exception:  # noqa: BLE001 - it inspects arrays of every library, some of which can't be read here
        return None


_WHOLESALE = frozenset(
    {"vars", "__dict__", "dump", "dumps", "asdict", "deepcopy", "tree_map", "tree_leaves", "tree_flatten", "state_dict",
     "ravel_pytree", "to_bytes", "to_state_dict", "msgpack_serialize", "get_weights"}
)  # fmt: skip
"""Names of what takes everything from an object."""


def keep_written(kept: Kept, functions: Iterable[Any]) -> None:
    """Takes as kept what functions can write: what they reach by the names in their code.

    They are a program's own that write its state to files. What they do with a value nobody knows, but a value whose
    name they do not have is not written.
    """
    names: set[str] = set()
    written_by = list(functions)
    waiting = [getattr(each, "__func__", each) for each in written_by]
    holders = [each.__self__ for each in written_by if isinstance(each, types.MethodType)]
    seen: set[int] = set()
    roots: list[tuple[str, Any]] = []
    while waiting:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        if package_of_name(function.__module__ or "") in FRAMEWORKS | _SKIPPED | sys.stdlib_module_names:
            continue
        code_names = _names_in_code(function.__code__)
        names |= code_names
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                roots.append((name, cell.cell_contents))
            except ValueError:
                continue
        roots += [(name, function.__globals__[name]) for name in code_names & function.__globals__.keys()]
        for holder in holders:
            waiting += [getattr(type(holder), name, None) for name in code_names]
        waiting += [value for _, value in roots]
    takes_all = not names.isdisjoint(_WHOLESALE)
    for name, value in [*roots, *[("", holder) for holder in holders]]:
        _keep(kept, name, value, None if takes_all else names, seen)


def _keep(kept: Kept, name: str, value: Any, names: Collection[str] | None, seen: set[int]) -> None:
    if isinstance(value, digests.PLAIN):
        kept.names.add(name)
        return
    if id(value) in seen or isinstance(value, types.ModuleType | types.FunctionType | type):
        return
    seen.add(id(value))
    kept.alive.append(value)
    if digests.is_array(value):
        kept.identities.add(id(value))
    elif isinstance(value, digests.CONTAINERS):
        kept.identities.add(id(value))
        for _, entry in digests.entries_of(value):
            if not isinstance(entry, digests.PLAIN):
                _keep(kept, name, entry, names, seen)
    elif package_of(type(value)) not in _SKIPPED | sys.stdlib_module_names or isinstance(value, types.SimpleNamespace):
        for owner, attributes in [(value, _attributes(value)), *((kind, vars(kind)) for kind in type(value).__mro__)]:
            for attribute, part in attributes.items():
                if names is None or attribute in names:
                    if isinstance(part, digests.PLAIN):
                        kept.attributes.add((id(owner), attribute))
                    else:
                        _keep(kept, attribute, part, names, seen)


def keep_state_of(kept: Kept, item: Any) -> None:
    """Takes as kept what an object with `state_dict` gives: attributes of that name, and values of that name in it."""
    if not (hasattr(type(item), "state_dict") and hasattr(type(item), "load_state_dict")):
        return
    state = item.state_dict()
    if isinstance(state, Mapping):
        kept.attributes |= {(id(item), str(name)) for name in state} | {(id(item), f"_{name}") for name in state}
    kept.keep_contents(state)


def keep_deeply(kept: Kept, value: Any) -> None:
    """Takes an array or a container, with all that is in it, as kept."""
    _keep(kept, "", value, (), set())
