"""The commands, in one fixed table: a name that comes from outside is looked up here and nowhere else."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.config import ConfigError
from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    flag_in,
    program_in,
    text_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import (
    fleet,
    goodput,
    groups,
    notices,
    start_stop,
    status,
    stdin,
    timeline,
    usage,
)
from supervisor.core.program import events as fact
from supervisor.core.program.facts import State
from supervisor.host.ledger.ledger import LedgerError
from supervisor.host.logs.capture import LogCapture
from supervisor.protocol.messages import Committed, SaveFailed


@dataclass(frozen=True, slots=True)
class Command:
    """One entry of the table. `changes`: needs the right to change things, and is refused while leaving."""

    act: Callable[[CommandContext, Arguments], Awaitable[Result]]
    changes: bool


async def send_signal(context: CommandContext, arguments: Arguments) -> Result:
    """Sends a signal, by name or number, to a program's worker."""
    runner, text = program_in(context, arguments), text_in(arguments, "signal")
    name = f"SIG{text.upper().removeprefix('SIG')}"
    try:
        number = signal.Signals(int(text)) if text.isdecimal() else signal.Signals[name]
    except (KeyError, ValueError) as error:
        raise CommandError(Code.BAD_SIGNAL, text) from error
    if not runner.executor.send_signal(number):
        raise CommandError(Code.NOT_RUNNING, runner.name)
    return {"name": runner.name}


async def checkpoint(context: CommandContext, arguments: Arguments) -> Result:
    """Has a job write a checkpoint now and train on; returns when it is on the disk."""
    runner = program_in(context, arguments)
    if runner.config.job is None:
        raise CommandError(Code.NOT_A_JOB, f"{runner.name} has no checkpoint_dir, so it has no checkpoints")
    runner.post(fact.FlushRequested("operator"))
    if runner.flush is None:
        raise CommandError(Code.NOT_RUNNING, f"{runner.name} does not train now (it is {runner.state})")
    flush_id = runner.flush.id
    answer: Committed | SaveFailed = await runner.wait_until(lambda: runner.flush_answer(flush_id))
    if isinstance(answer, SaveFailed):
        raise CommandError(Code.FAILED, answer.error)
    return {
        "checkpoint": answer.checkpoint,
        "step": answer.step,
        "size_bytes": answer.size_bytes,
        "save_s": answer.save_s,
    }


async def export(context: CommandContext, arguments: Arguments) -> Result:
    """Has a job export its model, as it is now, to export_dir and train on; returns when it is there."""
    runner = program_in(context, arguments)
    if runner.config.job is None or runner.config.job.export_dir is None:
        raise CommandError(Code.NOT_A_JOB, f"{runner.name} has no export_dir, so there is nowhere to export to; set it")
    answer = await runner.executor.export() if runner.state in (State.RUNNING, State.FLUSHING) else None
    if answer is None:
        raise CommandError(Code.NOT_RUNNING, f"{runner.name} does not train now (it is {runner.state})")
    if answer.path is None:
        raise CommandError(Code.FAILED, answer.error or "the worker gave no reason")
    return {"path": answer.path, "step": answer.step}


async def checkpoints(context: CommandContext, arguments: Arguments) -> Result:
    """A job's checkpoints, newest first, each proven whole or not (`verify`, the default); then those set aside."""
    runner = program_in(context, arguments)
    if runner.config.job is None:
        raise CommandError(Code.NOT_A_JOB, f"{runner.name} has no checkpoint_dir, so it has no checkpoints")
    directory = runner.config.job.checkpoint_dir
    try:
        listed = await context.checkpoints.list_checkpoints(directory, verify=flag_in(arguments, "verify", True))
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot list {directory}: {error.strerror}") from error
    return {"checkpoints": [asdict(each) for each in listed]}


async def history(context: CommandContext, arguments: Arguments) -> Result:
    """A program's last attempts, oldest first."""
    runner, limit = program_in(context, arguments), arguments.get("limit", 20)
    if not isinstance(limit, int) or not 1 <= limit <= 10_000:
        raise CommandError(Code.BAD_ARGUMENTS, f"limit is {limit!r:.40}, not a whole number from 1 to 10000")
    try:
        runner.executor.goodput.save()
        records = await asyncio.to_thread(context.ledger.history, runner.name, limit)
        spent_s = await asyncio.to_thread(goodput.of_attempts, context.ledger, runner.name)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    return {"attempts": [_attempt(asdict(record), spent_s.get(record.attempt, {})) for record in records]}


def _attempt(record: dict[str, Any], spent_s: dict[str, float]) -> Result:
    return {
        "spent_s": spent_s,
        **{key: value for key, value in record.items() if key not in ("started_at", "ended_at")},
        "started_wall_at": record["started_at"],
        "ended_wall_at": record["ended_at"],
    }


async def clear(context: CommandContext, arguments: Arguments) -> Result:
    """Empties a program's log files and deletes their backups."""
    config = program_in(context, arguments).config
    try:
        await _clear(context.logs, {config.stdout_logfile, config.stderr_logfile})
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot clear the logs of {config.name}: {error.strerror}") from error
    return {"name": config.name}


async def _clear(logs: LogCapture, paths: set[Path | None]) -> None:
    for path in filter(None, paths):
        await logs.clear(path)


async def pid(context: CommandContext, arguments: Arguments) -> Result:
    """The daemon's pid."""
    return {"pid": os.getpid()}


async def version(context: CommandContext, arguments: Arguments) -> Result:
    """The daemon's version."""
    return {"version": __version__}


async def avail(context: CommandContext, arguments: Arguments) -> Result:
    """Every configured program, in use or not."""
    used, programs = context.programs.runners, context.programs.configured.values()
    configured = sorted(programs, key=lambda each: (each.process, each.group))  # Supervisor's order
    return {
        "programs": [
            {
                "name": each.name,
                "group": each.group,
                "in_use": each.name in used,
                "autostart": each.autostart,
                "group_priority": each.group_priority,
                "priority": each.priority,
            }
            for each in configured
        ]
    }


async def reread(context: CommandContext, arguments: Arguments) -> Result:
    """Reads the configuration and says what `update` would change."""
    try:
        return {key: list(names) for key, names in asdict(await context.programs.reread()).items()}
    except ConfigError as error:
        raise CommandError(Code.CANT_REREAD, str(error)) from error


async def update(context: CommandContext, arguments: Arguments) -> Result:
    """Reads the configuration and makes the programs what it says, touching only what differs."""
    names = arguments.get("names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CommandError(Code.BAD_ARGUMENTS, "names is not a list of program names")
    await reread(context, arguments)
    named = None if names is None else _programs_of(context, names)
    try:
        actions = await context.programs.update(named)
    except LedgerError as error:
        raise CommandError(Code.FAILED, str(error)) from error
    return {"actions": [{"name": name, "action": action} for name, action in actions]}


def _programs_of(context: CommandContext, names: list[str]) -> list[str]:
    """The programs, in use or configured, that names of programs and of groups mean. Raises CommandError."""
    programs = context.programs
    known = {**{name: each.config for name, each in programs.runners.items()}, **programs.configured}
    found = {name: [name] if name in known else groups.configured(known, groups.group_of(name)) for name in names}
    unknown = sorted(name for name, meant in found.items() if not meant)
    if unknown:
        raise CommandError(Code.BAD_NAME, ", ".join(unknown))
    return [each for meant in found.values() for each in meant]


async def reload(context: CommandContext, arguments: Arguments) -> Result:
    """Starts the daemon anew, with its configuration read again; what is configured as before runs on."""
    await reread(context, arguments)  # an unusable file must not end what runs
    context.reload()
    return {}


async def shutdown(context: CommandContext, arguments: Arguments) -> Result:
    """Flushes and stops everything, then leaves."""
    context.shut_down()
    return {}


TABLE: Mapping[str, Command] = {
    "add": Command(fleet.add, changes=True),
    "avail": Command(avail, changes=False),
    "checkpoint": Command(checkpoint, changes=True),
    "checkpoints": Command(checkpoints, changes=False),
    "clear": Command(clear, changes=True),
    "drill": Command(notices.drill, changes=True),
    "export": Command(export, changes=True),
    "goodput": Command(goodput.report, changes=False),
    "history": Command(history, changes=False),
    "notices": Command(notices.notices, changes=False),
    "pid": Command(pid, changes=False),
    "reload": Command(reload, changes=True),
    "remove": Command(fleet.remove, changes=True),
    "reread": Command(reread, changes=True),
    "send_stdin": Command(stdin.send_stdin, changes=True),
    "shutdown": Command(shutdown, changes=True),
    "signal": Command(send_signal, changes=True),
    "start": Command(start_stop.start, changes=True),
    "status": Command(status.status, changes=False),
    "stop": Command(start_stop.stop, changes=True),
    "story": Command(timeline.story, changes=False),
    "top": Command(usage.top, changes=False),
    "update": Command(update, changes=True),
    "version": Command(version, changes=False),
}
