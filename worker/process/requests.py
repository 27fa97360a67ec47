"""Flushes, stops and exports that were requested and are not served yet."""

import time
from collections import deque
from dataclasses import dataclass

SIGNAL_S = (
    5.0  # for the save after a signal, which names no limit: half of what stopwaitsecs and docker give by default
)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save at the next step boundary: the flush ids that it answers, and whether to stop afterwards.

    `deadline_at`: no try to save begins after that (monotonic seconds); None: there is no limit.
    """

    flushes: tuple[int, ...] = ()
    stop: bool = False
    deadline_at: float | None = None


class PendingRequests:
    """Filled by the control thread and by signal handlers, emptied by the training loop between steps.

    Uses no locks, because a signal handler may interrupt the very code that holds one: appending to a deque and popping
    from it are atomic in CPython.
    """

    def __init__(self) -> None:
        self._save_requests: deque[SaveRequest] = deque()
        self.step = 0
        """The last step done, for those who answer a request before it is served."""
        self.unanswered_flushes: set[int] = set()
        """Ids of flushes that were received and whose outcome was not reported yet."""
        self.last_flush_id = 0
        self.stop_requested = False
        """Whether this process was told to save and stop."""
        self.pending_exports: deque[int] = deque()
        """Ids of exports that were requested."""
        self.can_export = False
        """Whether there is a loop that serves exports."""

    def add_save_request(self, request: SaveRequest) -> None:
        """Keeps a request until the loop serves it."""
        self.unanswered_flushes.update(request.flushes)
        if request.flushes:  # a signal handler brings none, and must not write back a value that it read before
            self.last_flush_id = max(self.last_flush_id, *request.flushes)
        self.stop_requested = self.stop_requested or request.stop
        self._save_requests.append(request)

    def add_stop_request(self) -> None:
        """Requests a save and a stop, as a signal does."""
        self.add_save_request(SaveRequest(stop=True, deadline_at=time.monotonic() + SIGNAL_S))

    def mark_answered(self, flushes: tuple[int, ...]) -> None:
        """The outcome of these flushes was reported."""
        self.unanswered_flushes.difference_update(flushes)

    @property
    def has_save_request(self) -> bool:
        """Whether `pop_save_request` would return one."""
        return bool(self._save_requests)

    @property
    def has_work(self) -> bool:
        """Whether something was requested that the loop has to do between two steps."""
        return bool(self._save_requests or self.pending_exports)

    def pop_save_request(self) -> SaveRequest | None:
        """Removes all save requests and returns them as one; None if there is none."""
        requests: list[SaveRequest] = []
        while self._save_requests:
            requests.append(self._save_requests.popleft())
        if not requests:
            return None
        limits = [request.deadline_at for request in requests if request.stop and request.deadline_at is not None]
        return SaveRequest(
            tuple(id for request in requests for id in request.flushes),
            any(request.stop for request in requests),
            min(limits, default=None),
        )
