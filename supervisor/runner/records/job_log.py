"""Lines in the daemon's log that a job's messages cause: so many for each program, that none erases what others need.

The log is one for all, and rotated. A job that could write into it without end would push out what happened to other
programs, and what operators did.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from structlog.typing import FilteringBoundLogger

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.limits import TokenBucket

LINES_A_SECOND, LINES_AT_ONCE = 2.0, 1000  # a job that saves every half second can still be followed
BYTES_A_SECOND, BYTES_AT_ONCE = 2000.0, 1 << 20  # 7 MB an hour; a traceback at its longest is 16 KB
LINE_BYTES = 250  # of a line without the values of its facts
SHOWN_FOR_S = 3600.0


class JobLog:
    """Writes to `log` what the quota allows, and says how much it left out."""

    __slots__ = ("_clock", "_last_at", "_log", "_quota", "_untold", "left_out")

    def __init__(self, log: FilteringBoundLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self.left_out = 0
        """How many lines were left out."""
        self._log = log
        self._clock = clock
        self._quota: tuple[TokenBucket, TokenBucket] | None = None  # lines and bytes, once there was one
        self._untold = 0
        self._last_at = 0.0

    def debug(self, event: str, **facts: Any) -> None:
        """For us."""
        self._log.debug(event, **facts)

    def info(self, event: str, **facts: Any) -> None:
        """A state changed."""
        if self._has_room(facts):
            self._log.info(event, **facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Recovered by itself."""
        if self._has_room(facts):
            self._log.warning(event, **facts)

    def error(self, event: str, **facts: Any) -> None:
        """A person must act."""
        if self._has_room(facts):
            self._log.error(event, **facts)

    def describe(self, now: float) -> list[str]:
        """What `status` says of it; nothing an hour after the last line that was left out."""
        if not self.left_out or now - self._last_at > SHOWN_FOR_S:
            return []
        return [f"{counted(self.left_out, 'line')} of it left out of the daemon's log"]

    def _has_room(self, facts: dict[str, Any]) -> bool:
        now, size = self._clock(), LINE_BYTES + sum(map(_size, facts.values()))
        if self._quota is None:
            self._quota = TokenBucket(LINES_A_SECOND, LINES_AT_ONCE), TokenBucket(BYTES_A_SECOND, BYTES_AT_ONCE)
        lines, characters = self._quota
        if not (lines.has(now) and characters.has(now, size)):
            self.left_out += 1
            self._untold += 1
            self._last_at = now
            return False
        lines.take(now)
        characters.take(now, size)
        if self._untold:
            self._log.warning("worker.lines_left_out", lines=self._untold)
            self._untold = 0
        return True


def _size(value: object) -> int:
    """Bytes of a value in a line of JSON, in which a character may have six."""
    return len(json.dumps(value, default=str, allow_nan=False))
