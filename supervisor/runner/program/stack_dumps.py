"""Ends a worker that hangs: what its threads are at is kept first, then it gets SIGABRT."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.core.program.events import StacksKept
from supervisor.host.processes import stacks
from supervisor.host.processes.process import Process
from supervisor.protocol.layout import STACKS_SIGNAL

SHARE = 0.5  # of the patience: the rest is for the worker to die of SIGABRT


async def dump_stacks_then_abort(
    process: Process,
    attempt: int,
    folders: tuple[Path, Path],
    patience_s: float,
    why: str,
    post: Callable[[StacksKept], None],
    log: FilteringBoundLogger,
) -> None:
    """`folders`: of the attempt's pipes, and where stacks are kept. `post` comes before the signal, or not at all."""
    pipes, kept = folders

    def work() -> Path:
        text = stacks.collect_stacks(
            process.pid, pipes, lambda: process.send_signal(STACKS_SIGNAL, group=False), limit_s, why
        )
        return stacks.store_dump(kept, attempt, text)

    limit_s = patience_s * SHARE
    try:
        path = await asyncio.wait_for(asyncio.to_thread(work), limit_s + 1.0)
        log.info("stacks.kept", attempt=attempt, path=str(path))
        post(StacksKept(attempt, str(path)))
    except (OSError, TimeoutError) as error:
        log.warning("stacks.not_kept", attempt=attempt, error=str(error) or "it took too long")
    process.send_signal(signal.SIGABRT, group=False)
    process.send_signal(signal.SIGCONT, group=False)  # one that was stopped can't even die
