"""The command `series`: a job's metrics over its steps, as the daemon recorded them."""

from dataclasses import dataclass

from supervisor.control.base.context import CommandContext, find_job
from supervisor.core.series import Bucket


@dataclass(frozen=True, slots=True)
class SeriesRequest:
    """`metric`: the one whose buckets are wanted."""

    name: str
    metric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricAnswer:
    """One metric: how many reports there were, from which step to which, the first and the last value (or the mean of
    some that are summed up), and the least and the greatest. `buckets`: reports that are summed up, oldest first, at
    most 512; none if another metric was asked for, or none."""

    name: str
    reports: int
    first_step: int
    step: int
    first: float
    last: float
    least: float
    greatest: float
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """A job's metrics over its steps, the loss first and the speed (`steps_per_second`) last.

    Steps that were done again after a death are in it twice, under the numbers of their attempts.
    """

    name: str
    metrics: tuple[MetricAnswer, ...]


async def series(context: CommandContext, request: SeriesRequest) -> SeriesAnswer:
    """Sums up a job's metrics over its steps, through all attempts, and gives one of them in full."""
    runner, _ = find_job(context, request.name)
    recorder = runner.records.series
    by_name = recorder.series.by_name if recorder is not None else {}
    metrics = [
        _answer(name, metric.buckets, name == request.metric) for name, metric in by_name.items() if metric.buckets
    ]
    return SeriesAnswer(runner.name, tuple(metrics))


def _answer(name: str, buckets: list[Bucket], is_wanted: bool) -> MetricAnswer:
    return MetricAnswer(
        name=name,
        reports=sum(bucket.count for bucket in buckets),
        first_step=min(bucket.first_step for bucket in buckets),
        step=max(bucket.step for bucket in buckets),
        first=buckets[0].mean,
        last=buckets[-1].mean,
        least=min(bucket.least for bucket in buckets),
        greatest=max(bucket.greatest for bucket in buckets),
        buckets=tuple(buckets) if is_wanted else (),
    )
