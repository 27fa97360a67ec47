"""Looks at the clock every few seconds while a job runs: a look that comes late shows that the host stood still."""

import asyncio
from collections.abc import Mapping

import structlog

from supervisor.core.actions.suspend import CHECK_INTERVAL_S, suspended_for_s
from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE
from supervisor.runner.program.runner import Runner

BEGINS_WITHIN_S = 0.1  # of a thousand programs that start, each with a turn of its own, the rest is not looked at again

log = structlog.get_logger()


class SuspendWatch:
    """All programs, by `runners`. Without a job to watch nothing is looked at, and nobody is woken."""

    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.TimerHandle | None = None

    def on_change(self) -> None:
        """A program's state is another one. Looks at them all soon, once for many changes."""
        if self._timer is None and self._soon is None:
            self._soon = self._loop.call_later(BEGINS_WITHIN_S, self._begin)

    def stop(self) -> None:
        """Looks no more."""
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()

    def _begin(self) -> None:
        timer, self._soon = self._soon, None
        self._compare(timer)
        if any(runner.facts.policy.is_job and runner.state in ALIVE for runner in self._runners.values()):
            self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_clock)

    def _check_clock(self) -> None:
        timer, self._timer = self._timer, None
        self.on_change()
        self._compare(timer)

    def _compare(self, timer: asyncio.TimerHandle | None) -> None:
        stopped_for_s = None if timer is None else suspended_for_s(timer.when(), self._loop.time())
        if stopped_for_s is None:
            return
        log.warning("host.stood_still", suspended_for_s=round(stopped_for_s, 1), effect="all timeouts begin again")
        for runner in list(self._runners.values()):
            runner.post(events.HostSuspended(stopped_for_s))
