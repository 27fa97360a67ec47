"""The commands about which programs the daemon supervises: `avail`, `reread`, `update`, `add` and `remove`."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from supervisor.config import ConfigError
from supervisor.config.broken_sections import BrokenSection
from supervisor.control.base.context import CommandContext, ProgramName, require_recorded
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import groups
from supervisor.core.program.facts import ALIVE
from supervisor.host.ledger.ledger import LedgerError
from supervisor.runner.fleet.configuration import Changes
from supervisor.runner.fleet.replacement import UpdateAction
from supervisor.runner.fleet.updating import StepsInMemory
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ConfiguredProgram:
    """A program of the configuration last read. `in_use`: whether the daemon supervises it."""

    name: str
    group: str
    in_use: bool
    autostart: bool
    group_priority: int
    priority: int


@dataclass(frozen=True, slots=True)
class AvailablePrograms:
    """Every configured program."""

    programs: tuple[ConfiguredProgram, ...]


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """`names`: of programs and groups; None: all of them. `discard`: also jobs that would lose steps are stopped, as
    they can't save, or as their new checkpoint_dir lacks their newest checkpoint; otherwise they are left as they are.
    """

    names: tuple[str, ...] | None = None
    discard: bool = False


@dataclass(frozen=True, slots=True)
class UpdateAnswer:
    """What `update` did, in order, and the sections that it left out, as they can't be loaded.

    `remarks`: what is to be said of the file, and was not said before.
    """

    actions: tuple[UpdateAction, ...]
    broken: tuple[BrokenSection, ...]
    remarks: tuple[str, ...]


async def avail(context: CommandContext) -> AvailablePrograms:
    """Lists every configured program, in use or not."""
    in_use, programs = context.programs.runners, context.programs.configuration.programs.values()
    return AvailablePrograms(
        tuple(
            ConfiguredProgram(
                program.name,
                program.group,
                program.name in in_use,
                program.autostart,
                program.group_priority,
                program.priority,
            )
            for program in sorted(programs, key=lambda config: (config.process, config.group))  # Supervisor's order
        )
    )


async def reread(context: CommandContext) -> Changes:
    """Reads the configuration and lists what `update` would change, and the sections that can't be loaded."""
    return await reread_with(context, is_whole=False)


async def reread_with(context: CommandContext, *, is_whole: bool) -> Changes:
    """`reread`; `is_whole`: one section that can't be loaded is an error, as in Supervisor. Raises CommandError."""
    try:
        return await context.programs.configuration.reread(is_whole=is_whole)
    except ConfigError as error:
        raise CommandError(Code.CANT_REREAD, str(error)) from error


async def update(context: CommandContext, request: UpdateRequest) -> UpdateAnswer:
    """Reads the configuration and applies it; programs whose section did not change keep running."""
    read, named = await reread(context), None
    broken = read.broken
    if request.names is not None:
        broken = tuple(section for section in broken if _concerns(section, request.names))
        new = {_name_in(section) for section in broken if not section.kept}
        named = _programs_of(context, tuple(name for name in request.names if name not in new))
    try:
        actions = await context.programs.updating.update(named, discard=request.discard)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    if actions:
        done = f"{', '.join(sorted({action.name for action in actions})):.500} updated"
        await require_recorded(
            context, context.ledger.wanted.until_recorded(), done, "may leave out what was added again"
        )
    return UpdateAnswer(tuple(actions), broken, read.remarks)


def _concerns(broken: BrokenSection, names: tuple[str, ...]) -> bool:
    """Whether one of these programs or groups is of the section."""
    return not {_name_in(broken), *broken.kept}.isdisjoint(map(groups.group_of, names))


def _name_in(broken: BrokenSection) -> str:
    return broken.section.partition(":")[2].strip()


def _programs_of(context: CommandContext, names: tuple[str, ...]) -> list[str]:
    """The programs, in use or configured, that names of programs and of groups mean. Raises CommandError."""
    programs = context.programs
    known = {**{name: runner.config for name, runner in programs.runners.items()}, **programs.configuration.programs}
    by_name = {name: [name] if name in known else groups.configured(known, groups.group_of(name)) for name in names}
    unknown = sorted(name for name, meant in by_name.items() if not meant)
    if unknown:
        raise CommandError(Code.BAD_NAME, ", ".join(unknown))
    return [program for meant in by_name.values() for program in meant]


async def add(context: CommandContext, request: ProgramName) -> ProgramName:
    """Begins to supervise a program, or a group, of the configuration last read."""
    name, programs = request.name, context.programs
    meant = (
        [name]
        if name in programs.configuration.programs
        else groups.configured(programs.configuration.programs, groups.group_of(name))
    )
    if not meant and not (name in programs.runners or groups.members(programs, groups.group_of(name))):
        raise CommandError(Code.BAD_NAME, name)
    missing = [program for program in meant if program not in programs.runners]
    if not missing:
        raise CommandError(Code.ALREADY_ADDED, name)
    actions = await programs.updating.update(missing)
    refused = [action.text or action.action for action in actions if action.action == "refused"]
    if refused:
        raise CommandError(Code.FAILED, "; ".join(refused))
    await require_recorded(context, context.ledger.wanted.until_recorded(), f"{name} was added", "may leave it out")
    return ProgramName(name)


@dataclass(frozen=True, slots=True)
class UnsavedJob:
    """A job whose last steps are not saved, and what is known of them."""

    name: str
    text: str
    unsaved_steps: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A program or group that was removed. `unsaved`: the jobs in it whose last steps are in no checkpoint."""

    name: str
    unsaved: tuple[UnsavedJob, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """`name`: of a program or group. `discard`: also one whose dead worker left steps in memory that no disk takes;
    otherwise it stays (NOT_SAVED).
    """

    name: str
    discard: bool = False


async def remove(context: CommandContext, request: RemoveRequest) -> Removed:
    """Ceases to supervise a program, or a group, of which nothing runs, until it is added again."""
    name, programs = request.name, context.programs
    members = groups.members(programs, groups.group_of(name))
    meant = [name] if name in programs.runners else [member.name for member in members]
    if not meant:
        raise CommandError(Code.BAD_NAME, name)
    runners = [programs.runners[program] for program in meant]
    try:
        running = await programs.updating.remove(meant, discard=request.discard)
    except StepsInMemory as error:
        raise CommandError(Code.NOT_SAVED, str(error)) from error
    if running is not None:
        raise CommandError(Code.STILL_RUNNING, running)
    await require_recorded(
        context, context.ledger.wanted.until_recorded(), f"{name} was removed", "would supervise it again"
    )
    return Removed(name, unsaved_jobs(runners, "ended"))


async def jobs_at_risk(context: CommandContext, names: Iterable[str]) -> tuple[UnsavedJob, ...]:
    """The jobs that will lose steps, or fail, as the next daemon applies their changed sections; those that train save
    first.
    """
    losses = (await context.programs.updating.foresee(names, by_next_daemon=True)).losses
    jobs = [(context.programs.runners[name].progress, name, why) for name, why in sorted(losses.items())]
    for _, name, why in jobs:
        log.error("job.not_saved", program=name, why=why)
    return tuple(UnsavedJob(name, why, 0 if progress is None else progress.unsaved) for progress, name, why in jobs)


async def until_stopped(context: CommandContext) -> tuple[UnsavedJob, ...]:
    """Waits until every job has stopped and that is recorded; those of them whose last steps are not saved."""
    runners = list(context.programs.runners.values())
    running = [runner for runner in runners if runner.config.job is not None and runner.state in ALIVE]
    await asyncio.gather(*(runner.until_gone() for runner in running))
    await context.ledger.wanted.until_recorded()  # if that fails the log says so, and the next daemon looks at the disk
    return unsaved_jobs(running)


def unsaved_jobs(runners: Iterable[Runner], ended: str = "stopped") -> tuple[UnsavedJob, ...]:
    """Of programs that have stopped, the jobs whose last steps are in no checkpoint. `ended`: how, in a word."""
    known = [(runner.name, runner.progress_of(runner.attempt)) for runner in runners]
    return tuple(
        UnsavedJob(name, progress.describe_end(ended), progress.unsaved)
        for name, progress in known
        if progress is not None and not progress.is_safe
    )
