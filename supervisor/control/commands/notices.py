"""What clients see of notices, and drills: notices that somebody gives on purpose."""

import asyncio
import math
from enum import StrEnum
from typing import Any, TypeVar

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    flag_in,
    program_in,
    text_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.notices.active import ActiveNotice
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import outlook
from supervisor.core.program.facts import OnNotice, State
from supervisor.runner.fleet.notice_dispatcher import deadline_wall_at
from supervisor.runner.program.runner import Runner

ALL = "all"  # no program can be called so
MAX_DRILL_S = 7 * 86400.0  # the longest warning any provider gives is a week

Word = TypeVar("Word", bound=StrEnum)


async def notices(context: CommandContext, arguments: Arguments) -> Result:
    """What holds, the gravest first, and how each source does."""
    now = asyncio.get_running_loop().time()
    return {
        "notices": [_shown(each, now) for each in context.notices.by_severity],
        "sources": [
            {"name": each.name, "shortest_s": each.shortest_s, "trouble": each.error}
            for each in context.notices.source_health
        ],
        "shortest_s": context.notices.shortest_s,
    }


def _shown(posted: ActiveNotice, now: float) -> dict[str, Any]:
    notice = posted.notice
    return {
        "source": notice.source,
        "id": notice.id,
        "kind": str(notice.kind),
        "certainty": str(notice.certainty),
        "deadline_s": None if notice.deadline_at is None else round(notice.deadline_at - now, 3),
        "deadline_wall_at": deadline_wall_at(notice, now),
        "is_cancellable": notice.is_cancellable,
        "program": posted.program,
        "text": notice.text,
    }


async def drill(context: CommandContext, arguments: Arguments) -> Result:
    """Gives a program, or with the name `all` every one, a notice; or withdraws those that were given so."""
    name = text_in(arguments, "name")
    program = None if name == ALL else program_in(context, arguments).name
    if flag_in(arguments, "withdraw", False):
        count = context.drills.withdraw(program)
        if not count:
            raise CommandError(Code.NOT_RUNNING, f"there is no drill for {name}")
        return {"name": name, "withdrawn": count}
    kind = _word(arguments, "kind", NoticeKind, NoticeKind.DRILL)
    usual = Certainty.POSSIBLE if kind is NoticeKind.FREEZE else Certainty.CERTAIN
    certainty = _word(arguments, "certainty", Certainty, usual)
    if kind is NoticeKind.FREEZE and certainty is Certainty.CERTAIN:
        raise CommandError(Code.BAD_ARGUMENTS, "a freeze is nothing to stop for; certainty can only be possible")
    given = context.drills.start(program, _seconds(arguments), kind, certainty)
    return {"name": name, "id": given.id, "kind": str(kind), "certainty": str(certainty)}


def _seconds(arguments: Arguments) -> float:
    value = arguments.get("in_s")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_DRILL_S:
        text = f"in_s is {value!r:.40}, not a number of seconds above 0 and up to {MAX_DRILL_S:.0f}"
        raise CommandError(Code.BAD_ARGUMENTS, text)
    return float(value)


def _word(arguments: Arguments, key: str, words: type[Word], default: Word) -> Word:
    value = arguments.get(key, default)
    found = next((each for each in words if each == value), None)
    if found is None:
        text = f"{key} is {value!r:.40}; it can be {', '.join(words)}"
        raise CommandError(Code.BAD_ARGUMENTS, text)
    return found


# --- in `status` ------------------------------------------------------------------------------------------------------


def notice_status(runner: Runner, now: float) -> dict[str, Any] | None:
    """What a notice does with a program, as `status` gives it; None: no notice holds for it. `now`: monotonic."""
    notice = runner.facts.notice
    if notice is None:
        return None
    last_at = outlook.last_flush_at(runner.facts)
    return {
        "source": notice.source,
        "kind": str(notice.kind),
        "certainty": str(notice.certainty),
        "deadline_wall_at": deadline_wall_at(notice, now),
        "last_flush_s": None if last_at is None else round(last_at - now, 3),
        "waits": runner.facts.waits_for_host,
        "doing": next(iter(notice_description(runner, now)), None),
    }


def notice_description(runner: Runner, now: float) -> list[str]:
    """What happens to a program because of a notice, for people; empty if nothing does. `now`: monotonic seconds."""
    facts, notice = runner.facts, runner.facts.notice
    if notice is None or not facts.policy.is_job or runner.state not in (State.RUNNING, State.FLUSHING, State.STARTING):
        return []
    text = f"host {_fate(notice, now)} ({notice.source})"
    return [f"{text}: {_doing(runner, now)}" if runner.state is not State.STARTING else text]


def _fate(notice: Notice, now: float) -> str:
    if notice.kind is NoticeKind.FREEZE:
        return "may stand still for a while"
    goes = "goes away" if notice.certainty is Certainty.CERTAIN else "may go away"
    if notice.deadline_at is None:
        return f"{goes}, nobody says when"
    left_s = notice.deadline_at - now
    return f"{goes} in {math.ceil(left_s)} s" if left_s > 0 else f"{goes} any moment"


def _doing(runner: Runner, now: float) -> str:
    facts, last_at = runner.facts, outlook.last_flush_at(runner.facts)
    if runner.is_stopping:
        committed = runner.flush is not None and runner.flush.committed
        return "all is on the disk, its worker leaves" if committed else "its last flush is under way, then it leaves"
    flushing = "flushes and trains on" if runner.state is State.FLUSHING else "trains on"
    if last_at is not None:
        return f"{flushing}, last flush in {max(0, math.floor(last_at - now))} s"
    if facts.current.last_flush_requested and facts.policy.on_notice is OnNotice.TRAIN:
        return f"{flushing} until it is killed"
    return flushing


def slow_flush_warning(durable_s: float | None, shortest_s: float | None) -> str | None:
    """What to say of a job whose flush can't be done within the shortest warning of this host; None: all is well."""
    if durable_s is None or shortest_s is None or durable_s <= shortest_s:
        return None
    return (
        f"its flush takes {durable_s:.3g} s, this host's shortest notice is {shortest_s:.3g} s: a notice may cost what "
        f"it trained since its last checkpoint; save more often (checkpoint_interval), or to a faster disk"
    )
