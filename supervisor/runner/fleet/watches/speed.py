"""Says when a job trains slower than it used to, with what has changed on the host meanwhile."""

import asyncio
from collections import deque
from collections.abc import Mapping

import structlog

from supervisor.core.failures.slowness import HostLoad, explain_slowness
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.resources.load import read_load
from supervisor.runner.program.runner import Runner

LOOK_EVERY_S = 10.0
LOADS_KEPT = 400  # more than an hour

log = structlog.get_logger()


class SpeedWatch:
    """All jobs, by `runners`, until cancelled. Nothing is looked at while none trains."""

    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners
        self._loads: deque[HostLoad] = deque(maxlen=LOADS_KEPT)
        self._needed = asyncio.Event()

    def on_change(self) -> None:
        """A program's state is another one."""
        if not self._needed.is_set() and self._training():
            self._needed.set()

    async def watch(self) -> None:
        """Looks every ten seconds while a job trains, and sleeps otherwise."""
        while True:
            await self._needed.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            training = self._training()
            if not training:
                self._needed.clear()
                continue
            try:
                self._loads.append(await asyncio.to_thread(read_load))
            except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: the host has no thread to spare
                log.debug("load.unread", error=str(error))
            for runner in training:
                self.judge(runner)

    def _training(self) -> list[Runner]:
        runners = self._runners.values()
        return [runner for runner in runners if runner.records.speed is not None and runner.state is State.RUNNING]

    def judge(self, runner: Runner) -> None:
        """Posts that its job became slower, or as fast as usual again."""
        speed = runner.records.speed
        if speed is None or not speed.pop_change():
            return
        why = explain_slowness(*speed.detector.recent_and_usual(), tuple(self._loads))
        if not why and runner.place is not None:
            why = "no reason is seen on this host; another rank may be the slow one"
        runner.post(events.SpeedChanged(runner.attempt, speed.detector.slowdown(why)))
