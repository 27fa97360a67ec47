"""Gathers what a death left behind: the end of what it printed, the kernel's log, its control group, the disks it used.

Everything is read in threads, at the same time, and has LIMIT_S in all; what does not come in time is missing.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from supervisor.config import ProgramConfig
from supervisor.core.diagnosis.diagnose import SHARED_MEMORY
from supervisor.core.diagnosis.evidence import Disk, Evidence, KernelLine
from supervisor.core.program.events import WorkerExited
from supervisor.host.processes.process_status import Exit
from supervisor.host.resources.cgroup import Cgroup
from supervisor.host.resources.kernel_log import KMSG
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.attempt.last_output import LIMIT_S, LOGGER_START_LIMIT_S, explaining_line, read_end
from supervisor.runner.attempt.services import Services

BEFORE_S = 300.0  # of the kernel's log before the end: a hung task is reported after two minutes
CLOCKS_APART_S = 5.0  # the kernel's clock for its log is not the one that we have, and is off by seconds after days
CGROUPS = Path("/sys/fs/cgroup")

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Deceased:
    """The process that is gone, and its own control group. `oom`: a counter of kills for lack of memory rose, in words;
    `since_wall_at`: its start."""

    pid: int
    since_wall_at: float | None
    oom: str | None
    cgroup: Cgroup | None


def is_unexplained(config: ProgramConfig, exit_: Exit) -> bool:
    """Whether an end was not meant, so that it is worth to look for its reason."""
    if exit_.signal is not None:
        return True
    is_expected = config.job is None and exit_.code in config.exitcodes
    return exit_.code not in (None, 0, WorkerExit.STOPPED) and not is_expected


async def gather(exited: WorkerExited, config: ProgramConfig, services: Services, deceased: Deceased) -> WorkerExited:
    """The exit with what was found of it. When many processes die at once, a few are looked at at a time."""
    async with services.death_looks:
        return await _gather(exited, config, services, deceased)


async def _gather(exited: WorkerExited, config: ProgramConfig, services: Services, deceased: Deceased) -> WorkerExited:
    limit_s = LOGGER_START_LIMIT_S if services.logs.logger_pid is None else LIMIT_S
    ends_at = asyncio.get_running_loop().time() + limit_s
    path = config.stdout_logfile if config.redirect_stderr else config.stderr_logfile
    channel = "stdout" if config.redirect_stderr else "stderr"
    begin = partial(services.ledger.output_begins.newest, config.name, channel, exited.attempt)
    looks = [
        _within(ends_at, services.blocking_calls.run_for_folder(folder, partial(_look_at_disk, use, folder)))
        for use, folder in _folders(config, path)
    ]
    gpus = services.gpus if config.job is not None else None
    printed, kernel, disks, _ = await asyncio.gather(
        read_end(config, services, deceased.since_wall_at, begin),
        _within(ends_at, services.blocking_calls.run_for_folder(KMSG, partial(_kernel_lines, services))),
        asyncio.gather(*looks),
        asyncio.sleep(0) if gpus is None or not gpus.is_started else gpus.catch_up(),
    )
    evidence = Evidence(
        stderr=printed.decode(errors="replace"),
        kernel=kernel,
        pids=(deceased.pid,),
        cgroup=None if deceased.cgroup is None else _name_in_kernel(deceased.cgroup.path),
        oom=deceased.oom,
        disks=tuple(disk for disk in disks if disk is not None),
    )
    return replace(exited, error_line=explaining_line(config, printed), evidence=evidence)


async def _within(ends_at: float, work: Awaitable[Part]) -> Part | None:
    """What `work` gives until then; None if it fails, takes longer, or the host has no thread to spare."""
    try:
        async with asyncio.timeout_at(ends_at):
            return await work
    except (TimeoutError, OSError, RuntimeError):
        return None


def _kernel_lines(services: Services) -> tuple[KernelLine, ...] | None:
    """In a thread."""
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    records = services.kernel_reports.since(now - BEFORE_S - CLOCKS_APART_S)
    if records is None:
        return None
    return tuple(KernelLine(max(0.0, now - record.at_s), record.text) for record in records)


def _name_in_kernel(cgroup: Path) -> str:
    """A control group as the kernel's log names it: from the root of its hierarchy."""
    parts = cgroup.parts[len(CGROUPS.parts) :]
    return "/" + "/".join(parts[1:] if parts[:1] in (("memory",), ("unified",)) else parts)


def _folders(config: ProgramConfig, log: Path | None) -> list[tuple[str, Path]]:
    shared_memory = Path("/dev/shm")  # noqa: S108 - nothing is written there
    folders = [(SHARED_MEMORY, shared_memory), ("temporary files", Path(tempfile.gettempdir()))]
    if config.job is not None:
        folders.append(("the checkpoint directory", config.job.checkpoint_dir))
    if log is not None:
        folders.append(("the log", log.parent))
    return folders


def _look_at_disk(use: str, folder: Path) -> Disk:
    """In a thread. Raises OSError."""
    numbers = os.statvfs(folder)
    free_inodes = numbers.f_favail if numbers.f_files else None
    is_read_only = bool(numbers.f_flag & os.ST_RDONLY)
    return Disk(use, str(folder), numbers.f_bavail * numbers.f_frsize, free_inodes, is_read_only)
