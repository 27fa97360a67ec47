"""The command `top`: what every program uses, measured now."""

import asyncio
import os
import time
from collections.abc import Mapping

import psutil

from supervisor.control.base.context import Arguments, CommandContext, Result
from supervisor.control.commands import groups, status
from supervisor.core.program.facts import State
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.resources import usage
from supervisor.host.resources.gpus import DRIVER, GpuMemory
from supervisor.host.resources.usage import ResourceUsage
from supervisor.runner.program.runner import Runner

GPUS_WITHIN_S = 2.0  # how often `top` draws; a driver answers in milliseconds, one in trouble never

_gpu_memory = GpuMemory()


async def top(context: CommandContext, arguments: Arguments) -> Result:
    """What every program and all it started use. Processor time is a total: ask twice and take the difference."""
    runners = groups.in_order(context.programs.runners.values())
    leaders = {runner.executor.pid for runner in runners if runner.executor.pid is not None}
    found = await asyncio.to_thread(usage.usage_of_trees, leaders)
    at_s = time.monotonic()
    gpu = await _gpu_memory_by_pid(context.disks)
    return {
        "at_s": at_s,
        "cpus": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "programs": [_row(runner, found, gpu) for runner in runners],
    }


async def _gpu_memory_by_pid(threads: BlockingCalls) -> Mapping[int, int] | None:
    """None where nobody can tell, or the driver does not answer; its thread is waited for by nobody, not at the end."""
    try:
        return await asyncio.wait_for(threads.run(DRIVER, _gpu_memory.bytes_by_pid), GPUS_WITHIN_S)
    except TimeoutError:
        return None


def _row(runner: Runner, found: Mapping[int, ResourceUsage], gpu: Mapping[int, int] | None) -> Result:
    pid, training = runner.executor.pid, runner.executor.training
    its = found.get(pid) if pid is not None else None
    trains = runner.config.job is not None and runner.state in (State.RUNNING, State.FLUSHING)
    return {
        "name": runner.name,
        "group": runner.config.group,
        "wire_state": status.wire_state(runner)[0],
        "pid": pid,
        "processes": its.processes if its else 0,
        "cpu_s": its.cpu_s if its else None,
        "memory_bytes": its.memory_bytes if its else None,
        "gpu_memory_bytes": sum(gpu.get(each, 0) for each in its.pids) if its and gpu is not None else None,
        "step": training.step if trains else None,
        "step_s": training.step_s if trains else None,
    }
