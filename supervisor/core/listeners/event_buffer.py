"""The events that wait in one pool of listeners, in the order in which they happened; which go if there is no room."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

MAX_BYTES = 16 << 20  # of payloads that wait in one pool; `buffer_size` events of a megabyte would be too many


@dataclass(slots=True)
class PoolEvent:
    """An event that waits, or that a listener has. `program`: whose it is, if it is one's.

    `refusals`: how often it was rejected; `not_before`: monotonic.
    """

    serial: int
    pool_serial: int
    name: str
    payload: bytes
    program: str | None = None
    refusals: int = 0
    not_before: float = 0.0


class EventBuffer:
    """`capacity`: how many events may wait.

    If there are too many, the oldest event of the program that has most waiting goes; if they are too large, that of
    the program that has most bytes waiting. So a program that makes events without end drops its own.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._events: deque[PoolEvent] = deque()
        self._bytes = 0
        self._count_of: Counter[str | None] = Counter()
        self._bytes_of: Counter[str | None] = Counter()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def oldest(self) -> PoolEvent | None:
        """The next event that a listener gets; None if none waits."""
        return self._events[0] if self._events else None

    def add(self, event: PoolEvent) -> None:
        """Adds the newest event."""
        self._insert(len(self._events), event)

    def put_back(self, event: PoolEvent) -> None:
        """Adds an event before all later ones; there is always room for it."""
        self._insert(sum(1 for waiting in self._events if waiting.pool_serial < event.pool_serial), event)

    def take_oldest(self) -> PoolEvent:
        """Takes the next event out."""
        return self._take(0)

    def drop_beyond_room(self) -> Iterator[PoolEvent]:
        """Takes out what there is no room for."""
        while len(self._events) > self.capacity:
            yield self._take(self._oldest_of_largest(self._count_of))
        while self._bytes > MAX_BYTES and len(self._events) > 1:
            yield self._take(self._oldest_of_largest(self._bytes_of))

    def _insert(self, place: int, event: PoolEvent) -> None:
        self._events.insert(place, event)
        self._count_of[event.program] += 1
        self._bytes_of[event.program] += len(event.payload)
        self._bytes += len(event.payload)

    def _oldest_of_largest(self, shares: Counter[str | None]) -> int:
        """The place of the oldest event of the program with the largest share; of several such, the oldest of all."""
        most = max(shares.values())
        return next(place for place, event in enumerate(self._events) if shares[event.program] == most)

    def _take(self, place: int) -> PoolEvent:
        event = self._events[place]
        del self._events[place]
        self._bytes -= len(event.payload)
        self._bytes_of[event.program] -= len(event.payload)
        self._count_of[event.program] -= 1
        if not self._count_of[event.program]:
            del self._count_of[event.program], self._bytes_of[event.program]
        return event
