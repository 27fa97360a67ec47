"""Every value that a training loop can reach, by the name that the user knows: `agent.memory`, `model.beta`, `lr`.

From the names that the loop reads, through containers and iterators here, and through what `referents` says of other
objects. Imports no framework.
"""

import collections
import contextlib
import functools
import sys
import time
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from worker.checks.reachability import MAX_OBJECTS, closure_of, globals_of, is_data
from worker.checks.watch import digests
from worker.checks.watch.kept.kept_values import COMPARABLE, Kept, Reached, fields_of
from worker.checks.watch.referents import (
    Argument,
    Default,
    OfClass,
    OfModule,
    Part,
    Setting,
    parts_of,
    parts_of_generator,
)
from worker.checks.watch.replaced_objects import Placed, is_object
from worker.checks.watch.script_objects import (
    FRAMEWORKS,
    SKIPPED,
    is_scripts_class,
    is_traced,
    kind_of,
    names_in_code,
    package_of,
)
from worker.checks.watch.standard_objects import (
    cached_draws,
    changes_of_database,
    is_cache,
    is_queue,
    position_of_file,
    waiting_in,
)
from worker.log_file import LogFile
from worker.state.plain_values import own_attributes

_OTHER = object()
"""Stands for what a container holds besides arrays and what is COMPARABLE."""


class Search:
    """One search from some roots. `values`: what it has found; `kept`: plain values that checkpoints hold;
    `unreadable`: arrays that can't be read here; `codes`: the code of the script's functions on its way; `objects`: by
    place, those of which other checks know the state; `kinds`: by id, `kind_of` what has attributes, and `there`, a
    reference to it if it can be referred to weakly; `traced`: each `tf.function`, by name; `of_classes`: which class
    objects have, and the functions of classes; `arguments`: the paths of what parameters have as their default;
    `ended`: that the time was over before all was seen."""

    def __init__(self, kept: Kept, until: float, *, is_of_data: bool = False) -> None:
        """`until`: when to end, in seconds of this thread (time.thread_time), as a busy host must not end it.
        `is_of_data`: whether it begins at what makes the data, so that also the script's datasets are followed."""
        self.values: dict[str, Reached] = {}
        self.kept: dict[str, Reached] = {}
        self.unreadable: dict[str, Reached] = {}
        self.codes: set[types.CodeType] = set()
        self.objects: dict[str, Placed] = {}
        self.kinds: dict[int, Any] = {}
        self.there: dict[int, weakref.ref[Any] | None] = {}
        self.traced: dict[str, Any] = {}
        self.of_classes: dict[str, Reached] = {}
        self.arguments: set[str] = set()
        self._is_of_data = is_of_data
        self.ended = False
        self._kept = kept
        self._until = until
        self._seen: set[int] = set()
        self._names: set[str] = set()  # of the roots
        self._of_modules: set[int] = set()  # the ids of PyTorch's parameters that modules have
        self._alive: list[Any] = []
        self._waiting: collections.deque[Part] = collections.deque()

    def run(self, roots: Iterable[tuple[str, Any]]) -> "Search":
        """Follows everything from these names on."""
        for name, value in roots:
            self._names.add(name)
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

    @property
    def objects_seen(self) -> frozenset[int]:
        """The ids of all that was reached."""
        return frozenset(self._seen)

    def _visit(self, path: str, value: Any, owner: int | None, binding: str | None) -> None:
        if isinstance(binding, Argument):  # nobody binds it: the function has it as it was made
            self.arguments.add(path)
            binding = None
        elif isinstance(binding, OfModule):
            self._of_modules.add(id(value))
            binding = None
        is_kept = (owner, binding) in self._kept.attributes
        if isinstance(value, digests.PLAIN):
            kind = "setting" if isinstance(binding, Setting) else "default" if isinstance(binding, Default) else "value"
            plain = Reached(path, kind, digests.digest_plain(value), 0, owner, binding, value)
            (self.kept if is_kept else self.values).setdefault(path, plain)
            self._waiting.extend(_added_to_plain(path, value))
        elif not is_kept:
            self._visit_object(path, value, owner, binding)

    def _visit_object(self, path: str, value: Any, owner: int | None, binding: str | None) -> None:
        identity = id(value)
        self._note_binding(path, value, owner, binding)
        if identity in self._seen:
            return
        self._seen.add(identity)
        self._waiting.extend(_beside_content(path, value))
        if identity in self._kept.identities:
            if identity in self._kept.partly:
                self._alive.append(value)
                self._visit_objects_in(path, value)
            return
        self._alive.append(value)
        if (taken := self._kept.entries.get(identity)) is not None:
            self._waiting.extend(_other_entries(path, value, taken))
            return
        if digests.is_array(value):
            if not self._is_of_named_module(value):
                self._add(path, "array", self._digest_array(path, value, owner, binding), identity, owner, binding)
        elif isinstance(value, digests.CONTAINERS):
            numbers: list[object] = []
            digest = self._digest_container(path, value, numbers=numbers)
            self._add(path, _kind_of_container(value), digest, identity, owner, binding, numbers)
        elif is_queue(value):
            self._add(path, "queue", self._digest_container(path, waiting_in(value)), identity, owner, binding)
        elif (changes := changes_of_database(value)) is not None:
            self._add(path, "database", changes, identity, owner, binding)
        elif (position := position_of_file(value)) is not None:
            self._add(path, "file", position, identity, owner, binding)
        elif isinstance(value, LogFile):
            self._add(path, "log", value.written, identity, owner, binding)
        elif (tensors := digests.tensors_in(value)) is not None:
            self._add(path, "tensors", self._digest_container(path, tensors), identity, owner, binding)
        elif is_data(value) and not (self._is_of_data and is_scripts_class(type(value))):
            self._add(path, "passes", self._digest_passes(value), identity, owner, binding)
        elif (hasattr(type(value), "__next__") or isinstance(value, digests.ASYNC)) and not isinstance(value, type):
            self._add_iterator(path, value, identity, owner, binding)
        elif not self._keeps_attributes_of(value):
            if is_cache(value) and (count := self._cached(value)) is not None:
                self._add(path, "cache", count, identity, owner, binding)
            if is_traced(value):
                self.traced[path] = value
            self.kinds[identity] = kind_of(value)
            kind = type(value)
            can_be_referred_to = getattr(kind, "__weakrefoffset__", 0) != 0
            self.there[identity] = weakref.ref(value) if can_be_referred_to else None
            self._waiting.extend(parts_of(path, value, self.codes))
            if isinstance(value, functools.partial):
                given = path if owner is None else f"{path}.args"  # the attribute itself is its function
                self._waiting.append((given, [*value.args, value.keywords], owner, binding))

    def _keeps_attributes_of(self, value: Any) -> bool:
        """Whether checkpoints hold them as one, as those of `state={"memory": vars(memory)}`."""
        held = getattr(value, "__dict__", None)
        return held is not None and id(held) in self._kept.identities

    def _note_binding(self, path: str, value: Any, owner: int | None, binding: str | None) -> None:
        """What is bound there: that it is another one later is a change, though neither of them has changed."""
        if owner is not None and (function := _function_of(value)) is not None:  # another step, another loss
            where = self.of_classes if isinstance(binding, OfClass) else self.values
            digest = digests.digest_plain(function)
            where.setdefault(path, Reached(path, "object", digest, id(value), owner, binding))
        if binding is not None and path not in self._names and is_object(held := _held_by(value)):
            self.objects.setdefault(path, Placed(held, owner, binding))

    def _is_of_named_module(self, array: Any) -> bool:
        """Whether it is a tensor that is trained, of a module that the run names if it does not save it."""
        is_of_module = self._kept.names_modules and id(array) in self._of_modules
        return is_of_module and bool(getattr(array, "requires_grad", False))

    def _visit_objects_in(self, path: str, container: Any) -> None:
        """The objects in a container that a checkpoint holds, of which it may leave something out."""
        with contextlib.suppress(RuntimeError, LookupError, TypeError):
            for key, entry in digests.entries_of(container):
                if not isinstance(entry, digests.PLAIN):
                    self._waiting.append((path + key, entry, None, None))

    def _add(
        self,
        path: str,
        kind: str,
        digest: int | None,
        identity: int,
        owner: int | None,
        binding: str | None,
        held: Sequence[object] = (_OTHER,),
    ) -> None:
        """`held`: of a container, the plain values in it, and whether there are others."""
        if digest is not None:
            is_other = len(held) > digests.ENTRIES or any(entry is _OTHER for entry in held)
            numbers = None if is_other else tuple(held)
            self.values.setdefault(path, Reached(path, kind, digest, identity, owner, binding, None, numbers))

    def _digest_container(
        self, path: str, container: Any, depth: int = 8, outer: str | None = None, numbers: list[object] | None = None
    ) -> int:
        """The digest of what is plain in a container; the objects in it wait for their turn. `outer`: the path of the
        one that has it. `numbers`: gets what is COMPARABLE in it, and `_OTHER` for what is no array either."""
        numbers = [] if numbers is None else numbers
        parts = [len(container)]
        try:
            entries = digests.entries_of(container)
        except (RuntimeError, LookupError, TypeError):  # another thread changes it, or its keys can't be shown
            return 0
        if isinstance(container, Mapping):
            parts += [digests.digest_plain(key) for key, _ in entries]
        for key, entry in entries:
            if isinstance(entry, digests.PLAIN):
                parts.append(digests.digest_plain(entry))
                numbers.append(entry if isinstance(entry, COMPARABLE) else _OTHER)
                continue
            if (function := _function_of(entry)) is not None:
                parts.append(digests.digest_plain(function))
            if is_object(held := _held_by(entry)):
                self.objects.setdefault(path + key, Placed(held, None, None, outer or path))
            if id(entry) in self._kept.identities or id(entry) in self._seen:
                continue
            if digests.is_array(entry):
                self._alive.append(entry)
                is_left_out = self._is_of_named_module(entry)
                parts.append(0 if is_left_out else self._digest_array(path + key, entry) or 0)
            elif isinstance(entry, digests.CONTAINERS) and depth > 0 and id(entry) not in self._kept.entries:
                self._seen.add(id(entry))
                self._alive.append(entry)
                parts.append(self._digest_container(path + key, entry, depth - 1, outer or path, numbers))
                self._waiting.extend(_beside_content(path + key, entry))
            else:
                numbers.append(_OTHER)
                self._waiting.append((path + key, entry, None, None))
        return digests.digest_all(part & (1 << 64) - 1 for part in parts)

    def _digest_passes(self, data: Any) -> int | None:
        """The digest of how many iterators were made of the shuffles in a tf.data.Dataset; None if it has none."""
        parts_of_data = sys.modules.get("worker.state.dataset_parts")  # which imports TensorFlow
        if parts_of_data is None or self._kept.has_data:
            return None
        starts = [part.starts for part in parts_of_data.random_parts(data)]
        return digests.digest_all(starts) if starts else None

    def _cached(self, cache: Any) -> int | None:
        """How many results a cache holds that a restart would not give again, as they are from random numbers or from
        what training changes; None if they are not."""
        if (count := cached_draws(cache)) is not None or not isinstance(cache.__wrapped__, types.FunctionType):
            return count
        function = cache.__wrapped__
        names, kept = names_in_code(function.__code__), self._kept
        is_trained = any(
            id(part) in kept.identities
            or any((id(part), name) in kept.references or (id(part), name) in kept.attributes for name in names)
            for _, part in (*closure_of(function), *globals_of(function))
            if not isinstance(part, digests.PLAIN)
        )
        return cache.cache_info().currsize if is_trained else None

    def _digest_array(self, path: str, array: Any, owner: int | None = None, binding: str | None = None) -> int | None:
        try:
            return digests.digest_array(array)
        except Exception:  # noqa: BLE001 - it inspects arrays of every library
            if digests.has_value(array):
                self.unreadable.setdefault(path, Reached(path, "array", 0, id(array), owner, binding))
            return None

    def _add_iterator(self, path: str, iterator: Any, identity: int, owner: int | None, binding: str | None) -> None:
        frame = digests.frame_of(iterator)
        if package_of(type(iterator)) in SKIPPED or (frame is not None and _is_own(frame.f_code)):
            return
        try:
            digest = digests.digest_position(iterator)
        except Exception:  # noqa: BLE001 - it inspects iterators of every kind
            return
        if digest is not None:
            self._add(path, "iterator", digest, identity, owner, binding)
        else:
            self._waiting.extend(parts_of(path, iterator, self.codes))
        self._waiting.extend(parts_of_generator(path, iterator))


def _function_of(value: Any) -> str | None:
    """Which function or class it is; the same for each function that one `lambda` makes. None for anything else."""
    if is_cache(value):
        value = value.__wrapped__
    elif is_traced(value):
        value = value.python_function
    function = value.func if isinstance(value, functools.partial) else value
    function = function.__func__ if isinstance(function, types.MethodType) else function
    if isinstance(function, types.FunctionType):
        code = function.__code__
        return f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
    if isinstance(function, types.BuiltinFunctionType | type):
        return f"{function.__module__}.{function.__qualname__}"
    return repr(function) if isinstance(function, np.ufunc) else None


def _beside_content(path: str, value: Any) -> Iterator[Part]:
    """What an array or a container has besides its entries: attributes that its class or the script has added, as in
    `parameter.velocity = ...`, and what makes the missing entries of a dictionary. Saving it may leave that out."""
    if isinstance(value, digests.CONTAINERS):
        yield from ((f"{path}.{name}", part, id(value), name) for name, part in own_attributes(value).items())
    elif digests.is_array(value):
        for name, part in list((getattr(value, "__dict__", None) or {}).items()):
            if not name.startswith("_"):
                yield f"{path}.{name}", part, id(value), name
    if isinstance(value, collections.defaultdict):
        yield f"{path}.default_factory", value.default_factory, None, None


def _added_to_plain(path: str, value: Any) -> Iterator[Part]:
    """The attributes that a script has added to a number, a text or a member of an enumeration, of its own class."""
    held = getattr(value, "__dict__", None)
    for name, part in list(held.items()) if held and is_scripts_class(type(value)) else ():
        if not name.startswith("_"):
            yield f"{path}.{name}", part, id(value), name


def _other_entries(path: str, container: Any, held: Collection[str]) -> Iterator[Part]:
    """What a named tuple or a dictionary has besides what checkpoints hold of it."""
    if (fields := fields_of(container)) is not None:
        yield from ((f"{path}.{name}", value, None, None) for name, value in fields.items() if name not in held)
    else:
        yield from ((f"{path}[{key!r}]", value, None, None) for key, value in container.items() if key not in held)


def _held_by(value: Any) -> Any:
    """The object of which it is a method, or itself."""
    return value.__self__ if isinstance(value, types.MethodType) else value


def _kind_of_container(container: Any) -> str:
    """ "parts" of a model, which run.state can't hold, a "mapping" or another "container"."""
    if isinstance(container, list | tuple):
        for _, entry in digests.entries_of(container):
            if _function_of(entry) is not None:
                return "parts"
            is_plain = isinstance(entry, digests.PLAIN + digests.CONTAINERS) or digests.is_array(entry)
            if not is_plain and not FRAMEWORKS.isdisjoint(map(package_of, type(entry).__mro__)):
                return "parts"
    return "mapping" if isinstance(container, Mapping | set) else "container"


def _is_own(code: types.CodeType) -> bool:
    return f"{sys.modules['worker'].__path__[0]}/" in code.co_filename if "worker" in sys.modules else False
