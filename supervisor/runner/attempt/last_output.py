"""The last lines that a process wrote to standard error, read from its log: why it exited, in its own words."""

import asyncio
import contextlib
import os
import re
import signal
import stat
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.host.guarded_open import open_guarded
from supervisor.host.processes.process_status import Exit
from supervisor.protocol.installation import install_stepkeeper
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.attempt.services import Services

LIMIT_S = 0.5  # how long an exit waits for its line; the logger writes it within milliseconds, on a busy host in tenths
LOGGER_START_LIMIT_S = 1.0  # the same while the logger starts, which takes half a second by itself
AGAIN_S = 0.01  # between two looks; the line is complete once two looks are the same
CLOCK_TICK_S = 0.02  # a file's time comes from a clock that ticks every few milliseconds
TAIL_BYTES = 4096
MAX_CHARACTERS = 200
LINES = 8  # of the end that a failed start shows: the last frames of a traceback
_NO_WORKER = re.compile(r"No module named '?worker\b")  # of a script, and of `python -m worker`

_Look = tuple[int, int, list[str]]


def is_unexplained(config: ProgramConfig, exit_: Exit) -> bool:
    """Whether the reason of an end gains from the last line of standard error, if the worker has not sent its error."""
    is_expected = config.job is None and exit_.code in config.exitcodes
    return exit_.signal == signal.SIGABRT or (exit_.code not in (None, 0, WorkerExit.STOPPED) and not is_expected)


async def last_error_line(config: ProgramConfig, services: Services, since_wall_at: float | None) -> str | None:
    """The last line in the log of standard error, at most MAX_CHARACTERS printable characters.

    None without such a file (NONE, syslog only, the daemon's own output), if nothing was written to it since
    `since_wall_at` (None: ever), or if the disk does not answer in time.
    """
    lines = await last_error_lines(config, services, since_wall_at)
    if lines and config.job is not None and _NO_WORKER.search(lines[-1]):
        return (
            f"{lines[-1]}; stepkeeper has to be installed where the job runs: {install_stepkeeper(config.command[0])}"
        )
    return lines[-1] if lines else None


async def last_error_lines(config: ProgramConfig, services: Services, since_wall_at: float | None) -> list[str]:
    """The last lines in the log of standard error, LINES at most, under the conditions of `last_error_line`."""
    path = config.stdout_logfile if config.redirect_stderr else config.stderr_logfile
    if path is None:
        return []
    limit_s = LOGGER_START_LIMIT_S if services.logs.logger_pid is None else LIMIT_S
    since = (since_wall_at or 0.0) - CLOCK_TICK_S
    looked: _Look | None = None
    with contextlib.suppress(TimeoutError, OSError, RuntimeError):  # the last: the host has no thread to spare
        async with asyncio.timeout(limit_s):
            while True:
                before, looked = looked, await services.log_reads.run(path, _read_tail, path, since)
                if looked is not None and looked == before:
                    break
                await asyncio.sleep(AGAIN_S)
    return looked[2] if looked is not None else []


def _read_tail(path: Path, since_wall_at: float) -> _Look | None:
    """In a thread: size, time and last lines; None if it is no file, or was not written to since then."""
    try:
        file = open_guarded(path, os.O_RDONLY)
    except FileNotFoundError:  # the logger creates it
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_mtime < since_wall_at:
            return None
        tail = os.pread(file, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        return status.st_size, status.st_mtime_ns, _last_lines(tail)
    finally:
        os.close(file)


def _last_lines(tail: bytes) -> list[str]:
    lines = [*filter(None, map(_printable, tail.decode(errors="replace").splitlines()))][-LINES:]
    return [line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..." for line in lines]


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else " " for character in line).strip()
