"""Asks NVML about GPUs, through nvidia-ml-py. Every call may hang; `on_call` is told before each."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from supervisor.core.failures.gpu_activity import GpuLoad
from supervisor.core.gpus.health import MAX_GPUS, MAX_PIDS, GpuHealth
from supervisor.core.gpus.xid import normal_address
from supervisor.host.gpu_guard.messages import MAX_HOLDERS, GpuList
from supervisor.protocol.wire.codec import fit_record

RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older releases of nvidia-ml-py do not name
CORRECTED, UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_*
VOLATILE = 0  # NVML_VOLATILE_ECC: since the driver was loaded, or the GPU was reset
LINKS = 18  # NVML_NVLINK_MAX_LINKS
LINK_COUNTERS = 4  # replay, recovery, CRC of flits and of data
LOST, RESET_REQUIRED = 15, 16
NOT_NVIDIA_ML_PY = "nvidia-ml-py is not installed (the extra nvml)"
AGAIN_S = 60.0  # between two tries to connect
KERNEL_LIST = Path("/proc/driver/nvidia/gpus")

Value = TypeVar("Value")


class Unavailable(Exception):
    """NVML can't be used. `error`: its number, 0 if nvidia-ml-py is missing."""

    def __init__(self, text: str, error: int = 0) -> None:
        super().__init__(text)
        self.error = error


class Nvml:
    """The library, connected to the driver by the first question. For one thread."""

    def __init__(self, on_call: Callable[[str], None]) -> None:
        self._on_call = on_call
        self._library: Any = None
        self._is_open = False
        self._failed: Unavailable | None = None
        self._again_at = 0.0
        self._links: dict[int, list[int]] = {}  # of each GPU, those that exist

    def _call(self, name: str, *arguments: Any) -> Any:
        self._on_call(name)
        try:
            return getattr(self._library, name)(*arguments)
        finally:
            self._on_call("")

    def _open(self) -> None:
        """Raises Unavailable. Connects seldom: repeated connecting has hung drivers."""
        if self._is_open:
            return
        if self._failed is not None and time.monotonic() < self._again_at:
            raise self._failed
        try:
            self._connect()
        except Unavailable as error:
            self._failed, self._again_at = error, time.monotonic() + AGAIN_S
            raise
        self._is_open = True

    def _connect(self) -> None:
        if self._library is None:
            try:
                self._library = import_module("pynvml")
            except ImportError as error:
                raise Unavailable(NOT_NVIDIA_ML_PY) from error
        try:
            self._call("nvmlInit")
        except self._library.NVMLError as error:
            raise Unavailable(str(error), error.value) from error

    def list_gpus(self, *, with_pids: bool) -> GpuList:
        """How all GPUs are; without NVML, which there are."""
        try:
            self._open()
            count = min(self._call("nvmlDeviceGetCount"), MAX_GPUS)
        except Unavailable as error:
            return GpuList(gpus=list_of_kernel(), error=error.error, why=str(error), is_from_nvml=False)
        except self._library.NVMLError as error:
            return GpuList(error=error.value, why=f"the driver reports: {error}")
        return GpuList(gpus=tuple(fit_record(self._look(number, with_pids)) for number in range(count)))

    def memory_by_pid(self) -> Mapping[str, int] | None:
        """Bytes by process id, summed over all GPUs; None if that is not known."""
        held: Counter[str] = Counter()
        try:
            self._open()
            for number in range(min(self._call("nvmlDeviceGetCount"), MAX_GPUS)):
                device = self._call("nvmlDeviceGetHandleByIndex", number)
                for process in self._call("nvmlDeviceGetComputeRunningProcesses", device):
                    held[str(process.pid)] += process.usedGpuMemory or 0  # None in a container without permission
        except Unavailable:
            return None
        except self._library.NVMLError:
            return None
        return dict(held.most_common(MAX_HOLDERS))

    def loads(self) -> tuple[GpuLoad, ...]:
        """What each GPU has done in the last second; without those that don't tell."""
        try:
            self._open()
            count = min(self._call("nvmlDeviceGetCount"), MAX_GPUS)
        except Unavailable:
            return ()
        except self._library.NVMLError:
            return ()
        return tuple(load for number in range(count) if (load := self._load(number)) is not None)

    def _load(self, number: int) -> GpuLoad | None:
        known: dict[str, Any] = {}
        try:
            device = self._call("nvmlDeviceGetHandleByIndex", number)
            uuid = _text(self._call("nvmlDeviceGetUUID", device))
            rates = self._call("nvmlDeviceGetUtilizationRates", device)
        except self._library.NVMLError:
            return None
        self._try(known, "power_mw", lambda: self._call("nvmlDeviceGetPowerUsage", device))
        return fit_record(GpuLoad(uuid, rates.gpu, rates.memory, **known))

    def _look(self, number: int, with_pids: bool) -> GpuHealth:
        known: dict[str, Any] = {"index": number}
        error = self._try(known, "error", lambda: self._read_identity(number, known))
        device = known.pop("device", None)
        if device is None:
            return GpuHealth(**known)
        self._try(known, "recovery", lambda: self._recovery(device))
        self._try(
            known, "ecc_corrected", lambda: self._call("nvmlDeviceGetTotalEccErrors", device, CORRECTED, VOLATILE)
        )
        self._try(
            known, "ecc_uncorrected", lambda: self._call("nvmlDeviceGetTotalEccErrors", device, UNCORRECTED, VOLATILE)
        )
        rows: dict[str, Any] = {}
        self._try(known, "", lambda: rows.update(rows=self._call("nvmlDeviceGetRemappedRows", device)))
        if "rows" in rows:
            known["remap_pending"], known["remap_failed"] = bool(rows["rows"][2]), bool(rows["rows"][3])
        self._try(known, "slow_bits", lambda: self._slow_bits(device))
        self._try(known, "nvlink_errors", lambda: self._nvlink_errors(number, device))
        if with_pids and not error:
            self._try(known, "pids", lambda: self._pids(device))
        return GpuHealth(**known)

    def _try(self, known: dict[str, Any], name: str, ask: Callable[[], Any]) -> bool:
        """Keeps the answer to one question; whether NVML refused. What is not supported stays unknown, and of errors
        one that says something about the GPU is kept."""
        try:
            value = ask()
        except self._library.NVMLError as error:
            if name == "error" or (error.value in (LOST, RESET_REQUIRED) and not known.get("error")):
                known["error"], known["error_text"] = error.value, str(error)
            return True
        if name and name != "error":
            known[name] = value
        return False

    def _read_identity(self, number: int, known: dict[str, Any]) -> None:
        device = self._call("nvmlDeviceGetHandleByIndex", number)
        known["device"] = device
        known["uuid"] = _text(self._call("nvmlDeviceGetUUID", device))
        known["address"] = normal_address(_text(self._call("nvmlDeviceGetPciInfo", device).busId))
        known["name"] = _text(self._call("nvmlDeviceGetName", device))

    def _pids(self, device: Any) -> tuple[int, ...]:
        processes = self._call("nvmlDeviceGetComputeRunningProcesses", device)
        return tuple(sorted({process.pid for process in processes}))[:MAX_PIDS]

    def _recovery(self, device: Any) -> Any:
        (field,) = self._call("nvmlDeviceGetFieldValues", device, [RECOVERY_ACTION])
        action: int = field.value.uiVal
        return action if field.nvmlReturn == 0 else None

    def _slow_bits(self, device: Any) -> Any:
        try:
            return self._call("nvmlDeviceGetCurrentClocksEventReasons", device)
        except (self._library.NVMLError, AttributeError):  # an older driver, or an older release of the package
            return self._call("nvmlDeviceGetCurrentClocksThrottleReasons", device)

    def _nvlink_errors(self, number: int, device: Any) -> int | None:
        if not self._links.get(number):  # of none it is asked again: links may come up after the daemon
            self._links[number] = [link for link in range(LINKS) if self._is_link(device, link)]
        links = self._links[number]
        if not links:
            return None
        counts: list[int] = [
            self._call("nvmlDeviceGetNvLinkErrorCounter", device, link, counter)
            for link in links
            for counter in range(LINK_COUNTERS)
        ]
        return sum(counts)

    def _is_link(self, device: Any, link: int) -> bool:
        try:
            return bool(self._call("nvmlDeviceGetNvLinkState", device, link))
        except self._library.NVMLError:
            return False


def list_of_kernel(folder: Path = KERNEL_LIST) -> tuple[GpuHealth, ...]:
    """The GPUs for which the driver has a folder, in the order of their addresses, which is NVML's too."""
    gpus = []
    try:
        places = sorted(folder.iterdir())[:MAX_GPUS]
    except OSError:
        return ()
    for number, place in enumerate(places):
        try:
            words = dict(line.partition(":")[::2] for line in (place / "information").read_text()[:4000].splitlines())
            address = normal_address(place.name)
        except (OSError, ValueError):
            continue
        uuid = words.get("GPU UUID", "").strip()
        name = words.get("Model", "").strip()
        if uuid.startswith("GPU-") and "?" not in uuid:
            gpus.append(fit_record(GpuHealth(number, uuid, address, name)))
    return tuple(gpus)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
