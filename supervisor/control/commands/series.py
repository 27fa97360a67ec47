"""The command `series`: a job's metrics over its steps, as the daemon recorded them."""

from dataclasses import dataclass

from supervisor.control.base.context import CommandContext, ProgramName, find_job
from supervisor.core.series import Bucket


@dataclass(frozen=True, slots=True)
class MetricAnswer:
    """One metric, oldest report first. `buckets`: reports that are summed up, at most 512."""

    name: str
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class SeriesAnswer:
    """A job's metrics over its steps, the loss first and the speed (`steps_per_second`) last.

    Steps that were done again after a death are in it twice, under the numbers of their attempts.
    """

    name: str
    metrics: tuple[MetricAnswer, ...]


async def series(context: CommandContext, request: ProgramName) -> SeriesAnswer:
    """Gives a job's metrics over its steps, through all attempts."""
    runner, _ = find_job(context, request.name)
    recorder = runner.executor.series
    found = recorder.series.by_name if recorder is not None else {}
    return SeriesAnswer(runner.name, tuple(MetricAnswer(name, tuple(each.buckets)) for name, each in found.items()))
