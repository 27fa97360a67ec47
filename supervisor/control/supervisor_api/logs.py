"""What Supervisor's methods do with what programs print, and are told."""

import base64
from pathlib import Path
from typing import Any

from supervisor.control.base.context import CommandContext
from supervisor.control.supervisor_api import log_reading
from supervisor.control.supervisor_api.calls import (
    Struct,
    run_command,
    run_side_by_side,
    runner_of,
)
from supervisor.core.listeners import occurrences
from supervisor.runner.fleet.ordering import in_start_order
from supervisor.runner.program.runner import Runner


async def read_log(context: CommandContext, offset: int, length: int) -> str:
    """A piece of the daemon's log."""
    path = context.settings.logfile
    return await context.disks.run(path, log_reading.read, path, offset, length)


async def clear_log(context: CommandContext) -> bool:
    """Empties the daemon's log and deletes its backups."""
    path = context.settings.logfile
    await context.disks.run(path, log_reading.clear, path)
    return True


async def read_stdout(context: CommandContext, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard output."""
    path = logfile(runner_of(context, name), "stdout")
    return await context.disks.run(path, log_reading.read, path, offset, length)


async def read_stderr(context: CommandContext, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard error."""
    path = logfile(runner_of(context, name), "stderr")
    return await context.disks.run(path, log_reading.read, path, offset, length)


async def tail_stdout(context: CommandContext, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard output: text, size of the file, whether it holds more than that."""
    path = logfile(runner_of(context, name), "stdout")
    return list(await context.disks.run(path, log_reading.tail, path, offset, length))


async def tail_stderr(context: CommandContext, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard error: text, size of the file, whether it holds more than that."""
    path = logfile(runner_of(context, name), "stderr")
    return list(await context.disks.run(path, log_reading.tail, path, offset, length))


async def clear_logs(context: CommandContext, name: str) -> bool:
    """Empties a program's logs and deletes their backups."""
    await run_command(context, "clear", name=runner_of(context, name).name)
    return True


async def clear_all_logs(context: CommandContext) -> list[Struct]:
    """Empties every program's logs and deletes their backups."""
    runners = in_start_order(context.programs.runners.values())
    cleared = await run_side_by_side([(runner, run_command(context, "clear", name=runner.name)) for runner in runners])
    order = [(runner.config.process, runner.config.group) for runner in runners]
    return sorted(cleared, key=lambda result: order.index((result["name"], result["group"])))


async def send_stdin(context: CommandContext, name: str, chars: str | bytes) -> bool:
    """Writes to a program's standard input; text as UTF-8."""
    runner = runner_of(context, name)
    if isinstance(chars, bytes):
        await run_command(context, "send_stdin", name=runner.name, base64=base64.b64encode(chars).decode())
    else:
        await run_command(context, "send_stdin", name=runner.name, chars=chars)
    return True


async def send_event(context: CommandContext, type: str, data: str) -> bool:
    """Tells every event listener that subscribes to REMOTE_COMMUNICATION."""
    context.listening.publish([occurrences.remote(type, data)])
    return True


def logfile(runner: Runner, channel: str) -> Path | None:
    """The file that a channel (stdout or stderr) is kept in."""
    return runner.config.stdout_logfile if channel == "stdout" else runner.config.stderr_logfile
