"""Supervisor's methods on logs, standard input and events.

Pieces of log files are given by offset and length in bytes.
"""

import base64
import os
from pathlib import Path
from typing import Any

from supervisor.control.base.context import CommandContext, ProgramName
from supervisor.control.commands.processes import StdinRequest, clear
from supervisor.control.commands.processes import send_stdin as write_stdin
from supervisor.control.streams.tail import open_log
from supervisor.control.supervisor_api.faults import (
    FaultCode,
    RpcFault,
    Struct,
    find_runner,
    run_side_by_side,
    with_faults,
)
from supervisor.core.listeners import event_types
from supervisor.host.logs.files import file as log_file
from supervisor.runner.fleet.ordering import in_start_order
from supervisor.runner.program.runner import Runner

MAX_BYTES = 16 << 20  # of one answer; what is left out comes with the next call, as with read(2)


async def read_log(context: CommandContext, offset: int, length: int) -> str:
    """A piece of the daemon's log."""
    path = context.settings.logfile
    return await context.disks.run(path, _read, path, offset, length)


async def clear_log(context: CommandContext) -> bool:
    """Empties the daemon's log and deletes its backups."""
    path = context.settings.logfile
    await context.disks.run(path, _clear, path)
    return True


async def read_stdout(context: CommandContext, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard output."""
    path = logfile(find_runner(context, name), "stdout")
    return await context.disks.run(path, _read, path, offset, length)


async def read_stderr(context: CommandContext, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard error."""
    path = logfile(find_runner(context, name), "stderr")
    return await context.disks.run(path, _read, path, offset, length)


async def tail_stdout(context: CommandContext, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard output: text, size of the file, whether it holds more than that."""
    path = logfile(find_runner(context, name), "stdout")
    return list(await context.disks.run(path, _tail, path, offset, length))


async def tail_stderr(context: CommandContext, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard error: text, size of the file, whether it holds more than that."""
    path = logfile(find_runner(context, name), "stderr")
    return list(await context.disks.run(path, _tail, path, offset, length))


async def clear_logs(context: CommandContext, name: str) -> bool:
    """Empties a program's logs and deletes their backups."""
    await with_faults(clear(context, ProgramName(find_runner(context, name).name)))
    return True


async def clear_all_logs(context: CommandContext) -> list[Struct]:
    """Empties every program's logs and deletes their backups."""
    runners = in_start_order(context.programs.runners.values())
    cleared = await run_side_by_side([(runner, clear(context, ProgramName(runner.name))) for runner in runners])
    order = [(runner.config.process, runner.config.group) for runner in runners]
    return sorted(cleared, key=lambda result: order.index((result["name"], result["group"])))


async def send_stdin(context: CommandContext, name: str, chars: str | bytes) -> bool:
    """Writes to a program's standard input; text as UTF-8."""
    runner = find_runner(context, name)
    if isinstance(chars, bytes):
        await with_faults(write_stdin(context, StdinRequest(runner.name, base64=base64.b64encode(chars).decode())))
    else:
        await with_faults(write_stdin(context, StdinRequest(runner.name, chars=chars)))
    return True


async def send_event(context: CommandContext, type: str, data: str) -> bool:
    """Sends an event to every listener that subscribes to REMOTE_COMMUNICATION."""
    context.listening.publish([event_types.remote_communication(type, data)])
    return True


def logfile(runner: Runner, channel: str) -> Path | None:
    """The log file of a channel (stdout or stderr)."""
    return runner.config.stdout_logfile if channel == "stdout" else runner.config.stderr_logfile


# --- log files, read in threads because a disk may block -----------------------------------------------------------


def _read(path: Path | None, offset: int, length: int) -> str:
    """`length` bytes from `offset` on (0: all); with a negative `offset`, that many bytes from the end.

    Bytes that are no UTF-8 are replaced. Raises RpcFault.
    """
    if length < 0 or (offset < 0 and length > 0):
        raise RpcFault(
            FaultCode.BAD_ARGUMENTS, f"offset {offset}, length {length}: a length is not negative, and 0 from the end"
        )
    try:
        with open_log(_existing(path)) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - min(-offset, MAX_BYTES)) if offset < 0 else min(offset, size))
            return _text(file.read(min(length, MAX_BYTES) or MAX_BYTES))
    except FileNotFoundError as error:
        raise RpcFault(FaultCode.NO_FILE, f"{path} does not exist yet") from error
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot read {path}: {error.strerror}") from error


def _tail(path: Path | None, offset: int, length: int) -> tuple[str, int, bool]:
    """The last `length` bytes if the file goes beyond `offset`; its size; whether there was more than that.

    Without a file there is nothing: "", 0, False. Raises RpcFault.
    """
    if path is None:
        return "", 0, False
    try:
        with open_log(path) as file:
            size = file.seek(0, os.SEEK_END)
            overflow = size > offset + length
            count = 0 if offset >= size and not overflow else min(max(0, length), MAX_BYTES, size)
            file.seek(max(0, size - count))
            return _text(file.read(count)), size, overflow
    except FileNotFoundError:
        return "", 0, False
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot read {path}: {error.strerror}") from error


def _clear(path: Path | None) -> None:
    """Empties the daemon's own log, to which it goes on writing, and deletes its backups. Raises RpcFault."""
    existing = _existing(path)
    if not existing.exists():
        raise RpcFault(FaultCode.NO_FILE, f"{path} does not exist yet")
    try:
        log_file.truncate_with_backups(existing)
    except OSError as error:
        raise RpcFault(FaultCode.FAILED, f"cannot clear {path}: {error.strerror}") from error


def _existing(path: Path | None) -> Path:
    if path is None:
        raise RpcFault(FaultCode.NO_FILE, "no such log is kept")
    return path


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")
