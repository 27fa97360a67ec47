"""What checkpoints hold of a script's values: by identity, by the attribute that holds them, by name, or by content.

Each kind of run says what its checkpoints hold, and the watch and the search leave that out. Imports no framework.
"""

import enum
import functools
import itertools
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, cast

import numpy as np

from worker.checks.reachability import closure_of, globals_of, held_attributes, is_installed_file
from worker.checks.watch import digests
from worker.checks.watch.code.instructions import attributes_of_others
from worker.checks.watch.code.written_names import WHOLESALE, takes_by_computed_name, used_whole, uses_itself
from worker.checks.watch.script_objects import (
    FRAMEWORKS,
    SKIPPED,
    names_in_code,
    package_of,
    package_of_name,
)
from worker.checks.watch.standard_objects import NAMESPACES, content_of
from worker.log_file import LogFile
from worker.state.plain_values import own_attributes

COMPARABLE = (Number, np.bool_, type(None), enum.Enum, range)
"""Plain values of which another process has another one only if it was made of something else."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One value. `path`: its name; `binding`: the name that is bound to it directly, an attribute or a name of a module
    that code assigns, None for others. `owner`: the id of the object that has the attribute. `identity`: its own, 0 of
    a plain value, which `value` is. `numbers`: of a container that holds nothing but arrays and what is COMPARABLE, the
    latter; None of any other."""

    path: str
    kind: str
    digest: int
    identity: int
    owner: int | None = None
    binding: str | None = None
    value: object = None
    numbers: tuple[object, ...] | None = None

    @property
    def is_comparable(self) -> bool:
        """Whether it is COMPARABLE, an array or consists of such. Texts name files, hosts and times."""
        if self.kind in ("container", "mapping"):
            return self.numbers is not None
        return self.kind == "array" or (self.kind == "value" and isinstance(self.value, COMPARABLE))

    @property
    def is_text_or_function(self) -> bool:
        """Whether it is a text or which function an attribute is, and no member of an enumeration."""
        is_text = isinstance(self.value, str) and not isinstance(self.value, enum.Enum)
        return self.kind == "object" or (self.kind == "value" and is_text)


@dataclass(slots=True)
class Kept:
    """What checkpoints hold. `identities`: ids of objects; `attributes`: pairs of an object's id and an attribute;
    `names`: names of the script's functions; `contents`: the objects that give a value as their state, by the last part
    of its name and its digest; `partly`: ids of containers of whose objects not all is held."""

    identities: set[int] = field(default_factory=set)
    attributes: set[tuple[int, str]] = field(default_factory=set)
    references: set[tuple[int, str]] = field(default_factory=set)
    """Pairs of an object's id and an attribute, of which they hold which object it is."""
    names: set[str] = field(default_factory=set)
    contents: dict[tuple[str, int], list[Any]] = field(default_factory=dict)
    partly: set[int] = field(default_factory=set)
    has_data: bool = False
    """Whether the run reads data, whose position they hold: other datasets are for evaluations then."""
    alive: list[Any] = field(default_factory=list)
    """Keeps temporary objects alive, so that no id is used twice."""
    _ids_inside: dict[int, Collection[int]] = field(default_factory=dict)

    def keep_contents(self, item: Any, state: Any, name: str = "") -> None:
        """Takes what an object gives as its state: its values are kept under their names in it."""
        if isinstance(state, Mapping):
            for key, value in list(itertools.islice(state.items(), digests.ENTRIES)):
                self.keep_contents(item, value, str(key))
        if (digest := digest_of(state)) is not None:
            self.contents.setdefault((name, digest), []).append(item)

    def has(self, reached: Reached) -> bool:
        """Whether a checkpoint holds a value."""
        name = short_name(reached.path)
        return (
            reached.identity in self.identities
            or (reached.owner, reached.binding) in self.attributes
            or (reached.owner is None and reached.path in self.names)
            or any(
                reached.identity in (inside := self._inside(item)) or reached.owner in inside
                for key in {name, name.lstrip("_")}
                for item in self.contents.get((key, reached.digest), ())
            )
        )

    def _inside(self, item: Any) -> Collection[int | None]:
        """The ids of an object that gives its state, and of what it refers to: the same value elsewhere, under the same
        name, is another one that nobody keeps."""
        if id(item) not in self._ids_inside:
            known = dict[int, Any]()
            waiting = [item]
            while waiting and len(known) < digests.ENTRIES:
                part = waiting.pop()
                if id(part) in known or isinstance(part, (*digests.PLAIN, types.ModuleType)):
                    continue
                known[id(part)] = part
                waiting += (
                    (value for _, value in digests.entries_of(part)) if isinstance(part, digests.CONTAINERS) else ()
                )
                waiting += held_attributes(part).values()
                if isinstance(part, types.FunctionType):
                    waiting += (value for _, value in closure_of(part))
            self._ids_inside[id(item)] = known.keys()
        return self._ids_inside[id(item)]


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


def keep_written(kept: Kept, functions: Iterable[Any]) -> None:
    """Takes as kept what functions can write: what they reach by the names in their code.

    They are a program's own that write its state to files. What they do with a value nobody knows, but a value whose
    name they do not have is not written.
    """
    names: set[str] = set()
    written_by = list(functions)
    waiting = [getattr(function, "__func__", function) for function in written_by]
    holders = [method.__self__ for method in written_by if isinstance(method, types.MethodType)]
    seen: set[int] = set()
    codes: list[types.CodeType] = []
    roots: list[tuple[str, Any]] = []
    while waiting:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        if package_of_name(function.__module__ or "") in FRAMEWORKS | SKIPPED | sys.stdlib_module_names:
            continue
        codes.append(function.__code__)
        code_names = names_in_code(function.__code__)
        names |= code_names
        roots += closure_of(function)
        roots += [(name, function.__globals__[name]) for name in code_names & function.__globals__.keys()]
        for holder in holders:
            waiting += [getattr(type(holder), name, None) for name in code_names]
        waiting += [value for _, value in roots]
    is_computed = any(map(takes_by_computed_name, codes))
    if is_computed:
        listed = _listed_names(names, codes, [*(value for name, value in roots if name in names), *holders])
        names |= listed
    takes_all = not names.isdisjoint(WHOLESALE) or (is_computed and not listed)
    written = _Written(names, frozenset().union(*map(used_whole, codes)) if takes_all else frozenset())
    for name, value in roots:
        _keep(kept, name, value, written.inside(name), seen)
    takes_itself = "__dict__" in names or any(map(uses_itself, codes))
    for holder in holders:
        if takes_all and not takes_itself:  # as in pickle.dumps((self.params, self.state))
            _keep_attributes(kept, holder, written, seen)
        else:
            _keep(kept, "", holder, None if takes_all else written, seen)


def _listed_names(names: Collection[str], codes: Iterable[types.CodeType], values: Iterable[Any]) -> set[str]:
    """The texts in constants of code, in containers, and in containers that are attributes with one of `names`."""
    containers = [const for code in codes for const in _constants_of(code) if isinstance(const, digests.CONTAINERS)]
    for value in values:
        if isinstance(value, digests.CONTAINERS):
            containers.append(value)
        else:
            attributes = {**vars(type(value)), **held_attributes(value)}
            containers += [part for name, part in attributes.items() if name in names]
    return {
        text
        for container in containers
        if isinstance(container, digests.CONTAINERS)
        for text in (
            container if isinstance(container, Mapping) else (part for _, part in digests.entries_of(container))
        )
        if isinstance(text, str) and text.isidentifier()
    }


def _constants_of(code: types.CodeType) -> Iterator[Any]:
    """The constants of a function and of those inside it, as comprehensions are."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _constants_of(const)
        else:
            yield const


@dataclass(frozen=True, slots=True)
class _Written:
    """What code takes of values. `names`: the attributes and names that it has; `whole`: those of which it takes
    everything, as in `dumps(self.state)`, and not in `dumps(self.state.weights)`."""

    names: Collection[str]
    whole: Collection[str]

    def inside(self, name: str) -> "_Written | None":
        """What it takes of the value of a name; None: everything."""
        return None if name in self.whole else self


def _keep(kept: Kept, name: str, value: Any, written: _Written | None, seen: set[int]) -> None:
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
        if written is not None and written.names:
            kept.partly.add(id(value))
        for attribute, part in own_attributes(value).items():
            if isinstance(part, digests.PLAIN):
                kept.attributes.add((id(value), attribute))
            else:
                _keep(kept, attribute, part, written, seen)
        for _, entry in digests.entries_of(value):
            if not isinstance(entry, digests.PLAIN):
                _keep(kept, name, entry, written, seen)
    elif content_of(value) is not None:
        kept.identities.add(id(value))
    elif package_of(type(value)) not in SKIPPED | sys.stdlib_module_names or isinstance(value, NAMESPACES):
        _keep_attributes(kept, value, written, seen)


def _keep_attributes(kept: Kept, value: Any, written: _Written | None, seen: set[int]) -> None:
    """Takes as kept the attributes that are written (None: all), and of what they are."""
    if written is not None and written.whole and _computes(type(value), written.names):
        written = None
    for owner, attributes in [(value, held_attributes(value)), *((kind, vars(kind)) for kind in type(value).__mro__)]:
        for attribute, part in attributes.items():
            if written is None or attribute in written.names:
                if isinstance(part, digests.PLAIN):
                    kept.attributes.add((id(owner), attribute))
                else:
                    kept.references.add((id(owner), attribute))
                    _keep(kept, attribute, part, None if written is None else written.inside(attribute), seen)


def _computes(kind: type, names: Collection[str]) -> bool:
    """Whether one of these names is a property of a class: nobody knows what it takes."""
    computed = (property, functools.cached_property)
    return any(isinstance(vars(owner).get(name), computed) for owner in kind.__mro__ for name in names)


def keep_state_of(kept: Kept, item: Any) -> None:
    """Takes as kept what an object with `state_dict` gives: attributes of that name, and values of that name in it."""
    if isinstance(item, LogFile):
        kept.identities.add(id(item))
    if not (hasattr(type(item), "state_dict") and hasattr(type(item), "load_state_dict")):
        return
    names = _given_and_taken(cast("Any", type(item)), "state_dict", "load_state_dict")
    kept.attributes |= {(id(item), name) for name in names}
    if names:
        gives: types.FunctionType = type(item).state_dict
        for name, value in (*globals_of(gives), *closure_of(gives)):
            if name in names and isinstance(value, digests.PLAIN):
                kept.names.add(name)
            elif name in names and isinstance(value, digests.CONTAINERS):
                kept.identities.add(id(value))
    _keep_of_others(kept, item)
    state = item.state_dict()
    if isinstance(state, Mapping):
        kept.attributes |= {(id(item), str(name)) for name in state} | {(id(item), f"_{name}") for name in state}
    kept.keep_contents(item, state)


def _keep_of_others(kept: Kept, item: Any) -> None:
    """Takes as kept the attributes of the objects inside an object that its `state_dict` reads and its
    `load_state_dict` sets, as those of an environment that has no state of its own."""
    names = _given_and_taken_of_others(cast("Any", type(item)))
    waiting, seen = [item], {id(item)}
    while names and waiting and len(seen) < digests.ENTRIES:
        part = waiting.pop()
        inside = [*held_attributes(part).values()]
        if isinstance(part, digests.CONTAINERS):
            inside += [entry for _, entry in digests.entries_of(part)]
        elif part is not item:  # not what has objects in it: of them only what is read and set itself
            held = held_attributes(part)
            kept.attributes |= {(id(part), name) for name in names & held.keys() if _is_content(held[name])}
        for value in inside:
            if id(value) not in seen and not isinstance(value, (*digests.PLAIN, types.ModuleType, type)):
                seen.add(id(value))
                waiting.append(value)


def _is_content(value: Any) -> bool:
    """Whether it is a plain value or an array, or a container of nothing else."""
    if isinstance(value, digests.CONTAINERS):
        return all(_is_content(entry) for _, entry in digests.entries_of(value))
    return isinstance(value, digests.PLAIN) or digests.is_array(value)


@functools.lru_cache(maxsize=1024)
def _given_and_taken_of_others(kind: Any) -> frozenset[str]:
    """As `_given_and_taken`, of other objects than the one that has the methods."""
    if not _given_and_taken(kind, "state_dict", "load_state_dict"):
        return frozenset()
    return attributes_of_others(kind.state_dict.__code__) & attributes_of_others(kind.load_state_dict.__code__)


def keep_extra_state(kept: Kept, module: Any) -> None:
    """Takes as kept the attributes of which a module of PyTorch makes the extra state that its `state_dict` has."""
    kept.attributes |= {
        (id(module), name) for name in _given_and_taken(cast("Any", type(module)), "get_extra_state", "set_extra_state")
    }


@functools.lru_cache(maxsize=1024)
def _given_and_taken(kind: Any, give: str, take: str) -> frozenset[str]:
    """The attributes that a method of the script's reads, and that its counterpart sets: under whatever name, they are
    in the state."""
    functions = [getattr(kind, name, None) for name in (give, take)]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    if len(codes) < len(functions) or any(is_installed_file(code.co_filename) for code in codes):
        return frozenset()
    given, taken = map(names_in_code, codes)
    return frozenset(given & taken)


def keep_deeply(kept: Kept, value: Any) -> None:
    """Takes an array or a container, with all that is in it, as kept."""
    _keep(kept, "", value, _Written((), ()), set())
