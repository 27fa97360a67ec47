"""The command `goodput`, and what `history` tells of the time that attempts took."""

import asyncio
from collections import Counter
from typing import Any

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    program_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.failures.restart import Cause
from supervisor.core.program.accounting import Spent, goodput
from supervisor.host.ledger.ledger import AttemptRecord, Ledger, LedgerError

UNINTERRUPTED = frozenset({Cause.DONE, Cause.STOPPED})
"""Ends that somebody wanted."""
ALL = 1_000_000  # more attempts than the ledger keeps of a program


async def report(context: CommandContext, arguments: Arguments) -> Result:
    """Where a job's time went, over all attempts that the ledger keeps, and what interrupted it."""
    runner = program_in(context, arguments)
    if runner.config.job is None:
        raise CommandError(Code.NOT_A_JOB, f"{runner.name} has no checkpoint_dir, so nothing is known of its steps")
    going_on = runner.executor.goodput.save()
    try:
        spent_s, records = await asyncio.to_thread(_read, context.ledger, runner.name)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    sums = {spent: sum(each.get(spent, 0.0) for each in spent_s.values()) for spent in Spent}
    if going_on is not None:
        sums[going_on[0]] += going_on[1]
    causes = Counter(each.cause for each in records if each.cause is not None and each.cause not in UNINTERRUPTED)
    return {
        "name": runner.name,
        "since_wall_at": records[0].started_at if records else None,
        "attempts": len(records),
        "spent_s": {str(spent): round(span_s, 3) for spent, span_s in sums.items()},
        "wanted_s": round(sum(span_s for spent, span_s in sums.items() if spent is not Spent.STOPPED), 3),
        "goodput": goodput(sums),
        "lost_steps": sum(each.lost_steps or 0 for each in records),
        "causes": dict(causes.most_common()),
    }


def _read(ledger: Ledger, name: str) -> tuple[dict[int, dict[Spent, float]], list[AttemptRecord]]:
    return ledger.accounts.time_spent(name), ledger.history(name, ALL)


def of_attempts(ledger: Ledger, name: str) -> dict[int, dict[str, Any]]:
    """For each attempt, seconds by what they went into; empty for a plain program. Raises LedgerError."""
    spent_s = ledger.accounts.time_spent(name)
    return {attempt: {str(spent): span_s for spent, span_s in each.items()} for attempt, each in spent_s.items()}
