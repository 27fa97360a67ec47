"""The command `story`: what happened to a program last."""

from dataclasses import asdict

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    program_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.runner.records.timeline import KEPT


async def story(context: CommandContext, arguments: Arguments) -> Result:
    """The last events that changed a program's state or had an effect, oldest first, since the daemon took it up."""
    runner, limit = program_in(context, arguments), arguments.get("limit", 20)
    if not isinstance(limit, int) or not 1 <= limit <= KEPT:
        raise CommandError(Code.BAD_ARGUMENTS, f"limit is {limit!r:.40}, not a whole number from 1 to {KEPT}")
    return {"scenes": [asdict(each) for each in runner.timeline.last_entries(limit)]}
