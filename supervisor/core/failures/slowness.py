"""Whether a job trains slower than it used to, and why, as far as it or its host show a reason.

Step times are noisy: a garbage collection, a burst of a neighbour, an evaluation that a script does not report. So they
are summed up in windows of ten seconds or more, and only windows are compared, with those of the last hour of ordinary
speed. A job is slower if for five minutes nine windows in ten were 20 % above the usual median, and also above
what one window in ten took before. It is as fast as usual again once the median of the last two minutes is within 10 %.
While it is slower, its windows don't change what is usual; after six hours they do, as it has probably got other work.
A reason is named only if it was not there before: whatever has always been so explains nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW_S = 10.0
SLOWER = 1.2
AS_USUAL = 1.1
JUDGED_OVER_S = 300.0
OVER_AFTER_S = 120.0
MIN_WINDOWS = 5  # of a job with steps of a minute, in five minutes
SLOW_SHARE = 0.9  # of the windows: a pause between two slow phases does not hide them
HISTORY_WINDOWS = 360  # an hour of short steps
MIN_HISTORY_S = 600.0
SCATTER = 0.9  # of the usual windows are faster than what counts as slower
ACCEPTED_AFTER_S = 6 * 3600.0
WARM_UP_S = 60.0  # of an attempt: caches and clocks are cold


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that were done one after another until `at` (monotonic seconds).

    `length_s`: how long they took in all; `data_s`: of that, waiting for input; `saving_s`: while a save was written.
    """

    at: float
    steps: int
    length_s: float
    data_s: float = 0.0
    saving_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.length_s / self.steps


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Steps take `step_s` seconds, and usually `usual_step_s`. `why`: what is different, in words; "" if nothing is."""

    step_s: float
    usual_step_s: float
    why: str = ""

    @property
    def percent(self) -> int:
        """By how much a step takes longer."""
        return round(100 * (self.step_s / self.usual_step_s - 1))

    def __str__(self) -> str:
        times = f"a step takes {_span(self.step_s)}, usually {_span(self.usual_step_s)}"
        return f"{self.percent} % slower than usual ({times}): {self.why or 'no reason is seen on this host'}"


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Counters of the host since its boot; None: not known. Shares and rates are differences of two of them.

    `at`: monotonic seconds. `cpu_s`, `steal_s`: of all CPUs together, in all and taken by other virtual machines.
    `cpu_stall_s`, `memory_stall_s`, `io_stall_s`: while some process waited for that (/proc/pressure). `swapped_pages`:
    in and out. `throttled`: how often a CPU was slowed down because it was hot. `megahertz`: mean of the CPUs now.
    """

    at: float
    cpu_s: float | None = None
    steal_s: float | None = None
    cpu_stall_s: float | None = None
    memory_stall_s: float | None = None
    io_stall_s: float | None = None
    swapped_pages: float | None = None
    throttled: float | None = None
    megahertz: float | None = None


class SlownessDetector:
    """Of one job: gets its windows, and says when it is slower."""

    def __init__(self) -> None:
        self._usual: deque[Window] = deque(maxlen=HISTORY_WINDOWS)
        self._recent: deque[Window] = deque()
        self._begins_at: float | None = None  # of the attempt's windows, behind the warm-up
        self._slower_since: float | None = None
        self._usual_step_s: float | None = None

    @property
    def usual_step_s(self) -> float | None:
        """What a step usually takes; None until enough is known."""
        return self._usual_step_s

    @property
    def slower_since(self) -> float | None:
        """When it was found to be slower (monotonic seconds); None if it is not."""
        return self._slower_since

    def begin_attempt(self, is_alike: bool = True) -> None:
        """Another process trains. `is_alike`: on as many devices, with batches divided as before."""
        self._recent.clear()
        self._begins_at = self._slower_since = None
        if not is_alike:
            self._usual.clear()
            self._usual_step_s = None

    def add(self, window: Window) -> bool:
        """Takes the next window. Returns whether the job became slower, or as fast as usual again."""
        if window.steps <= 0 or not window.length_s > 0:
            return False
        if self._begins_at is None:
            self._begins_at = window.at + WARM_UP_S
        if window.at < self._begins_at:
            return False
        self._recent.append(window)
        was_slower = self._slower_since is not None
        if self._slower_since is None:
            self._settle_past(window.at)
            if self._is_slower(window.at):
                self._slower_since = window.at
        elif self._is_over(window.at) or window.at - self._slower_since > ACCEPTED_AFTER_S:
            if window.at - self._slower_since > ACCEPTED_AFTER_S:
                self._usual.clear()
                self._usual_step_s = None
            self._slower_since = None
            self._recent = deque(recent for recent in self._recent if window.at - recent.at < OVER_AFTER_S)
        else:
            self._drop_recent(window.at)
        return (self._slower_since is not None) is not was_slower

    def slowdown(self, why: str = "") -> Slowdown | None:
        """How much slower it is; None if it is not."""
        if self._slower_since is None or self._usual_step_s is None or not self._recent:
            return None
        return Slowdown(_median_step_s(self._recent), self._usual_step_s, why)

    def recent_and_usual(self) -> tuple[Sequence[Window], Sequence[Window]]:
        """The windows that are compared."""
        return tuple(self._recent), tuple(self._usual)

    def _settle_past(self, now: float) -> None:
        """What is older than five minutes, and was not slower, is what is usual."""
        changed = False
        while self._recent and now - self._recent[0].at >= JUDGED_OVER_S:
            self._usual.append(self._recent.popleft())
            changed = True
        if changed and sum(window.length_s for window in self._usual) >= MIN_HISTORY_S:
            self._usual_step_s = _median_step_s(self._usual)

    def _drop_recent(self, now: float) -> None:
        while len(self._recent) > MIN_WINDOWS and now - self._recent[0].at >= JUDGED_OVER_S:
            self._recent.popleft()

    def _is_slower(self, now: float) -> bool:
        usual_s, recent = self._usual_step_s, self._recent
        if usual_s is None or len(recent) < MIN_WINDOWS:
            return False
        if now - recent[0].at + recent[0].length_s < JUDGED_OVER_S - WINDOW_S:
            return False
        if _median_step_s(recent) <= SLOWER * usual_s:
            return False
        scatter_s = sorted(window.step_s for window in self._usual)[int(SCATTER * len(self._usual))]
        bound_s = max(SLOWER * usual_s, AS_USUAL * scatter_s)
        return sum(window.step_s > bound_s for window in recent) >= SLOW_SHARE * len(recent)

    def _is_over(self, now: float) -> bool:
        last = [window for window in self._recent if now - window.at < OVER_AFTER_S]
        is_enough = sum(window.length_s for window in last) >= OVER_AFTER_S / 2
        return is_enough and _median_step_s(last) < AS_USUAL * (self._usual_step_s or 0.0)


def _median_step_s(windows: Iterable[Window]) -> float:
    steps_s = sorted(window.step_s for window in windows)
    return steps_s[len(steps_s) // 2]


MORE = 2.0  # times as much as before, to be a reason
DATA_SHARE, SAVE_SHARE, STEAL_SHARE, STALL_SHARE, CPU_STALL_SHARE = 0.1, 0.2, 0.05, 0.1, 0.25
SWAPPED_PAGES_A_SECOND = 100.0
THROTTLED_A_SECOND = 1 / 60
SLOWER_CLOCK = 0.85
NAMED_REASONS = 3


def explain_slowness(
    recent: Sequence[Window], usual: Sequence[Window], loads: Sequence[HostLoad], gpu: str | None = None
) -> str:
    """What is different from before, in words; "" if nothing is. `loads`: of the host, in order; `gpu`: what is known
    of throttled GPUs.
    """
    reasons = [] if gpu is None else [gpu]
    data, data_before = _share(recent, "data_s"), _share(usual, "data_s")
    if data - data_before >= DATA_SHARE:
        reasons.append(f"it waits for data {data:.0%} of the time, usually {data_before:.0%}")
    saves, saves_before = _share(recent, "saving_s"), _share(usual, "saving_s")
    if saves - saves_before >= SAVE_SHARE:
        reasons.append(f"a save is written beside it {saves:.0%} of the time, usually {saves_before:.0%}")
    if recent:
        reasons += _of_host(loads, recent[0].at)
    return "; ".join(reasons[:NAMED_REASONS])


def _share(windows: Sequence[Window], name: str) -> float:
    total_s = sum(window.length_s for window in windows)
    return min(1.0, sum(getattr(window, name) for window in windows) / total_s) if total_s > 0 else 0.0


def _of_host(loads: Sequence[HostLoad], since: float) -> list[str]:
    before, now = [load for load in loads if load.at < since], [load for load in loads if load.at >= since]
    if len(now) < 2:
        return []
    reasons = []
    texts = (
        ("throttled", "at", THROTTLED_A_SECOND, "CPUs are slowed down because they are hot"),
        ("steal_s", "cpu_s", STEAL_SHARE, "other virtual machines take {:.0%} of the CPU time (steal)"),
        ("swapped_pages", "at", SWAPPED_PAGES_A_SECOND, "the host swaps {:.0f} pages a second"),
        ("memory_stall_s", "at", STALL_SHARE, "processes wait for memory {:.0%} of the time"),
        ("io_stall_s", "at", STALL_SHARE, "processes wait for disks {:.0%} of the time"),
        ("cpu_stall_s", "at", CPU_STALL_SHARE, "processes wait for a CPU {:.0%} of the time"),
    )
    for name, over, least, text in texts:
        rate, rate_before = _rate(now, name, over), _rate(before, name, over) or 0.0
        if rate is not None and rate >= least and rate >= MORE * rate_before:
            reasons.append(text.format(rate))
    clock, clock_before = _mean_clock(now), _mean_clock(before)
    if clock is not None and clock_before is not None and clock < SLOWER_CLOCK * clock_before:
        reasons.append(f"the CPUs run at {clock:.0f} MHz, before at {clock_before:.0f}")
    return reasons


def _rate(loads: Sequence[HostLoad], name: str, over: str) -> float | None:
    if len(loads) < 2:
        return None
    first, last = getattr(loads[0], name), getattr(loads[-1], name)
    length, end = getattr(loads[0], over), getattr(loads[-1], over)
    if None in (first, last, length, end) or end <= length:
        return None
    return max(0.0, float(last - first) / float(end - length))


def _mean_clock(loads: Sequence[HostLoad]) -> float | None:
    known = [load.megahertz for load in loads if load.megahertz is not None]
    return sum(known) / len(known) if known else None


def _span(length_s: float) -> str:
    return f"{length_s * 1000:.3g} ms" if length_s < 1 else f"{length_s:.3g} s"
