"""What the watch has named, and what it may not name."""

from collections.abc import Iterable
from typing import Any

from worker.checks.watch.kept_values import short_name


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
