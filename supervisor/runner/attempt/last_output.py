"""The last lines that a process wrote to standard error, read from its log: why it exited, in its own words."""

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.host.logs.files.positions import LogPosition
from supervisor.host.user_folders.guarded_open import open_guarded
from supervisor.protocol.installation import install_stepkeeper
from supervisor.runner.attempt.services import Services

LIMIT_S = 0.5  # how long an exit waits for its line; the logger writes it within milliseconds, on a busy host in tenths
LOGGER_START_LIMIT_S = 1.0  # the same while the logger starts, which takes half a second by itself
AGAIN_S = 0.01  # between two looks; what they show is complete once two are the same
CLOCK_TICK_S = 0.02  # a file's time comes from a clock that ticks every few milliseconds
TAIL_BYTES = 4096
MAX_CHARACTERS = 200
LINES = 8  # of the end that a failed start shows: the last frames of a traceback
_NO_WORKER = re.compile(r"No module named '?worker\b")  # of a script, and of `python -m worker`

END_BYTES = 65_536  # of what one attempt printed, for its diagnosis; a traceback with its message is a tenth of it

_Look = tuple[int, int, bytes]  # size, time, and the end
_Begin = Callable[[], LogPosition | None]


async def last_error_lines(config: ProgramConfig, services: Services, since_wall_at: float | None) -> list[str]:
    """The last lines in the log of standard error, LINES at most.

    None without such a file (NONE, syslog only, the daemon's own output), if nothing was written to it since
    `since_wall_at` (None: ever), or if the disk does not answer in time.
    """
    return _last_lines(await read_end(config, services, since_wall_at, lambda: None))


async def read_end(config: ProgramConfig, services: Services, since_wall_at: float | None, begin: _Begin) -> bytes:
    """The end of what was printed to standard error; empty under the conditions of `last_error_lines`.

    `begin`: where the output of the attempt begins, once the logger has told; until then, few bytes are read, which may
    be of the attempt before. Nothing at all is believed only once the logger has read the attempt's pipe to its end: it
    makes a file before it writes there.
    """
    path = config.stdout_logfile if config.redirect_stderr else config.stderr_logfile
    if path is None:
        return b""
    limit_s = LOGGER_START_LIMIT_S if services.logs.logger_pid is None else LIMIT_S
    since = (since_wall_at or 0.0) - CLOCK_TICK_S
    looked: _Look | None = None
    was_whole = False
    with contextlib.suppress(TimeoutError, OSError, RuntimeError):  # the last: the host has no thread to spare
        async with asyncio.timeout(limit_s):
            while True:
                begins = begin()
                is_whole = begins is not None and not services.logs.is_captured(path)
                before, looked = looked, await services.blocking_calls.run(path, _read_tail, path, since, begins)
                if looked == before and (was_whole or (looked is not None and looked[2])):
                    break
                was_whole = is_whole
                await asyncio.sleep(AGAIN_S)
    return looked[2] if looked is not None else b""


def explaining_line(config: ProgramConfig, end: bytes) -> str | None:
    """The last line, at most MAX_CHARACTERS printable characters, with the remedy if a job lacks the package."""
    lines = _last_lines(end[-TAIL_BYTES:])
    if lines and config.job is not None and _NO_WORKER.search(lines[-1]):
        return (
            f"{lines[-1]}; stepkeeper has to be installed where the job runs: {install_stepkeeper(config.command[0])}"
        )
    return lines[-1] if lines else None


def _read_tail(path: Path, since_wall_at: float, begin: LogPosition | None) -> _Look | None:
    """In a thread: size, time and end; None if it is no file, or was not written to since then."""
    try:
        file = open_guarded(path, os.O_RDONLY)
    except FileNotFoundError:  # the logger creates it
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_mtime < since_wall_at:
            return None
        size, count, least = status.st_size, TAIL_BYTES, 0
        if begin is not None:
            count = END_BYTES
            least = begin.offset if begin.inode == status.st_ino else 0  # else it was rotated since
        tail = os.pread(file, count, max(least, size - count)) if size > least else b""
        return size, status.st_mtime_ns, tail
    finally:
        os.close(file)


def _last_lines(tail: bytes) -> list[str]:
    lines = [*filter(None, map(_printable, tail.decode(errors="replace").splitlines()))][-LINES:]
    return [line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..." for line in lines]


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else " " for character in line).strip()
