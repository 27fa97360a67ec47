"""Ending a program for good: it flushes and stops, and what `durable = remote` promises is kept first."""

import structlog

from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE, State
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

log = structlog.get_logger()


async def retire(runner: Runner, reason: str, host_leaves: bool = False) -> None:
    """Flushes and stops it for good; what is wanted stays wanted. Returns when no process is left.

    With `durable = remote`, its last checkpoint is in the mirror then.
    """
    await runner.takeover.until(TakeoverStage.STARTABLE)
    runner.post(events.ProgramClosed(reason, host_leaves))
    await runner.wait_until(lambda: True if _is_gone(runner) else None)
    if (memory := runner.memory) is not None:  # of a worker that ended before it had saved
        await runner.wait_until(lambda: True if not memory.is_writing or runner.is_hurried else None)
    if (mirror := runner.mirror) is not None:
        if mirror.is_awaited and not mirror.is_finished:
            await _wait_for_mirror(runner, mirror)
        mirror.finish()
    if runner.node_mirror is not None:
        runner.node_mirror.close()


def _is_gone(runner: Runner) -> bool:
    return runner.state not in ALIVE and runner.state is not State.BACKOFF and not runner.standby_pids


async def _wait_for_mirror(runner: Runner, mirror: JobMirror) -> None:
    """Waits until the store has what a flush waits for; not while it fails, nor once somebody is in a hurry."""
    failures = mirror.failures
    mirror.retry_now()
    await runner.wait_until(
        lambda: True if not mirror.waits or mirror.failures > failures or runner.is_hurried else None
    )
    if mirror.waits:
        log.warning("mirror.left_behind", program=runner.name, checkpoint=mirror.status.waits, error=mirror.error)
