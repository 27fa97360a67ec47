"""Gathers what the processes of a silent job do, for the core to judge whether it hangs."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.core.failures.hang_evidence import wants_stack
from supervisor.core.failures.looks import TreeLook, compare_looks
from supervisor.core.program import effects, events
from supervisor.host.processes.silence import io_bytes_of, look_at_tree
from supervisor.host.processes.stacks import main_thread_frames
from supervisor.protocol import layout
from supervisor.protocol.layout import STACKS_SIGNAL
from supervisor.runner.attempt.attempt import LiveAttempt
from supervisor.runner.attempt.services import Services

LOOK_LIMIT_S = 5.0  # one takes some milliseconds; more means that a file in /proc does not answer
STACK_TIMEOUT_S = 2.0


async def observe_silence(
    effect: effects.LookAtSilence,
    program: str,
    attempt: LiveAttempt,
    services: Services,
    post: Callable[[events.Event], None],
    log: FilteringBoundLogger,
) -> None:
    """Looks several times, and posts what that showed; evidence of nothing if it could not be looked."""
    began_at = time.monotonic()
    folder = layout.attempt_folder(services.runtime_dir, program, attempt.number)
    series = LookSeries(attempt.process.pid, attempt.worker_pid or 0, folder, _stack_request(attempt))
    for number in range(effect.looks):
        await asyncio.sleep(began_at + effect.over_s * number / (effect.looks - 1) - time.monotonic())
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                is_there = await services.blocking_calls.run_for_folder(folder, series.look)
        except (OSError, RuntimeError, TimeoutError) as error:  # RuntimeError: no thread to spare
            log.warning("silence.not_looked_at", attempt=effect.attempt, error=str(error) or "no answer")
            is_there = False
        if not is_there:
            series.looks.clear()
            break
        if series.looks[-1].has_accelerator and services.gpus is not None:
            series.looks[-1] = replace(series.looks[-1], gpus=await services.gpus.loads_of(program))
    post(events.SilenceObserved(effect.attempt, compare_looks(series.looks, began_at, time.monotonic())))


def _stack_request(attempt: LiveAttempt) -> Callable[[], bool]:
    """Sends the worker the signal on which it writes its stacks; a wrapper around it has no handler for that."""

    def request() -> bool:
        process = attempt.process
        return process.pid == attempt.worker_pid and process.send_signal(STACKS_SIGNAL, group=False)

    return request


@dataclass(slots=True)
class LookSeries:
    """Looks at the tree of process `leader`, in which `worker` trains; each in a thread, one after another."""

    leader: int
    worker: int
    folder: Path
    request_stacks: Callable[[], bool]
    looks: list[TreeLook] = field(default_factory=list)
    _stack_bytes: int = 0  # which the worker wrote because it was asked for its stacks

    def look(self) -> bool:
        """Takes one more look, with the main thread's stack if that has been computing at all looks so far.

        False if the worker is not there.
        """
        look = look_at_tree(self.leader, self.worker)
        if look is None:
            return False
        if look.io_bytes is not None:
            look = replace(look, io_bytes=look.io_bytes - self._stack_bytes)
        states = "".join(
            thread.state for seen in (*self.looks, look) for thread in seen.threads if thread.tid == self.worker
        )
        if wants_stack(states):
            before = io_bytes_of(self.worker)
            stack = main_thread_frames(self.folder, self.worker, self.request_stacks, STACK_TIMEOUT_S)
            after = io_bytes_of(self.worker)
            self._stack_bytes += (after or 0) - (before or 0)
            look = replace(look, stack=stack)
        self.looks.append(look)
        return True
