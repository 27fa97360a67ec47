"""Does any code of the script read an attribute that it has not assigned before? A result that an epoch's tail keeps in
`self.accuracy` and prints changes from epoch to epoch, and nothing that a restart trains with depends on it.

Only of objects whose classes are all the script's own: what frameworks read of theirs nobody knows here.
"""

import types
from collections.abc import Mapping
from typing import Any, cast

from worker.checks.watch.code.bytecode import flow_of
from worker.checks.watch.script_objects import is_installed, is_scripts_class, names_in_code

_READ_ALL = frozenset(
    {"vars", "__dict__", "asdict", "astuple", "replace", "copy", "deepcopy", "dump", "dumps", "pickle", "attrgetter"}
)
"""Names of what takes everything from an object, or an attribute of any name."""


class AttributeReaders:
    """The code that a look knows."""

    def __init__(self, codes: Mapping[types.CodeType, int | None], kinds: Mapping[int, Any], *, is_all: bool) -> None:
        """`codes`: of the script's functions; of those that run now, with the offset where they are. `kinds`: by id,
        `kind_of` objects. `is_all`: whether that is everything the loop reaches."""
        self._codes = codes
        self._kinds = kinds
        self._is_all = is_all
        self._known: dict[str, bool] = {}

    def may_read(self, name: str, owner: int | None) -> bool:
        """Whether an attribute of the object with the id `owner` may be read from now on before it is assigned."""
        if not self._is_all or not _is_own_alone(self.kind_at(owner)):
            return True
        if name not in self._known:
            self._known[name] = self._is_read(name)
        return self._known[name]

    def kind_at(self, owner: int | None) -> Any:
        """`kind_of` the object with an id; None if nobody knows."""
        return None if owner is None else self._kinds.get(owner)

    def _is_read(self, name: str) -> bool:
        return any(
            not _READ_ALL.isdisjoint(names_in_code(code)) or flow_of(code).may_read_attribute(name, offset)
            for code, offset in self._codes.items()
        )


def _is_own_alone(kind: Any) -> bool:
    if not isinstance(kind, type) or hasattr(kind, "__dataclass_fields__"):  # which has methods that read all
        return False
    return all(is_scripts_class(owner) and not is_installed(cast("Any", owner)) for owner in kind.__mro__[:-1])
