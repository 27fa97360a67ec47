"""Before an attempt of a job starts: its GPUs have to be free of the last one, and in order."""

import asyncio
import os
from collections.abc import Mapping

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.fleet.gpus import GpuVerdict, judge_gpus
from supervisor.host.processes import marks
from supervisor.host.resources.gpus import ANSWERS_WITHIN_S, Gpus
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder

AGAIN_S = 0.2  # between two looks; the driver gives memory back within a second or two of the process' end


class GpuGate:
    """Looks at the GPUs of one program. `standby`: has what is to be its next attempt, and may hold memory."""

    __slots__ = ("_config", "_log", "_services", "_standby")

    def __init__(
        self, config: ProgramConfig, services: Services, standby: StandbyHolder | None, log: FilteringBoundLogger
    ) -> None:
        self._config = config
        self._services = services
        self._standby = standby
        self._log = log

    @property
    def applies(self) -> bool:
        """Whether a start has to look at GPUs at all."""
        gpus = self._services.gpus
        return self._config.job is not None and gpus is not None and gpus.is_connected

    @property
    def longest_wait_s(self) -> float:
        """How long a start may wait: `gpu_wait`, and the driver's last answer."""
        return (self._config.job.gpu_wait if self._config.job is not None else 0.0) + ANSWERS_WITHIN_S

    async def wait_until_fit(self, last_pid: int | None) -> GpuVerdict:
        """Waits, at most `gpu_wait`, for the memory of the last attempt's process; gives the last verdict."""
        job, gpus, loop = self._config.job, self._services.gpus, asyncio.get_running_loop()
        assert job is not None and gpus is not None  # it applies
        until = loop.time() + job.gpu_wait
        while True:
            verdict = await self._judge(gpus, last_pid)
            if verdict.waits_because is None or loop.time() >= until:
                return verdict
            await asyncio.sleep(AGAIN_S)

    def log_verdict(self, attempt: int, verdict: GpuVerdict) -> None:
        """Says what is wrong with the GPUs of an attempt that starts, if anything is."""
        if verdict.unusable_because is not None:
            self._log.error("gpu.unfit", attempt=attempt, why=verdict.unusable_because)
            return
        if verdict.waits_because is not None:
            self._log.warning("gpu.not_free", attempt=attempt, why=verdict.waits_because)
        if verdict.without is not None:
            self._log.warning("gpu.left_out", attempt=attempt, why=verdict.without, visible=verdict.visible)

    async def _judge(self, gpus: Gpus, last_pid: int | None) -> GpuVerdict:
        try:
            present = await gpus.call_driver(gpus.list_gpus)
        except TimeoutError:
            why = f"NVIDIA's driver has not answered for {ANSWERS_WITHIN_S:g} s; restart the host"
            return GpuVerdict(unusable_because=why)
        state_dir, name = self._services.state_dir, self._config.name
        standby = self._standby.pid if self._standby is not None else None
        holders = {pid for gpu in present for pid in gpu.pids} - {standby}
        mine = {pid for pid in holders if pid == last_pid or marks.is_of_program(marks.read_mark(pid), state_dir, name)}
        least = self._config.job.replicas_min if self._config.job is not None else None
        return judge_gpus(present, gpus.seen_uuids, visible_to(self._config.environment, os.environ), mine, least)


def visible_to(own: Mapping[str, str], inherited: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES as a program has it."""
    return own.get("CUDA_VISIBLE_DEVICES", inherited.get("CUDA_VISIBLE_DEVICES"))
