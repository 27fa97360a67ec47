"""What functions of a program's own write to its files: by the names in their code."""

import functools
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.checks.reachability import closure_of, held_attributes
from worker.checks.watch import digests
from worker.checks.watch.code.computed_names import attributes_computed
from worker.checks.watch.code.written_names import WHOLESALE, takes_by_computed_name, used_whole, uses_itself
from worker.checks.watch.kept.kept_values import Kept, fields_of
from worker.checks.watch.script_objects import FRAMEWORKS, SKIPPED, names_in_code, package_of, package_of_name
from worker.checks.watch.standard_objects import NAMESPACES, content_of
from worker.state.plain_values import own_attributes


def keep_written(kept: Kept, functions: Iterable[Any], read: Any = None) -> None:
    """Takes as kept what functions can write: what they reach by the names in their code, and what their counterpart
    `read` computes from that.

    They are a program's own that write its state to files. What they do with a value nobody knows, but a value whose
    name they do not have is not written.
    """
    names, seen = set[str](), set[int]()
    written_by = list(functions)
    waiting = [getattr(function, "__func__", function) for function in written_by]
    holders = [method.__self__ for method in written_by if isinstance(method, types.MethodType)]
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
    used = frozenset[str]().union(*map(used_whole, codes))
    takes_itself = "__dict__" in names or any(map(uses_itself, codes))

    def keep(names: Collection[str]) -> None:
        written, known = _Written(names, used if takes_all else frozenset(), used), set(seen)
        for name, value in roots:
            _keep(kept, name, value, written.inside(name), known)
        for holder in holders:
            if takes_all and not takes_itself:  # as in pickle.dumps((self.params, self.state))
                _keep_attributes(kept, holder, written, known)
            else:
                _keep(kept, "", holder, None if takes_all else written, known)

    keep(names)
    saved = {name for _, name in kept.attributes | kept.references} & names
    if computed := attributes_computed(read, saved):
        keep(names | computed)


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
    everything, as in `dumps(self.state)`, and not in `dumps(self.state.weights)`; `used`: those of which it uses more
    than attributes and entries under constants."""

    names: Collection[str]
    whole: Collection[str]
    used: Collection[str] = ()

    def inside(self, name: str) -> "_Written | None":
        """What it takes of the value of a name; None: everything."""
        return None if name in self.whole else self

    def entries_of(self, name: str, container: Any) -> dict[str, Any] | None:
        """Which entries it takes of the value of a name, a named tuple or a dictionary, by the names of fields and
        keys; None if it may take all."""
        if name in self.used or name not in self.names:
            return None
        entries = dict(container) if isinstance(container, dict) else fields_of(container)
        taken = {key: entry for key, entry in (entries or {}).items() if isinstance(key, str) and key in self.names}
        return taken if taken and len(taken) < len(entries or ()) else None


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
    elif written is not None and (taken := written.entries_of(name, value)) is not None:
        kept.entries[id(value)] = taken.keys()
        for key, entry in taken.items():
            _keep(kept, key, entry, written.inside(key), seen)
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


def keep_deeply(kept: Kept, value: Any) -> None:
    """Takes an array or a container, with all that is in it, as kept."""
    _keep(kept, "", value, _Written((), ()), set())
