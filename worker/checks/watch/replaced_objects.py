"""Which attributes and entries of containers hold another object than before: `self.optimizer = self.second`, two
models that change places, a list of layers in another order.

The state of each object is kept wherever it is, so no value differs; but a restart puts the objects where the script
first does. An object that was not there before says little: a batch, a result, a meter for the next epoch. So what
counts is one that was seen at another place before, or one of a framework that is of another class, such as another
loss. Imports no framework.
"""

import types
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from worker.checks.watch import digests
from worker.checks.watch.script_objects import FRAMEWORKS, SKIPPED, is_scripts_class, package_of


@dataclass(frozen=True, slots=True)
class Placed:
    """An object at a place. `container`: the path of the container that has it as an entry; None for an attribute or a
    name of a module, whose `owner` and `binding` are as for `Reached`."""

    value: Any
    owner: int | None
    binding: str | None
    container: str | None = None


class ReplacedObjects:
    """Compares from look to look, and keeps no object alive."""

    def __init__(self) -> None:
        self._before: dict[str, weakref.ref[Any]] = {}
        self._of_owners: dict[tuple[int, str | None], weakref.ref[Any]] = {}
        self._owners: dict[str, int | None] = {}
        self._kinds: dict[str, type] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}

    def changed(
        self, placed: Mapping[str, Placed], kept: Collection[int], was_there: Callable[[int | None], bool]
    ) -> list[tuple[str, Placed]]:
        """The places that hold another object than at the last look, with what is there now. `kept`: ids of objects
        that checkpoints hold; `was_there`: whether what has an id now had it at the last look, too, so that its
        attributes are compared with its own, whichever name led to it then."""
        changes = []
        for path, place in placed.items():
            before = self._before.get(path)
            if place.owner is not None and place.owner != self._owners.get(path) and was_there(place.owner):
                before = self._of_owners.get((place.owner, place.binding))
            if before is None or before() is place.value:
                continue
            if id(place.value) in kept or self._was_seen(place.value) or self._is_of_another_class(path, place.value):
                changes.append((path, place))
        self._before = {path: weakref.ref(place.value) for path, place in placed.items()}
        self._owners = {path: place.owner for path, place in placed.items()}
        self._of_owners = {
            (place.owner, place.binding): self._before[path]
            for path, place in placed.items()
            if place.owner is not None
        }
        self._kinds = {path: type(place.value) for path, place in placed.items()}
        self._seen = {id(place.value): self._before[path] for path, place in placed.items()}
        return changes

    def _was_seen(self, value: Any) -> bool:
        seen = self._seen.get(id(value))
        return seen is not None and seen() is value  # not another one that has its id now

    def _is_of_another_class(self, path: str, value: Any) -> bool:
        return type(value) is not self._kinds.get(path, type(value)) and package_of(type(value)) in FRAMEWORKS


_VALUES = (type, types.ModuleType, types.FunctionType, types.MethodType, *digests.PLAIN, *digests.CONTAINERS)


def is_object(value: Any) -> bool:
    """Whether a value is an object of the script or of a framework, and no array, iterator or function."""
    kind = type(value)
    return (
        not isinstance(value, _VALUES)
        and getattr(kind, "__weakrefoffset__", 0) != 0
        and (package_of(kind) in FRAMEWORKS or is_scripts_class(kind))
        and package_of(kind) not in SKIPPED
        and not hasattr(kind, "__next__")
        and not digests.is_array(value)
    )
