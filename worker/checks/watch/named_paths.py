"""What the watch has named, and what it may not name."""

import re
from collections.abc import Iterable
from typing import Any

from worker.checks.watch.kept.kept_values import short_name

_NUMBER = re.compile(r"\[\d+\](?=\.)")


def of_any_entry(path: str) -> str | None:
    """What the paths of the same attribute of all objects in a list have in common; None for any other."""
    common, count = _NUMBER.subn("[]", path)
    return common if count else None


class NamedPaths:
    """The names and paths that were named, each once. `exempt`: objects and names that may begin anew."""

    def __init__(self, exempt: Iterable[Any]) -> None:
        listed = list(exempt)
        self.exempt = [value for value in listed if not isinstance(value, str)]
        """The objects."""
        self._exempt_names = {name for name in listed if isinstance(name, str)}
        self._named: set[str] = set()

    def add(self, path: str) -> None:
        """It is named now."""
        self._named.add(path)

    def of_entries(self) -> frozenset[str]:
        """What was named so far of objects in lists, as `of_any_entry` gives it."""
        return frozenset(common for path in self._named if (common := of_any_entry(path)) is not None)

    def __contains__(self, path: str) -> bool:
        return path in self._named

    def has_around(self, path: str) -> bool:
        """Whether it was named, or what it is a part of, or an entry of it."""
        return any(
            path == name or path.startswith((f"{name}.", f"{name}[")) or name.startswith(f"{path}[")
            for name in self._named
        )

    def is_exempt(self, name: str) -> bool:
        """Whether the script has given the name to `leave_out`."""
        return bool({name, short_name(name), name.partition("[")[0]} & self._exempt_names)

    def is_exempt_object(self, value: Any) -> bool:
        """Whether the script has given the object to `leave_out`."""
        return any(value is item for item in self.exempt)
