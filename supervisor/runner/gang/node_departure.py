"""A node that leaves its gang while the others go on, as a spare one can take its rank: because of a notice, or because
its pod is evicted. The chief can't: with it the generation is over."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from supervisor.core.gang.roster import CHIEF
from supervisor.core.program import notice_plan
from supervisor.host.gang.link import GangLink
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.gang import Leave
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


class NodeDeparture:
    """`allocation`: this node's place. `wanted`: nodes that train; the others are spare."""

    def __init__(self, allocation: Allocation, wanted: int, link: GangLink) -> None:
        self._allocation = allocation
        self._link = link
        self.is_possible = wanted < allocation.size and allocation.rank != CHIEF
        """Whether this node can leave alone. The chief decides whether the others go on."""
        self._now = asyncio.get_running_loop().time
        self._is_said = False
        self._watch: asyncio.Task[None] | None = None

    def say_for_notice(self, runner: Runner) -> None:
        """Its worker, if it had one, has ended because of the notice."""
        notice = runner.facts.notice
        self._say("its host goes away" + (f" ({notice_plan.describe_notice(notice)})" if notice is not None else ""))

    def say_for_eviction(self) -> None:
        """Its worker, if it had one, has ended because the daemon was told to exit."""
        self._say("its pod goes away")

    def _say(self, text: str) -> None:
        if self.is_possible and not self._is_said:
            self._is_said = True
            log.warning("gang.left", node=self._allocation.describe(self._allocation.rank), why=text)
            self._link.send(Leave(StepExit.NODE_LEAVES, text, alone=True))

    def is_due(self, runner: Runner) -> bool:
        """Whether a notice says that no worker could start here and save a step."""
        return self.is_possible and notice_plan.no_start_before(runner.facts, self._now()) is not None

    def watch_notice(self, runner: Runner, leave: Callable[[Runner], None]) -> None:
        """Calls `leave` once that is so on this spare node. To be called in each turn in which it is one."""
        self.stop_watching()
        self._watch = asyncio.get_running_loop().create_task(self._wait_for_notice(runner, leave))

    async def _wait_for_notice(self, runner: Runner, leave: Callable[[Runner], None]) -> None:
        def has_changed(last_at: float | None) -> bool | None:
            return notice_plan.last_start_at(runner.facts) != last_at or None

        while not self.is_due(runner):
            last_at = notice_plan.last_start_at(runner.facts)
            is_ahead = last_at is not None and last_at >= self._now()  # otherwise that notice is over
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(last_at if is_ahead else None):
                    await runner.wait_until(partial(has_changed, last_at))
        leave(runner)

    def stop_watching(self) -> None:
        """It is no spare node any more, or the daemon exits."""
        if self._watch is not None:
            self._watch.cancel()
