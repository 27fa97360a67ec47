"""The mailbox of one program: what happens to it, one event after another, and its one timer.

**An exit may wait.** The text of an end ("exit status 1: ValueError: ...") is said once to each who is told: the
ledger, hooks, event listeners, whoever waits for a start. So it has to be whole when the core decides, and an end that
was not meant waits here until what it left behind is read: at most 0.5 s, 1 s while the logger starts
(`runner/attempt/death_evidence.py`). Whatever happens meanwhile happened later and is not kept waiting; it releases the
exit, without its evidence, and comes after it. A deadline does the same, and so does the end of the daemon: the next
one could not know the exit status. Only answers that the dead process wanted wait with its exit: a job can die while
its checkpoint is selected.

**Many at once.** An exit, and a deadline, also wait while other programs have used up their share of this turn of the
event loop (`host/service/loop_share.py`); and of many deaths a few are looked into at a time, for these 0.5 s each.
What workers say uses up nothing of that share, as they could say it without end: their pipes have one of their own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from supervisor.core.diagnosis.evidence import Evidence
from supervisor.core.job import Job
from supervisor.core.program.effects import Effect
from supervisor.core.program.events import (
    CheckpointSelected,
    DeadlinePassed,
    Event,
    ReportedEvent,
    SelectionFailed,
    WorkerExited,
)
from supervisor.core.program.facts import State
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.service.loop_share import LoopShare

LATE_S = 0.1  # of a timer: after that, the event loop may not have looked at its descriptors (selectors, PEP 475)

Decide = Callable[[float], list[Effect]]
"""Gives the effects of an event that is handled now."""

FOR_THE_PROCESS = (CheckpointSelected, SelectionFailed)
"""Answers that only the process wanted; behind its exit nobody does."""


class Mailbox:
    """Has `handle` called with each event and with what decides about it, and `settle`, with the state before, whenever
    nothing is left to handle. An event that comes while another is handled comes after that.
    """

    def __init__(
        self,
        job: Job,
        handle: Callable[[Event, Decide], None],
        settle: Callable[[State], None],
        tasks: BackgroundTasks,
        share: LoopShare,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`share`: of the event loop, for all programs. `together`: what is recorded in such a block is on the disk as
        a whole, or not at all."""
        self._job = job
        self._share = share
        self._together = together
        self._handle = handle
        self._settle = settle
        self._tasks = tasks
        self._events: list[tuple[Event, Decide]] = []  # seldom more than two; an empty deque takes 700 bytes more
        self._waiting_exit: WorkerExited | None = None
        self._behind_exit: list[Event] = []
        self._gpu_faults: Callable[[], tuple[str, ...]] = tuple
        self._is_handling = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._has_read_late = False
        self._loop = asyncio.get_running_loop()

    def post(self, event: Event) -> None:
        """Something happened."""
        if self._is_closed:
            return
        if self._waiting_exit is not None and isinstance(event, FOR_THE_PROCESS):
            self._behind_exit.append(event)
            return
        self.release_exit()
        self._put(event, partial(self._job.handle, event))

    def post_exit(
        self,
        exited: WorkerExited,
        gather: Callable[[WorkerExited], Awaitable[WorkerExited]],
        gpu_faults: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """The process is gone; `gather` gives the exit with what was found of why. `gpu_faults`: of its GPUs, as far as
        known whenever the exit is posted, with the rest or without."""
        self.release_exit()
        self._waiting_exit, self._gpu_faults = exited, gpu_faults
        self._tasks.start(self._explain_exit(exited, gather))

    async def _explain_exit(
        self, exited: WorkerExited, gather: Callable[[WorkerExited], Awaitable[WorkerExited]]
    ) -> None:
        explained = exited
        try:
            explained = await gather(exited)
            await self._share.wait_turn()
        finally:
            if self._waiting_exit is exited:  # else it was posted without
                self._waiting_exit = explained
                self.release_exit()

    def release_exit(self) -> bool:
        """Posts the exit that waits; False if none does."""
        exited, self._waiting_exit = self._waiting_exit, None
        if exited is None:
            return False
        behind, self._behind_exit = self._behind_exit, []
        if faults := self._gpu_faults():
            evidence = exited.evidence or Evidence(stderr=exited.error_line or "")
            exited = replace(exited, evidence=replace(evidence, gpu=faults))
        for event in (exited, *behind):
            self.post(event)
        return True

    def close(self) -> None:
        """Nothing is handled any more."""
        self.release_exit()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        is_late = now - self._due_at > LATE_S and not self._has_read_late
        if is_late or self._share.is_used_up:
            self._has_read_late |= is_late  # the daemon stood still: what the worker reported meanwhile is read first
            self._timer = self._loop.call_at(now, self._on_timer)
            return
        self._has_read_late = False
        if not self.release_exit():  # else it came before the deadline, and has set the timer anew
            self._put(DeadlinePassed(), partial(self._job.expire, due_at=self._due_at))

    def _put(self, event: Event, decide: Decide) -> None:
        """Handles the event after those before it, and what comes meanwhile after it; then sets the timer."""
        self._events.append((event, decide))
        if self._is_handling:
            return
        began_at = self._loop.time()
        with self._together():
            self._handle_all()
        if not isinstance(event, ReportedEvent):
            self._share.use(self._loop.time() - began_at)

    def _handle_all(self) -> None:
        before = self._job.state
        self._is_handling = True
        try:
            while self._events:
                self._handle(*self._events.pop(0))
        finally:
            self._is_handling = False
            self._arm_timer()
        self._settle(before)

    def _arm_timer(self) -> None:
        """One timer for the state's one deadline. If that moved later, the timer fires early and is set anew."""
        deadline_at = self._job.deadline()
        if self._timer is not None and (deadline_at is None or deadline_at < self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline_at is not None:
            self._timer = self._loop.call_at(deadline_at, self._on_timer)
            self._due_at = max(deadline_at, self._loop.time())
