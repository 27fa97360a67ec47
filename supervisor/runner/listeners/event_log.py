"""What happened lately, in memory: every watcher reads it from where it stands, so that none can hold the daemon up."""

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from supervisor.core.listeners.event_types import EventValue, PublishedEvent

KEPT = 10_000  # some 5 MB; a watcher that is away for longer is told how many it missed
MAX_BYTES = 16 << 20  # of what clients sent (REMOTE_COMMUNICATION), which may be a megabyte each


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One occurrence and its number."""

    serial: int
    wall_at: float
    occurrence: PublishedEvent

    def fields(self) -> Mapping[str, EventValue]:
        """Everything about it, flat."""
        event = self.occurrence
        return {"program": event.program, "group": event.group, **event.fields}


class EventLog:
    """The last KEPT occurrences. Serials count from 0 with each daemon; `id` tells its stream from another's."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(4)
        self._entries: deque[LoggedEvent] = deque()
        self._bytes = 0
        self._serial = 0
        self._more = asyncio.Event()
        self.is_closed = False
        """Whether no more will come."""

    @property
    def next_serial(self) -> int:
        """The number that the next one gets."""
        return self._serial

    @property
    def first_serial(self) -> int:
        """The number of the oldest one that is kept."""
        return self._entries[0].serial if self._entries else self._serial

    def append(self, occurrence: PublishedEvent) -> LoggedEvent:
        """Takes one in; watchers wake up."""
        entry = LoggedEvent(self._serial, time.time(), replace(occurrence, payload=None))  # which is for listeners only
        self._serial += 1
        self._entries.append(entry)
        self._bytes += _size(entry)
        while len(self._entries) > KEPT or (self._bytes > MAX_BYTES and len(self._entries) > 1):
            self._bytes -= _size(self._entries.popleft())
        self._more.set()
        self._more = asyncio.Event()
        return entry

    def read_from(self, serial: int, most: int) -> list[LoggedEvent]:
        """Those from this number on, `most` at once."""
        if not self._entries or serial >= self._serial:
            return []
        start = max(0, serial - self.first_serial)
        return list(itertools.islice(self._entries, start, start + most))

    async def wait_for_more(self) -> None:
        """Waits for the next one, or the end."""
        if not self.is_closed:
            await self._more.wait()

    def close(self) -> None:
        """No more will come: watchers leave."""
        self.is_closed = True
        self._more.set()


def _size(entry: LoggedEvent) -> int:
    return sum(len(field) for field in entry.occurrence.fields.values() if isinstance(field, str))
