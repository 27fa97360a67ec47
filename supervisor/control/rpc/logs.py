"""What Supervisor's methods do with what programs print, and are told."""

import base64
from pathlib import Path
from typing import Any

from supervisor.control.base.context import Daemon
from supervisor.control.rpc.calls import (
    Struct,
    do,
    results,
    runner_of,
)
from supervisor.control.streams import log_reading
from supervisor.core.listeners import occurrences
from supervisor.runner.fleet.ordering import by_priority
from supervisor.runner.program.runner import Runner


async def read_log(daemon: Daemon, offset: int, length: int) -> str:
    """A piece of the daemon's log."""
    path = daemon.settings.logfile
    return await daemon.disks.run(path, log_reading.read, path, offset, length)


async def clear_log(daemon: Daemon) -> bool:
    """Empties the daemon's log and deletes its backups."""
    path = daemon.settings.logfile
    await daemon.disks.run(path, log_reading.clear, path)
    return True


async def read_stdout(daemon: Daemon, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard output."""
    path = logfile(runner_of(daemon, name), "stdout")
    return await daemon.disks.run(path, log_reading.read, path, offset, length)


async def read_stderr(daemon: Daemon, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard error."""
    path = logfile(runner_of(daemon, name), "stderr")
    return await daemon.disks.run(path, log_reading.read, path, offset, length)


async def tail_stdout(daemon: Daemon, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard output: text, size of the file, whether it holds more than that."""
    path = logfile(runner_of(daemon, name), "stdout")
    return list(await daemon.disks.run(path, log_reading.tail, path, offset, length))


async def tail_stderr(daemon: Daemon, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard error: text, size of the file, whether it holds more than that."""
    path = logfile(runner_of(daemon, name), "stderr")
    return list(await daemon.disks.run(path, log_reading.tail, path, offset, length))


async def clear_logs(daemon: Daemon, name: str) -> bool:
    """Empties a program's logs and deletes their backups."""
    await do(daemon, "clear", name=runner_of(daemon, name).name)
    return True


async def clear_all_logs(daemon: Daemon) -> list[Struct]:
    """Empties every program's logs and deletes their backups."""
    runners = by_priority(daemon.programs.runners.values())
    cleared = await results([(runner, do(daemon, "clear", name=runner.name)) for runner in runners])
    order = [(runner.config.process, runner.config.group) for runner in runners]
    return sorted(cleared, key=lambda result: order.index((result["name"], result["group"])))


async def send_stdin(daemon: Daemon, name: str, chars: str | bytes) -> bool:
    """Writes to a program's standard input; text as UTF-8."""
    runner = runner_of(daemon, name)
    if isinstance(chars, bytes):
        await do(daemon, "send_stdin", name=runner.name, base64=base64.b64encode(chars).decode())
    else:
        await do(daemon, "send_stdin", name=runner.name, chars=chars)
    return True


async def send_event(daemon: Daemon, type: str, data: str) -> bool:
    """Tells every event listener that subscribes to REMOTE_COMMUNICATION."""
    daemon.listening.publish([occurrences.remote(type, data)])
    return True


def logfile(runner: Runner, channel: str) -> Path | None:
    """The file that a channel (stdout or stderr) is kept in."""
    return runner.config.stdout_logfile if channel == "stdout" else runner.config.stderr_logfile
