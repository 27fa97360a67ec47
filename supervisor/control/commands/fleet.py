"""Commands that take programs, or groups of them, into use and out of it."""

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    text_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import groups


async def add(context: CommandContext, arguments: Arguments) -> Result:
    """Takes a program, or a group, of the configuration last read into use."""
    name, programs = text_in(arguments, "name"), context.programs
    meant = [name] if name in programs.configured else groups.configured(programs.configured, groups.group_of(name))
    if not meant and not (name in programs.runners or groups.members(programs, groups.group_of(name))):
        raise CommandError(Code.BAD_NAME, name)
    missing = [each for each in meant if each not in programs.runners]
    if not missing:
        raise CommandError(Code.ALREADY_ADDED, name)
    await programs.update(missing)
    return {"name": name}


async def remove(context: CommandContext, arguments: Arguments) -> Result:
    """Takes a program, or a group, of which nothing runs out of use, until it is added again."""
    name, programs = text_in(arguments, "name"), context.programs
    meant = (
        [name] if name in programs.runners else [each.name for each in groups.members(programs, groups.group_of(name))]
    )
    if not meant:
        raise CommandError(Code.BAD_NAME, name)
    if (running := await programs.remove(meant)) is not None:
        raise CommandError(Code.STILL_RUNNING, running)
    return {"name": name}
