"""Notes every few seconds who descends from programs that are ended with all they started, where no control group
holds that."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from supervisor.runner.program.current_attempt import NOTED_EVERY_S
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


class DescendantWatch:
    """All programs, by `runners`. Sleeps while no worker has to be looked at."""

    def __init__(self, runners: Mapping[str, Runner], every_s: float = NOTED_EVERY_S) -> None:
        self._runners = runners
        self._every_s = every_s
        self._needed = asyncio.Event()

    async def watch(self) -> None:
        """Looks until cancelled."""
        while True:
            await self._needed.wait()
            await asyncio.sleep(self._every_s)
            try:
                await asyncio.to_thread(self._note_all, [runner.current.note_descendants for runner in self._watched()])
            except (OSError, RuntimeError) as error:  # the latter: the host has no thread to spare
                log.warning("descendants.unread", error=str(error), effect="what programs start now may outlive them")
            self.on_change()

    def on_change(self) -> None:
        """A program's state is another one."""
        if self._watched():
            self._needed.set()
        else:
            self._needed.clear()

    def _watched(self) -> list[Runner]:
        return [runner for runner in self._runners.values() if runner.current.has_to_note_descendants]

    @staticmethod
    def _note_all(notes: list[Callable[[], object]]) -> None:
        for note in notes:
            note()
