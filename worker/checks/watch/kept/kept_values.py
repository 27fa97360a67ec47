"""What checkpoints hold of a script's values: by identity, by the attribute that holds them, by name, or by content.

Each kind of run says what its checkpoints hold, and the watch and the search leave that out. Imports no framework.
"""

import enum
import itertools
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np

from worker.checks.reachability import closure_of, held_attributes
from worker.checks.watch import digests

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
    entries: dict[int, Collection[str]] = field(default_factory=dict)
    """By the id of a named tuple or a dictionary, the fields or keys of which they hold the value, and of no others."""
    names_modules: bool = False
    """Whether the run itself names the modules of PyTorch that they do not hold."""
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


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a named tuple, by name; None of anything else."""
    names = getattr(type(value), "_fields", None)
    return dict(zip(names, value, strict=False)) if isinstance(value, tuple) and isinstance(names, tuple) else None


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
