"""The values of all metrics at one moment, copied in the event loop so that another thread can make text of them."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.control.metrics.measured_program import MeasuredProgram
from supervisor.control.metrics.table import JOBS, LABELLED, PROGRAMS, Value
from supervisor.core.gpus.records import WEEKS_S
from supervisor.core.notices.notice import Certainty
from supervisor.core.program.facts import State
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher, deadline_wall_at
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import PoolCounts


@dataclass(frozen=True, slots=True)
class ProgramSample:
    """A program at one moment. `values`: by metric; None if it is not known, and missing if it can't be computed."""

    name: str
    state: State
    values: Mapping[str, Value | dict[str, float]]


@dataclass(frozen=True, slots=True)
class NoticesSample:
    """Notices that this host is going away. `holding`: their number by certainty; `sources`: whether each works.

    `deadline_wall_at`: the earliest moment at which the host certainly may be gone; `shortest_s`: the shortest warning.
    """

    holding: dict[str, int]
    deadline_wall_at: float | None
    sources: dict[str, bool]
    shortest_s: float | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU. `faults`: by kind, in the last four weeks."""

    uuid: str
    is_left_out: bool
    in_error: bool
    faults: dict[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one moment. `not_shown`: programs of which something can't be shown, and is left out."""

    programs: tuple[ProgramSample, ...]
    notices: NoticesSample
    is_leaving: bool
    ledger_in_trouble: bool
    logs_in_trouble: int
    pools: dict[str, PoolCounts] = field(default_factory=dict)
    not_shown: frozenset[str] = frozenset()
    gpus: tuple[GpuSample, ...] = ()
    gpus_silent: bool | None = None


def take_sample(context: CommandContext) -> Sample:
    """All values now. For the event loop's thread; takes some microseconds for each program."""
    runners, expected_s = context.programs.runners, context.expected_times.flush_times_s()
    programs, broken = list[ProgramSample](), set[str]()
    for name in sorted(runners):
        measured = MeasuredProgram(runners[name], expected_s.get(name), context.proofs)
        values = dict[str, Value | dict[str, float]]()
        for metric in (*PROGRAMS, *LABELLED, *(JOBS if runners[name].config.job is not None else ())):
            try:
                values[metric.name] = _plain(metric.value(measured))
            except Exception as error:  # noqa: BLE001 - it must not hide the others
                not_shown(name, error)
                broken.add(name)
        programs.append(ProgramSample(name, runners[name].state, values))
    return Sample(
        tuple(programs),
        _notices(context.notices, time.monotonic()),
        context.programs.closing,
        context.ledger.last_error is not None,
        len(context.logs.failures),
        context.listening.pool_counts(),
        frozenset(broken),
        _gpus(context.gpus),
        context.gpus.hangs is not None if context.gpus.is_started else None,
    )


def _gpus(gpus: GpuGuard) -> tuple[GpuSample, ...]:
    """The GPUs that are watched; none on a host without any, and before the first job."""
    guard = gpus.guard
    in_error = {gpu.uuid for gpu in guard.gpus() if gpu.trouble is not None}
    return tuple(
        GpuSample(
            record.uuid or record.address,
            record.left_out is not None,
            record.uuid in in_error or record.left_out is not None,
            dict(Counter(past.fault for past in record.faults if time.time() - past.wall_at < WEEKS_S)),
        )
        for record in guard.records.gpus.values()
    )


def _notices(dispatcher: NoticeDispatcher, now: float) -> NoticesSample:
    notices = [active_notice.notice for active_notice in dispatcher.by_severity]
    certain = [notice for notice in notices if notice.certainty is Certainty.CERTAIN and notice.deadline_at is not None]
    return NoticesSample(
        holding={str(certainty): sum(notice.certainty is certainty for notice in notices) for certainty in Certainty},
        deadline_wall_at=min(
            (at for at in (deadline_wall_at(notice, now) for notice in certain) if at is not None), default=None
        ),
        sources={health.name: health.error is None for health in dispatcher.source_health},
        shortest_s=dispatcher.shortest_s,
    )


def _plain(value: Value | dict[str, float]) -> Value | dict[str, float]:
    """The value as it is now. Raises TypeError or ValueError for what is no number."""
    if value is None or isinstance(value, tuple):
        return value
    if isinstance(value, dict):
        return {str(word): float(number) for word, number in value.items()}
    return float(value)
