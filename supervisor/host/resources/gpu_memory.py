"""How much GPU memory processes hold, where NVIDIA's library and its Python binding (nvidia-ml-py) are there."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any


@cache
def binding() -> Any:
    """The module pynvml, loaded when it is first asked for, as it holds 2 MiB; None where it isn't installed."""
    try:
        return import_module("pynvml")
    except ImportError:  # an extra: a host without GPUs needs none of it
        return None


class GpuMemory:
    """NVML, opened when first asked; threads may share it."""

    def __init__(self) -> None:
        self._is_open: bool | None = None

    def by_pid(self) -> Mapping[int, int] | None:
        """Bytes by process id, over all GPUs; None where nobody can tell."""
        pynvml = binding()
        if pynvml is None or not self._opens(pynvml):
            return None
        held: Counter[int] = Counter()
        try:
            for number in range(pynvml.nvmlDeviceGetCount()):
                device = pynvml.nvmlDeviceGetHandleByIndex(number)
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
                    held[process.pid] += process.usedGpuMemory or 0  # None in a container that may not look
        except pynvml.NVMLError:
            return None
        return held

    def _opens(self, pynvml: Any) -> bool:
        if self._is_open is None:
            try:
                pynvml.nvmlInit()
                self._is_open = True
            except pynvml.NVMLError:
                self._is_open = False  # no driver: that does not change while the daemon runs
        return self._is_open
