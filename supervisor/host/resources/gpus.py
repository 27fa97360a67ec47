"""Asks NVIDIA's driver about GPUs, through nvidia-ml-py, where both are installed."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import structlog

from supervisor.core.fleet.gpus import Gpu
from supervisor.host.blocking_calls import BlockingCalls

DRIVER = Path("/dev/nvidiactl")
ANSWERS_WITHIN_S = 10.0  # a driver in trouble hangs; nvidia-smi takes about a second for eight GPUs

Answer = TypeVar("Answer")

log = structlog.get_logger()


@cache
def load_pynvml() -> Any:
    """The module pynvml, loaded at its first use, as it takes 2 MiB; None if it isn't installed."""
    try:
        return import_module("pynvml")
    except ImportError:  # an optional dependency
        return None


class Gpus:
    """The state of all GPUs. `seen_uuids`: of all GPUs that were ever seen. `load`: loads pynvml."""

    def __init__(self, load: Callable[[], Any] = load_pynvml, answers_within_s: float = ANSWERS_WITHIN_S) -> None:
        self._answers_within_s = answers_within_s
        self.seen_uuids: set[str] = set()
        self._load = load
        self._nvml: Any = None
        self._is_open = False
        self._is_reached = False
        self._reaching = asyncio.Lock()
        self._threads = BlockingCalls()

    async def call_driver(self, question: Callable[[], Answer]) -> Answer:
        """Returns what `connect` or `list_gpus` does, called in a thread that does not delay the daemon's exit.

        Raises TimeoutError after `answers_within_s`; a later call waits until the first has returned.
        """
        return await asyncio.wait_for(self._threads.run(DRIVER, question), self._answers_within_s)

    @property
    def is_connected(self) -> bool:
        """Whether the driver can be asked; a host without one has no NVIDIA GPUs to wait for."""
        return self._is_open

    async def connect_once(self) -> None:
        """Connects before the first job, once: a daemon of plain programs does not load NVIDIA's libraries."""
        async with self._reaching:
            if self._is_reached:
                return
            self._is_reached = True
            try:
                await self.call_driver(self.connect)
            except TimeoutError:
                effect = "jobs start without waiting for free GPUs until the driver answers"
                log.warning("gpu.silent", waited_s=self._answers_within_s, effect=effect)

    def connect(self) -> None:
        """Connects to the driver. Blocks: without nvidia-persistenced this loads it."""
        self._nvml = self._load()
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlInit()
                self._is_open = True

    def list_gpus(self) -> list[Gpu]:
        """All GPUs that the driver still lists. Blocks."""
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            return [Gpu(0, "", trouble=f"the driver reports: {error}")]
        found = [self._one(number) for number in range(count)]
        self.seen_uuids |= {each.uuid for each in found if each.uuid}
        return found

    def _one(self, number: int) -> Gpu:
        nvml, uuid = self._nvml, ""
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            uuid = _text(nvml.nvmlDeviceGetUUID(device))
            pids = frozenset(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device))
            return Gpu(number, uuid, pids, self._permanent_fault(device))
        except nvml.NVMLError as error:
            fatal = error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
            return Gpu(number, uuid, trouble=str(error) if fatal or not uuid else None)

    def _permanent_fault(self, device: Any) -> str | None:
        """Why the GPU can't be used until it is reset or replaced; error counters alone do not say that."""
        try:
            *_, failed = self._nvml.nvmlDeviceGetRemappedRows(device)
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED):
                return str(error)
            return None  # older than Ampere
        return "its memory has errors that could not be repaired (row remapping failed)" if failed else None


class GpuMemory:
    """GPU memory of processes; connects to the driver at the first use. Threads may share it."""

    def __init__(self) -> None:
        self._is_open: bool | None = None

    def bytes_by_pid(self) -> Mapping[int, int] | None:
        """Bytes by process id, summed over all GPUs; None if that is not known."""
        pynvml = load_pynvml()
        if pynvml is None or not self._opens(pynvml):
            return None
        held: Counter[int] = Counter()
        try:
            for number in range(pynvml.nvmlDeviceGetCount()):
                device = pynvml.nvmlDeviceGetHandleByIndex(number)
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
                    held[process.pid] += process.usedGpuMemory or 0  # None in a container without permission
        except pynvml.NVMLError:
            return None
        return held

    def _opens(self, pynvml: Any) -> bool:
        if self._is_open is None:
            try:
                pynvml.nvmlInit()
                self._is_open = True
            except pynvml.NVMLError:
                self._is_open = False  # no driver; that does not change while the daemon runs
        return self._is_open


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
