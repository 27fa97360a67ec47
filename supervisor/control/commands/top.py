"""The command `top`: what every program uses, measured now."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import psutil

from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.control.commands import descriptions, groups
from supervisor.core.program.facts import UP
from supervisor.host.resources import usage
from supervisor.host.resources.usage import ResourceUsage
from supervisor.runner.program.runner import Runner


@dataclass(frozen=True, slots=True)
class ProgramUsage:
    """What a program and all the processes it started use; None: not known.

    `cpu_s`: processor seconds since the processes started.
    """

    name: str
    group: str
    wire_state: str
    pid: int | None
    processes: int
    cpu_s: float | None
    memory_bytes: int | None
    gpu_memory_bytes: int | None
    step: int | None
    step_s: float | None


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """What every program uses, the host's processors and its memory."""

    at_s: Annotated[float, {"description": "A clock that starts anywhere, for the difference of two answers."}]
    cpus: int
    memory_bytes: int
    programs: tuple[ProgramUsage, ...]


async def top(context: CommandContext) -> UsageAnswer:
    """Measures what every program and all it started use. Processor time is a total: take the difference of two."""
    runners = groups.in_order(context.programs.runners.values())
    leaders = {runner.pid for runner in runners if runner.pid is not None}
    measured = await asyncio.to_thread(usage.usage_of_trees, leaders)
    at_s = time.monotonic()
    gpu = await context.gpus.memory_by_pid()
    return UsageAnswer(
        at_s,
        os.cpu_count() or 1,
        psutil.virtual_memory().total,
        tuple(_usage(runner, measured, gpu) for runner in runners),
    )


def _usage(runner: Runner, measured: Mapping[int, ResourceUsage], gpu: Mapping[int, int] | None) -> ProgramUsage:
    try:
        return _usage_of(runner, measured, gpu)
    except Exception as error:  # noqa: BLE001 - it must not hide the others
        not_shown(runner.name, error)
        word, _ = descriptions.wire_state_or_unknown(runner)
        return ProgramUsage(runner.name, runner.config.group, word, runner.pid, 0, None, None, None, None, None)


def _usage_of(runner: Runner, measured: Mapping[int, ResourceUsage], gpu: Mapping[int, int] | None) -> ProgramUsage:
    pid, training = runner.pid, runner.records.training
    used = measured.get(pid) if pid is not None else None
    trains = runner.config.job is not None and runner.state in UP
    return ProgramUsage(
        name=runner.name,
        group=runner.config.group,
        wire_state=descriptions.wire_state(runner)[0],
        pid=pid,
        processes=used.processes if used else 0,
        cpu_s=used.cpu_s if used else None,
        memory_bytes=used.memory_bytes if used else None,
        gpu_memory_bytes=sum(gpu.get(process, 0) for process in used.pids) if used and gpu is not None else None,
        step=training.step if trains else None,
        step_s=training.step_s if trains else None,
    )
