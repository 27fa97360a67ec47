"""Before an attempt of a job starts: its GPUs have to be free of the last one, and in order."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.gpus.verdict import GpuVerdict, judge_gpus
from supervisor.host.gpu_guard.client import ANSWERS_WITHIN_S, HelperHangs
from supervisor.host.processes import marks
from supervisor.host.processes.environments import LOOP_LIMIT_S
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.gpus.guard import GpuGuard, GpuLook

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
        return self._config.job is not None and gpus is not None and gpus.is_started

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
            try:
                verdict = self._judge(await gpus.look(), last_pid)
            except HelperHangs as error:
                return self._judge_unasked(gpus, str(error))
            if verdict.waits_because is None or loop.time() >= until:
                return verdict
            await asyncio.sleep(AGAIN_S)

    def take_refusal(self, attempt: int) -> str | None:
        """Why the program itself is wrong and this attempt is not to begin; None if nothing says so."""
        gpus = self._services.gpus
        return gpus.take_verdict(self._config.name, attempt) if gpus is not None else None

    def _judge_unasked(self, gpus: GpuGuard, why: str) -> GpuVerdict:
        """The driver can't be asked, which does not keep a job from training; what is known of before counts."""
        verdict = self._judge(gpus.last_look(), None)
        if verdict.unusable_because is not None:
            return verdict
        return replace(verdict, waits_because=f"not known whether they are free: {why}")

    def log_verdict(self, attempt: int, verdict: GpuVerdict) -> None:
        """Says what is wrong with the GPUs of an attempt that starts, if anything is."""
        if verdict.unusable_because is not None:
            self._log.error("gpu.unfit", attempt=attempt, why=verdict.unusable_because)
            return
        if verdict.waits_because is not None:
            self._log.warning("gpu.not_free", attempt=attempt, why=verdict.waits_because)
        if verdict.without is not None:
            self._log.warning("gpu.left_out", attempt=attempt, why=verdict.without, visible=verdict.visible)

    def _judge(self, look: GpuLook, last_pid: int | None) -> GpuVerdict:
        if look.unusable is not None:
            return GpuVerdict(unusable_because=look.unusable)
        standby = self._standby.pid if self._standby is not None else None
        holders = {pid for gpu in look.gpus for pid in gpu.pids} - {standby}
        mine = {pid for pid in holders if pid == last_pid or self._is_own(pid)}
        least = self._config.job.replicas_min if self._config.job is not None else None
        return judge_gpus(look.gpus, look.seen, visible_to(self._config.environment, os.environ), mine, least)

    def _is_own(self, pid: int) -> bool:
        mark = marks.read_mark(pid, LOOP_LIMIT_S)
        return marks.is_of_program(mark, self._services.state_dir, self._config.name)


def visible_to(own: Mapping[str, str], inherited: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES as a program has it."""
    return own.get("CUDA_VISIBLE_DEVICES", inherited.get("CUDA_VISIBLE_DEVICES"))
