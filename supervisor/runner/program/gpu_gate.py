"""Before an attempt of a job starts: its GPUs have to be free of the last one, and in order."""

import asyncio
import os
from collections.abc import Mapping

from supervisor.config import ProgramConfig
from supervisor.core.fleet.gpus import GpuVerdict, judge_gpus
from supervisor.host.processes import marks
from supervisor.host.resources.gpus import ANSWERS_WITHIN_S, Gpus
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder

AGAIN_S = 0.2  # between two looks; the driver gives memory back within a second or two of the process' end


class GpuGate:
    """Holds back the starts of one program. `standby`: has what is to be its next attempt, and may hold memory.

    Meanwhile what is said to the attempt is kept for it.
    """

    __slots__ = ("_config", "_services", "_standby", "_unsent", "attempt")

    def __init__(self, config: ProgramConfig, services: Services, standby: StandbyHolder | None) -> None:
        self.attempt: int | None = None
        """The one that waits."""
        self._config = config
        self._services = services
        self._standby = standby
        self._unsent: list[messages.ToWorker] = []

    @property
    def applies(self) -> bool:
        """Whether a start has to look at GPUs at all."""
        gpus = self._services.gpus
        return self._config.job is not None and gpus is not None and gpus.is_connected

    def hold_back(self, attempt: int) -> float:
        """The attempt waits from now on, at most so many seconds: `gpu_wait`, and the driver's last answer."""
        self.attempt = attempt
        return (self._config.job.gpu_wait if self._config.job is not None else 0.0) + ANSWERS_WITHIN_S

    def buffer_message(self, message: messages.ToWorker) -> bool:
        """Keeps what is said to the attempt; False if none waits."""
        if self.attempt is not None:
            self._unsent.append(message)
        return self.attempt is not None

    def cancel(self, attempt: int) -> bool:
        """The attempt is not to start any more; whether it waited."""
        if self.attempt != attempt:
            return False
        self.attempt = None
        self._unsent.clear()
        return True

    async def wait_until_fit(
        self, attempt: int, last_pid: int | None
    ) -> tuple[GpuVerdict | None, list[messages.ToWorker]]:
        """Waits, at most `gpu_wait`, for the memory of the last attempt's process. The last verdict, None if the
        attempt was ended meanwhile; and what was said to it.
        """
        job, gpus = self._config.job, self._services.gpus
        assert job is not None and gpus is not None  # it applies
        verdict = await self._judge_until(gpus, attempt, last_pid, job.gpu_wait)
        if self.attempt != attempt:
            return None, []
        self.attempt = None
        unsaid, self._unsent = self._unsent, []
        return verdict, unsaid

    async def _judge_until(self, gpus: Gpus, attempt: int, last_pid: int | None, limit_s: float) -> GpuVerdict:
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while True:
            verdict = await self._judge(gpus, attempt, last_pid)
            if verdict.waits_because is None or loop.time() >= until:
                return verdict
            await asyncio.sleep(AGAIN_S)

    async def _judge(self, gpus: Gpus, attempt: int, last_pid: int | None) -> GpuVerdict:
        try:
            found = await gpus.call_driver(gpus.list_gpus)
        except TimeoutError:
            why = f"NVIDIA's driver has not answered for {ANSWERS_WITHIN_S:g} s; restart the host"
            return GpuVerdict(unusable_because=why)
        state_dir, name = self._services.state_dir, self._config.name
        standby = self._standby.pid if self._standby is not None else None
        holders = {pid for each in found for pid in each.pids} - {standby}
        mine = {pid for pid in holders if pid == last_pid or marks.is_of_program(marks.read_mark(pid), state_dir, name)}
        least = self._config.job.replicas_min if self._config.job is not None else None
        return judge_gpus(found, gpus.seen_uuids, visible_to(self._config.environment, os.environ), mine, least)


def visible_to(own: Mapping[str, str], inherited: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES as a program has it."""
    return own.get("CUDA_VISIBLE_DEVICES", inherited.get("CUDA_VISIBLE_DEVICES"))
