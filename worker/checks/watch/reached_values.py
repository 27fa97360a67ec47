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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from worker.checks.reachability import MAX_OBJECTS, closure_of, globals_of, is_installed_file
from worker.checks.watch import digests
from worker.checks.watch.kept_values import Kept, Reached
from worker.checks.watch.script_objects import (
    FRAMEWORKS,
    SKIPPED,
    function_of,
    held_attributes,
    is_installed,
    is_scripts,
    is_scripts_class,
    is_searched,
    names_in_framework,
    package_of,
    package_of_name,
)
from worker.state.random_generators import GENERATORS

Part = tuple[str, Any, int | None, str | None]
"""What something refers to: its path, itself, the id of the object that has it as an attribute, and its binding."""


class Search:
    """One search from some roots. `values`: what it has found; `unreadable`: arrays that can't be read here; `codes`:
    the code of the script's functions on its way; `ended`: that the time was over before all was seen."""

    def __init__(self, kept: Kept, until: float) -> None:
        """`until`: when to end, in seconds of this thread (time.thread_time), as a busy host must not end it."""
        self.values: dict[str, Reached] = {}
        self.unreadable: dict[str, Reached] = {}
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
                self._add(path, "array", self._digest_array(path, value, owner, binding), identity, owner, binding)
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
                parts.append(0 if is_parameter(entry) else self._digest_array(path + key, entry) or 0)
            elif isinstance(entry, digests.CONTAINERS) and depth > 0:
                self._seen.add(id(entry))
                self._alive.append(entry)
                parts.append(self._digest_container(path + key, entry, depth - 1))
            else:
                self._waiting.append((path + key, entry, None, None))
        return digests.digest_all(part & (1 << 64) - 1 for part in parts)

    def _digest_array(self, path: str, array: Any, owner: int | None = None, binding: str | None = None) -> int | None:
        try:
            return digests.digest_array(array)
        except Exception:  # noqa: BLE001 - it inspects arrays of every library
            if digests.has_value(array):
                self.unreadable.setdefault(path, Reached(path, "array", 0, id(array), owner, binding))
            return None

    def _add_iterator(self, path: str, iterator: Any, identity: int, owner: int | None, binding: str | None) -> None:
        code = getattr(iterator, "gi_code", None)
        if package_of(type(iterator)) in SKIPPED or (code is not None and _is_own(code)):
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
            if is_scripts_class(value) and not is_installed(cast("Any", value)):
                yield from _attributes_of(path, value, vars(value))
                yield from self._methods_of(path, value)
        elif not isinstance(value, GENERATORS):
            yield from self._parts_of_object(path, value)

    def _parts_of_function(self, path: str, function: types.FunctionType) -> Iterator[Part]:
        in_packages = FRAMEWORKS | SKIPPED | sys.stdlib_module_names
        if package_of_name(function.__module__ or "") in in_packages or is_installed_file(
            function.__code__.co_filename
        ):
            if (inner := getattr(function, "__wrapped__", None)) is not None:
                yield path, inner, None, None
            return
        self.codes.add(function.__code__)
        yield from ((name, value, None, name) for name, value in closure_of(function))
        yield from ((path, default, None, None) for default in function.__defaults__ or ())
        yield from ((name, value, None, name) for name, value in globals_of(function))
        if vars(function):
            yield from _attributes_of(path, function, vars(function))

    def _methods_of(self, path: str, kind: type) -> Iterator[Part]:
        for owner in kind.__mro__:
            if is_scripts_class(owner):
                for name, method in vars(owner).items():
                    if (function := function_of(method)) is not None:
                        yield f"{path}.{name}", function, None, None

    def _parts_of_object(self, path: str, value: Any) -> Iterator[Part]:
        kind = type(value)
        packages = {package_of(base) for base in kind.__mro__}
        if packages & SKIPPED - {"numpy"} or package_of(kind) in SKIPPED:
            return
        of_package = is_installed(cast("Any", kind))
        if of_package and not is_searched(kind):
            return
        if is_scripts_class(kind) and not of_package:
            yield kind.__name__, kind, None, None
        if (framework := next(iter(packages & FRAMEWORKS), None)) is not None:
            yield from _parts_in_framework(path, value, framework)
        elif package_of(kind) not in sys.stdlib_module_names or kind is types.SimpleNamespace:
            yield from _attributes_of(path, value, held_attributes(value))


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
    known = names_in_framework(cast("Any", type(value)))
    own = {name: attribute for name, attribute in held_attributes(value).items() if name not in known}
    yield from _attributes_of(path, value, own)
    if framework == "torch":
        held = held_attributes(value)
        modules = held.get("_modules")
        if isinstance(modules, dict):
            yield from ((f"{path}.{name}", module, None, None) for name, module in list(modules.items()))
            buffers = held.get("_buffers", {})
            for name in list(held.get("_non_persistent_buffers_set", ())):
                if buffers.get(name) is not None:
                    yield f"{path}.{name}", buffers[name], id(value), name
    else:
        for layer in list(held_attributes(value).get("_layers") or ()):
            yield f"{path}.{getattr(layer, 'name', 'layer')}", layer, None, None


def _is_own(code: types.CodeType) -> bool:
    return f"{sys.modules['worker'].__path__[0]}/" in code.co_filename if "worker" in sys.modules else False


def is_parameter(array: Any) -> bool:
    """Whether a PyTorch tensor is trained, so that its optimizer's owner saves it."""
    return bool(getattr(array, "requires_grad", False)) and bool(getattr(array, "is_leaf", False))
