"""A limited amount of memory in which programs have shares: where there is no room, who holds most gives way.

So a program that prints without end loses its own output, and no other's. Used in the logger too, so it imports the
standard library only.
"""

from collections import OrderedDict


class SharedRoom:
    """What is held, by program and key. An entry larger than `limit_bytes` is held if nothing else is."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._sizes: dict[str, OrderedDict[int, int]] = {}
        self._bytes_of: dict[str, int] = {}

    def add(self, program: str, key: int, size: int) -> list[tuple[str, int]]:
        """Takes an entry in; gives what has to go for it, as programs and keys. That may be this entry itself."""
        gone: list[tuple[str, int]] = []
        while self._held_bytes and self._held_bytes + size > self._limit_bytes:
            most = max(self._bytes_of, key=self._bytes_of.__getitem__)
            if self._bytes_of.get(program, 0) + size >= self._bytes_of[most]:
                return [*gone, (program, key)]
            newest = next(reversed(self._sizes[most]))  # so that what is left of its output has no gap
            self.remove(most, newest)
            gone.append((most, newest))
        self._sizes.setdefault(program, OrderedDict())[key] = size
        self._bytes_of[program] = self._bytes_of.get(program, 0) + size
        self._held_bytes += size
        return gone

    def remove(self, program: str, key: int) -> None:
        """An entry is not held any more."""
        size = self._sizes[program].pop(key)
        self._held_bytes -= size
        self._bytes_of[program] -= size
        if not self._sizes[program]:
            del self._sizes[program], self._bytes_of[program]

    def clear(self) -> None:
        """Nothing is held any more."""
        self._held_bytes = 0
        self._sizes.clear()
        self._bytes_of.clear()
