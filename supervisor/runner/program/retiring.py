"""Ending a program for good: it flushes and stops, and what `durable = remote` promises is kept first."""

import asyncio
import math

import structlog

from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

UNKILLABLE_S = 30.0  # after SIGKILL, which is repeated meanwhile: only the kernel holds a process that long (D state)

log = structlog.get_logger()


async def retire(
    runner: Runner,
    reason: str,
    host_leaves: bool = False,
    *,
    leaves_unkillable: bool = False,
    leaves_memory: bool = False,
    needs_mirror: bool = False,
) -> None:
    """Flushes and stops it for good; what is wanted stays wanted. Returns when no process is left.

    With `durable = remote`, or if somebody `needs_mirror`, its last checkpoint is in the mirror then, unless that
    fails. `leaves_unkillable`: a process that can't be killed, as one that waits for a dead file server, is left to the
    next daemon; whoever starts another here waits.
    `leaves_memory`: what a dead worker left there, and no disk has taken in time, is for the caller.
    """
    await runner.takeover.until(TakeoverStage.STARTABLE)
    runner.post(events.ProgramClosed(reason, host_leaves))
    is_left = not await _is_gone_in_time(runner, UNKILLABLE_S if leaves_unkillable else None)
    if runner.memory is not None:
        runner.memory.try_again()
    await until_memory_is_written(runner)  # of a worker that ended before it had saved
    if runner.memory is not None and not (is_left or leaves_memory):
        runner.memory.detach()
    if (mirror := runner.mirror) is not None:
        if (mirror.is_awaited or needs_mirror) and not mirror.is_finished:
            await _wait_for_mirror(runner, mirror)
        mirror.finish()
    if runner.node_mirror is not None:
        runner.node_mirror.close()
    if is_left:
        pids = sorted({*filter(None, [runner.pid]), *runner.standby_pids})
        remedy = "see what holds it, such as a file server that is gone: cat /proc/PID/stack"
        log.error("worker.unkillable", program=runner.name, pids=pids, effect="it is left behind", remedy=remedy)
        runner.hand_over()


async def until_memory_is_written(runner: Runner, limit_s: float = math.inf) -> None:
    """Returns when nothing that a dead worker left in memory is being written any more, or somebody is in a hurry, or
    after as long as a save of the job may take (flush_timeout), or `limit_s`: its disk may be dead.
    """
    memory, job = runner.memory, runner.config.job
    if memory is None or job is None:
        return
    limit_s = min(limit_s, job.flush_timeout)
    try:
        async with asyncio.timeout(limit_s):
            await runner.wait_until(lambda: True if not memory.is_writing or runner.is_hurried else None)
    except TimeoutError:
        remedy = f"make the disk of {job.checkpoint_dir} answer"
        log.error("memory.not_written", program=runner.name, waited_s=limit_s, remedy=remedy)


async def _is_gone_in_time(runner: Runner, unkillable_s: float | None) -> bool:
    """Waits until no process of it is left; False if one is, so long after it was killed."""
    while True:
        await runner.wait_until(lambda: True if _is_gone(runner) or _is_killed(runner) else None)
        try:
            async with asyncio.timeout(unkillable_s):
                await runner.wait_until(lambda: True if _is_gone(runner) or not _is_killed(runner) else None)
        except TimeoutError:
            return False
        if _is_gone(runner):
            return True


def _is_killed(runner: Runner) -> bool:
    """Whether all that is left of it was sent SIGKILL."""
    return runner.state is State.KILLING or (runner.is_down and bool(runner.standby_pids))


def _is_gone(runner: Runner) -> bool:
    return runner.is_down and not runner.standby_pids


async def _wait_for_mirror(runner: Runner, mirror: JobMirror) -> None:
    """Waits until the store has what a flush waits for; not while it fails, nor once somebody is in a hurry."""
    failures = mirror.failures
    mirror.retry_now()
    await runner.wait_until(
        lambda: True if not mirror.waits or mirror.failures > failures or runner.is_hurried else None
    )
    if mirror.waits:
        log.warning("mirror.left_behind", program=runner.name, checkpoint=mirror.status.waits, error=mirror.error)
