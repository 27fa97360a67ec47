"""Flushes and exports that were asked for and are not served yet."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What has to be served at the next step boundary: flush ids to answer, and whether to leave afterwards."""

    flushes: tuple[int, ...] = ()
    stop: bool = False


class PendingRequests:
    """Filled by the control thread and by signal handlers, emptied by the training loop between steps.

    Free of locks, because a signal handler may interrupt the very code that holds one: appending to and taking from
    a deque are atomic in CPython.
    """

    def __init__(self) -> None:
        self._waiting: deque[SaveRequest] = deque()
        self.step = 0
        """The last step done, for whoever answers a request before it is served."""
        self.unanswered_flushes: set[int] = set()
        """Flush ids that were heard, and of which nobody has said yet what became of them."""
        self.last_flush_id = 0
        self.stop_requested = False
        """Whether somebody wants this process to save and leave."""
        self.pending_exports: deque[int] = deque()
        """Ids of exports that were asked for."""
        self.can_export = False
        """Whether there is a loop that takes exports from here."""

    def add_save_request(self, asked: SaveRequest) -> None:
        """Remembers a request until the loop takes it."""
        self.unanswered_flushes.update(asked.flushes)
        if asked.flushes:  # a signal handler brings none, and must not write back what it read a moment before
            self.last_flush_id = max(self.last_flush_id, *asked.flushes)
        self.stop_requested = self.stop_requested or asked.stop
        self._waiting.append(asked)

    def mark_answered(self, flushes: tuple[int, ...]) -> None:
        """These were committed, or can't be."""
        self.unanswered_flushes.difference_update(flushes)

    @property
    def has_save_request(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._waiting)

    def pop_save_request(self) -> SaveRequest | None:
        """All that was asked since the last time, as one; None if nothing was."""
        flushes: list[int] = []
        stop = taken = False
        while self._waiting:
            asked = self._waiting.popleft()
            flushes.extend(asked.flushes)
            stop, taken = stop or asked.stop, True
        return SaveRequest(tuple(flushes), stop) if taken else None
