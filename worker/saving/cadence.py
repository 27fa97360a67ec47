"""When the next periodic save is due, and how long the interval is best. Seconds are monotonic."""

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from supervisor.protocol.wire.launch import CHECKPOINT_INTERVAL_MAX, CHECKPOINT_INTERVAL_MIN, Interval, Launch

BETWEEN_FAILURES_S = 3600.0  # assumed where nobody knows: one an hour, as on a spot host on a bad day
FIRST_TRAINED = 10.0  # times what the first save cost, before the second measures it: a tenth is lost at most
WRITES = 2.0  # an interval is this many times as long as a save takes, so that the disk has the other half
FIRST_PAUSE_S = 10.0  # after a save that failed; a full disk is rarely free again sooner
MAX_PAUSE_S = 60.0  # what a crash may cost more, once the disk is free again
WEIGHT = 0.3  # of the newest save in the smoothed cost: three saves say more than one, and a change shows soon
REMEMBERED = 64  # steps; enough for a median, few enough to follow a training that gets slower


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Seconds of training between two saves at which saving and repeating lost work together cost least.

    Daly's approximation (J. T. Daly, A higher order estimate of the optimum checkpoint interval, FGCS 22, 2006). Its
    leading term is Young's sqrt(2 * cost * between_failures). Raises ValueError if a duration is negative or none is
    given between failures.
    """
    if cost_s < 0 or between_failures_s <= 0:
        raise ValueError(f"no interval for saves of {cost_s} s and failures every {between_failures_s} s")
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    share = cost_s / (2 * between_failures_s)
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + math.sqrt(share) / 3 + share / 9) - cost_s


@dataclass(slots=True)
class AutoInterval:
    """An interval that follows what saves cost. `cost_s`, `save_s`: smoothed; None before the first save.

    The first save of a process costs two or three times as much as the next ones (it allocates and traces what they
    find), so it counts for nothing once there is a second one, and that one is taken soon.
    """

    between_failures_s: float = BETWEEN_FAILURES_S
    lowest_s: float = CHECKPOINT_INTERVAL_MIN
    highest_s: float = CHECKPOINT_INTERVAL_MAX
    cost_s: float | None = None
    save_s: float = 0.0
    saves: int = 0

    def record_save(self, cost_s: float, save_s: float) -> None:
        """A save cost training `cost_s` seconds and was on the disk after `save_s`."""
        self.saves += 1
        old = (cost_s, save_s) if self.cost_s is None or self.saves <= 2 else (self.cost_s, self.save_s)
        self.cost_s = old[0] + WEIGHT * (cost_s - old[0])
        self.save_s = old[1] + WEIGHT * (save_s - old[1])

    @property
    def interval_s(self) -> float:
        """The best one within the bounds; a short one until two saves are measured."""
        if self.cost_s is None:
            return self.lowest_s
        is_known = self.saves >= 2
        best = best_interval_s(self.cost_s, self.between_failures_s) if is_known else FIRST_TRAINED * self.cost_s
        return min(max(best, WRITES * self.save_s, self.lowest_s), self.highest_s)


def auto_interval_of(launch: Launch) -> AutoInterval:
    """With what the configuration and the ledger say."""
    return AutoInterval(
        between_failures_s=launch.between_failures_s or BETWEEN_FAILURES_S,
        lowest_s=launch.checkpoint_interval_min,
        highest_s=launch.checkpoint_interval_max,
    )


@dataclass(slots=True)
class StepPace:
    """How long steps take, with a save beside them and without: what a background save costs besides its stall."""

    _quiet: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _beside: list[float] = field(default_factory=list)
    _last_at: float | None = None
    _was_beside: bool = False

    def record_step(self, at: float, beside: bool) -> None:
        """A step ended `at` (less all stalls). `beside`: a save is being written now."""
        if self._last_at is not None:
            (self._beside if beside or self._was_beside else self._quiet).append(at - self._last_at)
        self._last_at, self._was_beside = at, beside

    @property
    def step_s(self) -> float | None:
        """How long a step takes without a save beside it (the median); None before three were measured."""
        return statistics.median(self._quiet) if len(self._quiet) >= 3 else None

    def pop_slowdown_s(self) -> float:
        """Seconds that the save beside the last steps cost them; forgets those steps. 0.0 if that can't be told.

        Medians, because a step may hold an evaluation or a trace.
        """
        beside, self._beside = self._beside, []
        if not beside or len(self._quiet) < 3:
            return 0.0
        return max(0.0, statistics.median(beside) - statistics.median(self._quiet)) * len(beside)


@dataclass(slots=True)
class Cadence:
    """Due at multiples of the interval's steps, or that many seconds after the last save; later after a failure.

    `given`: the interval that was asked for; None: `auto` chooses.
    """

    configured: Interval | None
    saved_step: int
    saved_at: float
    auto: AutoInterval = field(default_factory=AutoInterval)
    failures: int = 0
    failed_at: float = 0.0

    @property
    def interval(self) -> Interval:
        """The one that holds now."""
        return self.configured if self.configured is not None else Interval(seconds=self.auto.interval_s)

    @property
    def chosen_interval_s(self) -> float | None:
        """The interval that was chosen here; None if it was given."""
        return self.auto.interval_s if self.configured is None else None

    def is_due(self, step: int, now: float) -> bool:
        """Whether a save should be taken at this step boundary."""
        if self.failures:
            doublings = min(self.failures - 1, 10)  # far beyond MAX_PAUSE_S, and 2.0 ** 1024 would overflow
            return now >= self.failed_at + min(FIRST_PAUSE_S * 2.0**doublings, MAX_PAUSE_S)
        interval = self.interval
        if interval.steps is not None:
            return step // interval.steps > self.saved_step // interval.steps
        return interval.seconds is not None and now >= self.saved_at + interval.seconds

    def restart_interval(self, step: int, now: float) -> None:
        """A save of `step` was taken: the next interval counts from here."""
        self.saved_step, self.saved_at = step, now

    def record_success(self) -> None:
        """A save was committed: what failed before no longer counts."""
        self.failures = 0

    def record_failure(self, now: float) -> None:
        """A save failed: the next try waits, each time longer."""
        self.failures, self.failed_at = self.failures + 1, now
