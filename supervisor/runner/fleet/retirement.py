"""Stops all programs for good: those that others depend on after these, listeners last, all at once in a hurry."""

import asyncio
from collections.abc import Mapping
from typing import Any

from supervisor.core.fleet import dependencies
from supervisor.core.program import events
from supervisor.runner.fleet.gates import DependencyGates
from supervisor.runner.fleet.leftovers import LeftoverProcesses
from supervisor.runner.fleet.ordering import in_stop_order
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner


class FleetRetirement:
    """Retires `runners`, once, and ends what earlier daemons left (`leftovers`)."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        gates: DependencyGates,
        leftovers: LeftoverProcesses,
        listeners: ListenerHub,
    ) -> None:
        self._runners = runners
        self._gates = gates
        self._leftovers = leftovers
        self._listeners = listeners
        self._hurried = asyncio.Event()
        self._host_leaves = False
        self._has_begun = False

    async def retire_all(self) -> None:
        """They are told in the reverse order of their start. Returns when no process is left, old or new."""
        self._has_begun = True
        gone = {name: asyncio.Event() for name in self._runners}
        needed_by = dependencies.dependents(self._gates.graph())
        others = [name for name, runner in self._runners.items() if runner.config.listener is None]
        for name, runner in self._runners.items():
            if runner.config.listener is not None:  # they hear how the others end
                needed_by[name] = needed_by[name].union(others)
        await asyncio.gather(
            *(
                self._retire(runner, [gone[name] for name in needed_by[runner.name] if name in gone], gone[runner.name])
                for runner in in_stop_order(self._runners.values())
            ),
            self._unless_hurried(asyncio.ensure_future(self._leftovers.wait_until_gone())),
        )
        self._leftovers.kill_all()  # the rest, once somebody is in a hurry

    async def _retire(self, runner: Runner, before: list[asyncio.Event], gone: asyncio.Event) -> None:
        """Retires a program after those that depend on it, or with them once somebody is in a hurry."""
        try:
            if before:
                await self._unless_hurried(asyncio.gather(*(event.wait() for event in before)))
            if runner.config.listener is not None:
                heard_out = self._listeners.wait_until_answered(runner.config.stopwaitsecs)
                await self._unless_hurried(asyncio.ensure_future(heard_out))
            await retire(runner, *self._reason(), leaves_unkillable=True)
        finally:
            gone.set()

    async def _unless_hurried(self, others: asyncio.Future[Any]) -> None:
        hurry = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait({others, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            others.cancel()
            hurry.cancel()
            await asyncio.gather(others, hurry, return_exceptions=True)

    def _reason(self) -> tuple[str, bool]:
        return ("host shutdown" if self._host_leaves else "shutdown"), self._host_leaves

    def hurry(self) -> None:
        """Somebody asked a second time: every program takes the next harder way to stop, and waits for no other."""
        self._hurried.set()
        for runner in self._runners.values():
            runner.post(events.ShutdownHurried())

    def on_host_shutdown(self) -> None:
        """The daemon leaves, or is about to, because the host shuts down; told late, it still counts."""
        self._host_leaves = True
        for runner in self._runners.values():
            if self._has_begun and runner.facts.closing:
                runner.post(events.ProgramClosed(*self._reason()))
