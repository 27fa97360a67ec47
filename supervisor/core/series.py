"""The values of a job's metrics over its steps, through all attempts, in bounded memory.

A series has at most MAX_BUCKETS buckets. Each sums up the reports of neighbouring steps of one attempt: their mean,
least and greatest value, so that a spike stays visible. When the buckets are used up, neighbours are joined two by
two, and from then on each bucket takes twice as many reports. So the resolution is even over the whole training, and
steps that were done again after a death stay, under the number of their attempt. Only where that frees too little,
after some hundred attempts, are the oldest buckets dropped.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

MAX_BUCKETS = 512  # about as many as a plot has pixels to show
LEFT_BY_THINNING = MAX_BUCKETS * 3 // 4  # at most, so that later steps keep a useful resolution
MAX_METRICS = 32
MAX_NAME = 100  # characters
LOSS, SPEED = "loss", "steps_per_second"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Reports of one attempt that are summed up: from `first_step` to `step`, the last at `wall_at` (Unix time)."""

    first_step: int
    step: int
    wall_at: float
    attempt: int
    count: int
    mean: float
    least: float
    greatest: float

    def joined(self, later: "Bucket") -> "Bucket":
        """Both in one."""
        count = self.count + later.count
        return replace(
            later,
            first_step=min(self.first_step, later.first_step),
            step=max(self.step, later.step),  # a worker may report an earlier step
            count=count,
            mean=self.mean * (self.count / count) + later.mean * (later.count / count),
            least=min(self.least, later.least),
            greatest=max(self.greatest, later.greatest),
        )


class Series:
    """One metric. `buckets`: in the order in which they were reported."""

    def __init__(self, buckets: Iterable[Bucket] = (), per_bucket: int = 1) -> None:
        self.buckets = list(buckets)
        self.per_bucket = per_bucket
        """How many reports a bucket takes."""

    def add(self, step: int, wall_at: float, attempt: int, value: float) -> None:
        """The metric had this value at `step`. Values that are not finite are left out."""
        if not math.isfinite(value):
            return
        new = Bucket(step, step, wall_at, attempt, 1, value, value, value)
        last = self.buckets[-1] if self.buckets else None
        if last is not None and last.attempt == attempt and last.count < self.per_bucket and step > last.step:
            self.buckets[-1] = last.joined(new)
            return
        self.buckets.append(new)
        if len(self.buckets) > MAX_BUCKETS:
            self._thin()

    def _thin(self) -> None:
        """Halves the number of buckets, as far as the attempts leave it, or else drops the oldest ones."""
        thinned = list[Bucket]()
        for _, group in groupby(self.buckets, key=lambda bucket: bucket.attempt):
            own = list(group)
            thinned += [own[at].joined(own[at + 1]) for at in range(0, len(own) - 1, 2)]
            thinned += own[len(own) - len(own) % 2 :]
        if len(thinned) <= LEFT_BY_THINNING:
            self.buckets = thinned
            self.per_bucket *= 2
        else:
            del self.buckets[:-LEFT_BY_THINNING]


class MetricSeries:
    """All metrics of one job, at most MAX_METRICS: the first that it reports, and its speed."""

    def __init__(self, known: Mapping[str, Series] | None = None) -> None:
        self._series = dict(known or {})

    @property
    def by_name(self) -> dict[str, Series]:
        """The loss first, the speed last."""
        order = {LOSS: -1, SPEED: MAX_METRICS + 1}
        return dict(sorted(self._series.items(), key=lambda item: order.get(item[0], 0)))

    def add(
        self, step: int, wall_at: float, attempt: int, metrics: Mapping[str, float], step_s: float | None = None
    ) -> None:
        """The worker reported `metrics` at `step`; its last steps took `step_s` each."""
        for name, value in metrics.items():
            if len(name) <= MAX_NAME and name != SPEED and (name in self._series or self._has_room()):
                self._series.setdefault(name, Series()).add(step, wall_at, attempt, value)
        if step_s:
            self._series.setdefault(SPEED, Series()).add(step, wall_at, attempt, 1 / step_s)

    def _has_room(self) -> bool:
        """Whether one more can be kept; there is always room for the speed."""
        return len(self._series.keys() - {SPEED}) < MAX_METRICS - 1
