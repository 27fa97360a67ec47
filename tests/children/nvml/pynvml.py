"""Stands in for nvidia-ml-py: GPUs as the JSON file that NVML_STATE names has them, each time it is asked.

A list of {"uuid", "pids", "error": a number of NVML's, "failed": row remapping failed}. Errors as nvidia-ml-py's:
an NVMLError with `value`.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
TEXTS = {3: "Not Supported", 15: "GPU is lost", 16: "GPU requires restart"}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(TEXTS[value])
        self.value = value


def _state() -> list[dict]:
    return json.loads(Path(os.environ["NVML_STATE"]).read_text())


def _whole(device: dict) -> dict:
    if device.get("error"):
        raise NVMLError(device["error"])
    return device


def nvmlInit() -> None: ...


def nvmlDeviceGetCount() -> int:
    return len(_state())


def nvmlDeviceGetHandleByIndex(number: int) -> dict:
    return _state()[number]


def nvmlDeviceGetUUID(device: dict) -> str:
    return device["uuid"]


def nvmlDeviceGetComputeRunningProcesses(device: dict) -> list:
    return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in _whole(device).get("pids", [])]


def nvmlDeviceGetRemappedRows(device: dict) -> tuple:
    if "failed" not in device:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return 0, 1, False, device["failed"]
