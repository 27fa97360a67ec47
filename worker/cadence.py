"""When the next periodic save is due. Seconds are monotonic."""

from dataclasses import dataclass

from supervisor.protocol.launch import Interval

DEFAULT_INTERVAL = Interval(seconds=600.0)  # losing ten minutes hurts less than saving all the time
FIRST_PAUSE_S = 10.0  # after a save that failed; a full disk is rarely free again sooner
MAX_PAUSE_S = 60.0  # what a crash may cost more, once the disk is free again


@dataclass(slots=True)
class Cadence:
    """Due at multiples of the interval's steps, or that many seconds after the last save; later after a failure."""

    interval: Interval
    saved_step: int
    saved_at: float
    failures: int = 0
    failed_at: float = 0.0

    def is_due(self, step: int, now: float) -> bool:
        """Whether a save should be taken at this step boundary."""
        if self.failures:
            doublings = min(self.failures - 1, 10)  # far beyond MAX_PAUSE_S, and 2.0 ** 1024 would overflow
            return now >= self.failed_at + min(FIRST_PAUSE_S * 2.0**doublings, MAX_PAUSE_S)
        if self.interval.steps is not None:
            return step // self.interval.steps > self.saved_step // self.interval.steps
        return self.interval.seconds is not None and now >= self.saved_at + self.interval.seconds

    def begun(self, step: int, now: float) -> None:
        """A save of `step` was taken: the next interval counts from here."""
        self.saved_step, self.saved_at = step, now

    def succeeded(self) -> None:
        """A save was committed: what failed before no longer counts."""
        self.failures = 0

    def failed(self, now: float) -> None:
        """A save failed: the next try waits, each time longer."""
        self.failures, self.failed_at = self.failures + 1, now
