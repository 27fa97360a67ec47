"""The commands `notices` and `drill`, and what `status` says of a notice.

A notice says that this host is going away, or may; a drill is a notice that an operator makes, to see what would
happen.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import Annotated

from supervisor.control.base.context import CommandContext, find_program
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.notices.active import ActiveNotice
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import notice_plan
from supervisor.core.program.facts import OVER, UP, OnNotice, State
from supervisor.runner.fleet.notice_dispatcher import deadline_wall_at
from supervisor.runner.program.runner import Runner

ALL = "all"  # no program can have this name
MAX_DRILL_S = 7 * 86400.0  # the longest warning any provider gives is a week


@dataclass(frozen=True, slots=True)
class NoticeAnswer:
    """A notice that is in force. `program`: the only one it is for, None: all."""

    source: str
    id: str
    kind: NoticeKind
    certainty: Certainty
    deadline_s: float | None
    deadline_wall_at: float | None
    is_cancellable: bool
    program: str | None
    text: str


@dataclass(frozen=True, slots=True)
class NoticeSourceAnswer:
    """A source of notices. `shortest_s`: the shortest warning it gives; `trouble`: why it does not answer."""

    name: str
    shortest_s: float | None
    trouble: str | None


@dataclass(frozen=True, slots=True)
class NoticesAnswer:
    """All notices in force, the most severe first, and all sources."""

    notices: tuple[NoticeAnswer, ...]
    sources: tuple[NoticeSourceAnswer, ...]
    shortest_s: float | None


async def notices(context: CommandContext) -> NoticesAnswer:
    """Lists the notices in force, the most severe first, and the state of each source of notices."""
    now = asyncio.get_running_loop().time()
    return NoticesAnswer(
        tuple(_answer(notice, now) for notice in context.notices.by_severity),
        tuple(
            NoticeSourceAnswer(health.name, health.shortest_s, health.error) for health in context.notices.source_health
        ),
        context.notices.shortest_s,
    )


def _answer(active: ActiveNotice, now: float) -> NoticeAnswer:
    notice = active.notice
    return NoticeAnswer(
        source=notice.source,
        id=notice.id,
        kind=notice.kind,
        certainty=notice.certainty,
        deadline_s=None if notice.deadline_at is None else round(notice.deadline_at - now, 3),
        deadline_wall_at=deadline_wall_at(notice, now),
        is_cancellable=notice.is_cancellable,
        program=active.program,
        text=notice.text,
    )


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """A drill to start, or with `withdraw` to end. `name`: of a program, or `all`."""

    name: str
    in_s: Annotated[
        float | None,
        {
            "exclusiveMinimum": 0,
            "maximum": MAX_DRILL_S,
            "description": "Seconds until the host goes away; required unless withdraw is true.",
        },
    ] = None
    kind: NoticeKind = NoticeKind.DRILL
    certainty: Annotated[Certainty | None, {"description": "Left out: certain; for a freeze, possible."}] = None
    withdraw: bool = False


@dataclass(frozen=True, slots=True)
class DrillStarted:
    """The notice that a drill made."""

    name: str
    id: str
    kind: NoticeKind
    certainty: Certainty


@dataclass(frozen=True, slots=True)
class DrillsWithdrawn:
    """How many drills were ended."""

    name: str
    withdrawn: int


async def drill(context: CommandContext, request: DrillRequest) -> DrillStarted | DrillsWithdrawn:
    """Gives a program, or with the name `all` every program, a notice; or withdraws the notices of earlier drills."""
    name = request.name
    program = None if name == ALL else find_program(context, name).name
    if request.withdraw:
        count = context.drills.withdraw(program)
        if not count:
            raise CommandError(Code.NOT_RUNNING, f"no drill is under way for {name}")
        return DrillsWithdrawn(name, count)
    is_freeze = request.kind is NoticeKind.FREEZE
    if is_freeze and request.certainty is Certainty.CERTAIN:
        raise CommandError(Code.BAD_ARGUMENTS, "a freeze can't be certain: jobs do not stop for it; use possible")
    if request.in_s is None:
        raise CommandError(
            Code.BAD_ARGUMENTS, f"in_s is missing; it has to be a number above 0, {MAX_DRILL_S:g} at most"
        )
    if (why := _nothing_to_drill(context, program)) is not None:
        raise CommandError(Code.NOT_RUNNING, f"there is nothing to drill: {why}")
    certainty = request.certainty or (Certainty.POSSIBLE if is_freeze else Certainty.CERTAIN)
    if certainty is Certainty.CERTAIN and (why := await _restart_obstacle(context, program)) is not None:
        raise CommandError(Code.CANT_RESTART, f"{why}; no drill was started, as it ends the worker")
    drill = context.drills.start(program, request.in_s, request.kind, certainty)
    return DrillStarted(name, drill.id, request.kind, certainty)


def _nothing_to_drill(context: CommandContext, program: str | None) -> str | None:
    """Why a notice would reach no process; None if one of the programs (None: of all) runs, or is to run."""
    if program is None:
        is_over = all(runner.state in OVER for runner in context.programs.runners.values())
        return "no program runs" if is_over else None
    state = context.programs.runners[program].state
    return f"{program} does not run (its state is {state})" if state in OVER else None


async def _restart_obstacle(context: CommandContext, program: str | None) -> str | None:
    """Why one of the jobs that a drill stops (None: of all programs) could not be started again; None if all could."""
    for runner in context.programs.runners.values():
        stops = runner.config.job is not None and runner.facts.policy.on_notice is not OnNotice.TRAIN
        if stops and program in (None, runner.name) and (why := await runner.find_restart_obstacle()) is not None:
            return why
    return None


# --- in `status` ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoticeStatus:
    """What a notice means for a program. `last_flush_s`: until the last flush begins; `waits`: for the notice to end
    before it starts again; `doing`: in words."""

    source: str
    kind: NoticeKind
    certainty: Certainty
    deadline_wall_at: float | None
    last_flush_s: float | None
    waits: bool
    doing: str | None


def notice_status(runner: Runner, now: float) -> NoticeStatus | None:
    """What the notice in force means for a program; None if there is no notice for it. `now`: monotonic seconds."""
    notice = runner.facts.notice
    if notice is None:
        return None
    last_at = notice_plan.last_flush_at(runner.facts)
    return NoticeStatus(
        source=notice.source,
        kind=notice.kind,
        certainty=notice.certainty,
        deadline_wall_at=deadline_wall_at(notice, now),
        last_flush_s=None if last_at is None else round(last_at - now, 3),
        waits=runner.facts.waits_for_host,
        doing=next(iter(notice_description(runner, now)), None),
    )


def notice_description(runner: Runner, now: float) -> list[str]:
    """One text on what a program does because of a notice, or none. `now`: monotonic seconds."""
    facts, notice = runner.facts, runner.facts.notice
    if notice is None or not facts.policy.is_job or runner.state not in UP | {State.STARTING}:
        return []
    text = f"host {_expected_end(notice, now)} ({notice.source})"
    return [f"{text}: {_activity(runner, now)}" if runner.state is not State.STARTING else text]


def _expected_end(notice: Notice, now: float) -> str:
    if notice.kind is NoticeKind.FREEZE:
        return "may be frozen for a while"
    goes = "goes away" if notice.certainty is Certainty.CERTAIN else "may go away"
    if notice.deadline_at is None:
        return f"{goes}, time unknown"
    left_s = notice.deadline_at - now
    return f"{goes} in {math.ceil(left_s)} s" if left_s > 0 else f"{goes} any moment"


def _activity(runner: Runner, now: float) -> str:
    facts, last_at = runner.facts, notice_plan.last_flush_at(runner.facts)
    if runner.is_stopping:
        committed = runner.flush is not None and runner.flush.committed
        return "everything is saved, the worker is exiting" if committed else "last flush under way, then it exits"
    flushing = "flushing while training continues" if runner.state is State.FLUSHING else "training continues"
    if last_at is not None:
        where = "" if facts.upload_fits else ", for this disk only: there is no time for its upload"
        return f"{flushing}, last flush in {max(0, math.floor(last_at - now))} s{where}"
    if facts.current.last_flush_requested and facts.policy.on_notice is OnNotice.TRAIN:
        return f"{flushing} until it is killed"
    return flushing


def slow_flush_warning(flush_time_s: float | None, shortest_s: float | None, is_uploaded: bool = False) -> str | None:
    """The warning for a job whose flush takes longer than the shortest warning of this host; None if it is in time.

    `is_uploaded`: the upload is part of it.
    """
    if flush_time_s is None or shortest_s is None or flush_time_s <= shortest_s:
        return None
    if is_uploaded:
        return (
            f"a flush and its upload take {flush_time_s:.3g} s but this host's shortest notice is {shortest_s:.3g} s: "
            f"the last checkpoint may not reach the mirror; save more often (checkpoint_interval) or to a faster store"
        )
    return (
        f"a flush takes {flush_time_s:.3g} s but this host's shortest notice is {shortest_s:.3g} s: a notice may cost "
        f"the steps since the last checkpoint; save more often (checkpoint_interval) or to a faster disk"
    )
