"""The last lines that a process wrote to standard error, read from its log: why it exited, in its own words."""

import asyncio
import contextlib
import os
import re
import stat
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.config.keys.job import install_command
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.guarded_open import open_guarded

LIMIT_S = 0.2  # how long an exit waits for its line; the logger writes it within milliseconds
LOGGER_START_LIMIT_S = 1.0  # the same while the logger starts, which takes half a second
AGAIN_S = 0.01  # between two looks; the line is complete once two looks are the same
CLOCK_TICK_S = 0.02  # a file's time comes from a clock that ticks every few milliseconds
TAIL_BYTES = 4096
MAX_CHARACTERS = 200
LINES = 8  # of the end that a failed start shows: the last frames of a traceback
_NO_WORKER = re.compile(r"No module named '?worker\b")  # of a script, and of `python -m worker`

_Look = tuple[int, int, list[str]]


async def last_error_line(
    config: ProgramConfig, since_wall_at: float, calls: BlockingCalls, limit_s: float = LIMIT_S
) -> str | None:
    """The last line in the log of standard error, at most MAX_CHARACTERS printable characters.

    None without such a file (NONE, syslog only, the daemon's own output), if nothing was written to it since
    `since_wall_at`, or if the disk does not answer within `limit_s`.
    """
    lines = await last_error_lines(config, since_wall_at, calls, limit_s)
    if lines and config.job is not None and _NO_WORKER.search(lines[-1]):
        return f"{lines[-1]}; stepkeeper has to be installed where the job runs: {install_command(config.command[0])}"
    return lines[-1] if lines else None


async def last_error_lines(
    config: ProgramConfig, since_wall_at: float, calls: BlockingCalls, limit_s: float = LIMIT_S
) -> list[str]:
    """The last lines in the log of standard error, LINES at most, under the conditions of `last_error_line`."""
    path = config.stdout_logfile if config.redirect_stderr else config.stderr_logfile
    if path is None:
        return []
    looked: _Look | None = None
    with contextlib.suppress(TimeoutError, OSError, RuntimeError):  # the last: the host has no thread to spare
        async with asyncio.timeout(limit_s):
            while True:
                before, looked = looked, await calls.run(path, _read_tail, path, since_wall_at - CLOCK_TICK_S)
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
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime < since_wall_at:
            return None
        return (
            found.st_size,
            found.st_mtime_ns,
            _last_lines(os.pread(file, TAIL_BYTES, max(0, found.st_size - TAIL_BYTES))),
        )
    finally:
        os.close(file)


def _last_lines(tail: bytes) -> list[str]:
    lines = [*filter(None, map(_printable, tail.decode(errors="replace").splitlines()))][-LINES:]
    return [each if len(each) <= MAX_CHARACTERS else f"{each[: MAX_CHARACTERS - 3]}..." for each in lines]


def _printable(line: str) -> str:
    return "".join(each if each.isprintable() else " " for each in line).strip()
