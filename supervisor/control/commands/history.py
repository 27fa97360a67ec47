"""The commands about what happened to a program: `history`, `timeline` and `goodput`."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from supervisor.control.base.context import CommandContext, ProgramName, find_job, find_program
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.base.json_types import fields_of
from supervisor.core.failures.restart import Cause
from supervisor.core.goodput import TimeSpent
from supervisor.core.goodput import goodput as goodput_of
from supervisor.host.ledger.attempts import AttemptRecord
from supervisor.host.ledger.ledger import Ledger, LedgerError
from supervisor.runner.records.timeline import KEPT, TimelineEntry

UNINTERRUPTED = frozenset(cause for cause in Cause if cause.traits.is_meant)
ALL = 1_000_000  # more attempts than the ledger keeps of a program

SecondsByCategory = Annotated[Mapping[str, float], {"description": "Seconds by category."}]


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """`limit`: how many of the last attempts."""

    name: str
    limit: Annotated[int, {"minimum": 1, "maximum": 10_000}] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAnswer(AttemptRecord):
    """One attempt, and where its time went (empty for a plain program)."""

    spent_s: SecondsByCategory


@dataclass(frozen=True, slots=True)
class History:
    """A program's attempts, oldest first."""

    attempts: tuple[AttemptAnswer, ...]


async def history(context: CommandContext, request: HistoryRequest) -> History:
    """Gives a program's last attempts, oldest first."""
    runner = find_program(context, request.name)
    runner.records.goodput.save()
    try:
        records = await asyncio.to_thread(context.ledger.attempts.history, runner.name, request.limit)
        spent_s = await asyncio.to_thread(context.ledger.accounts.time_spent, runner.name)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    return History(
        tuple(
            AttemptAnswer(**fields_of(record), spent_s=_by_name(spent_s.get(record.attempt, {}))) for record in records
        )
    )


def _by_name(spent_s: Mapping[TimeSpent, float]) -> dict[str, float]:
    return {str(category): seconds for category, seconds in spent_s.items()}


@dataclass(frozen=True, slots=True)
class TimelineRequest:
    """`limit`: how many of the last events."""

    name: str
    limit: Annotated[int, {"minimum": 1, "maximum": KEPT}] = 20


@dataclass(frozen=True, slots=True)
class TimelineAnswer:
    """Events of a program and their effects, oldest first."""

    scenes: tuple[TimelineEntry, ...]


async def timeline(context: CommandContext, request: TimelineRequest) -> TimelineAnswer:
    """Gives a program's last events with their effects, oldest first, since this daemon began to supervise it."""
    return TimelineAnswer(tuple(find_program(context, request.name).records.timeline.last_entries(request.limit)))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where a job's time went. `goodput`: the share of `wanted_s` that went into steps which were kept.

    `causes`: how often each cause interrupted training.
    """

    name: str
    since_wall_at: float | None
    attempts: int
    spent_s: SecondsByCategory
    wanted_s: float
    goodput: float | None
    lost_steps: int
    causes: Mapping[str, int]


async def goodput(context: CommandContext, request: ProgramName) -> Goodput:
    """Gives where a job's time went, over all attempts in the ledger, and what interrupted it."""
    runner, _ = find_job(context, request.name)
    current = runner.records.goodput.save()
    try:
        spent_s, records, since_wall_at = await asyncio.to_thread(_read, context.ledger, runner.name)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    sums = {spent: sum(times.get(spent, 0.0) for times in spent_s.values()) for spent in TimeSpent}
    if current is not None:
        sums[current[0]] += current[1]
    causes = Counter(
        record.cause for record in records if record.cause is not None and record.cause not in UNINTERRUPTED
    )
    return Goodput(
        name=runner.name,
        since_wall_at=since_wall_at,
        attempts=len(records),
        spent_s={category: round(seconds, 3) for category, seconds in _by_name(sums).items()},
        wanted_s=round(sum(seconds for spent, seconds in sums.items() if spent is not TimeSpent.STOPPED), 3),
        goodput=goodput_of(sums),
        lost_steps=sum(record.lost_steps or 0 for record in records),
        causes=dict(causes.most_common()),
    )


def _read(ledger: Ledger, name: str) -> tuple[dict[int, dict[TimeSpent, float]], list[AttemptRecord], float | None]:
    """Also when the account begins: the time before the first attempt, of a job that waited for its start, is in it."""
    spent_s, records = ledger.accounts.time_spent(name), ledger.attempts.history(name, ALL)
    if not records:
        return spent_s, records, None
    began_at = ledger.accounts.began_at(name, before=records[0].attempt)
    return spent_s, records, records[0].started_wall_at if began_at is None else began_at
