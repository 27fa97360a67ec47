"""What NVML says of each GPU, and which faults that means: states that last, and counters that have grown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from supervisor.core.gpus import faults
from supervisor.core.gpus.faults import Fault
from supervisor.core.gpus.verdict import Gpu
from supervisor.protocol.wire.limits import Items, Range, Text

LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18  # NVML's errors; all others are no verdict about a GPU
CORRECTED_A_MINUTE = 100.0  # a few a day are normal; a GPU with thousands a second slows all that is done with it
SLOW_BITS = 0xE8  # hardware slowdown, heat (software, hardware), power brake; not the power cap, which is normal
SLOW_LOOKS = 3  # in a row: the first of these bits is also set for a moment when clocks change
MAX_GPUS = 32  # of a host; with this many processes each they fit into one message
MAX_PIDS = 64

Count = Annotated[int, Range(0, 1 << 62)]


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """One GPU as NVML reports it; None where it does not support a question.

    `error`: NVML's error that kept it from answering. `recovery`: field 230. Errors of memory since the driver was
    loaded. `slow_bits`: reasons for lower clocks. `pids`: processes that hold its memory, only where they were asked.
    """

    index: Annotated[int, Range(0, 1 << 16)]
    uuid: Annotated[str, Text(96)] = ""
    address: Annotated[str, Text(32)] = ""
    name: Annotated[str, Text(96)] = ""
    error: Annotated[int, Range(0, 1 << 31)] = 0
    error_text: Annotated[str, Text(200)] = ""
    recovery: Annotated[int, Range(0, 1 << 31)] | None = None
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slow_bits: Count | None = None
    nvlink_errors: Count | None = None
    pids: Annotated[tuple[Annotated[int, Range(0, 1 << 31)], ...], Items(MAX_PIDS)] = ()


def state_fault(gpu: GpuHealth) -> Fault | None:
    """The worst fault that lasts, the recovery action first; None if the GPU may be used."""
    if gpu.recovery and (fault := faults.recovery_fault(gpu.recovery)) is not None:
        return fault
    if gpu.error == LOST:
        return faults.LOST
    if gpu.error == RESET_REQUIRED:
        return faults.RESET_REQUIRED
    return faults.REMAP_FAILED if gpu.remap_failed else None


def is_over(key: str, gpu: GpuHealth) -> bool:
    """Whether NVML says that the state of this key has ended; not knowing does not end it."""
    if state_fault(gpu) is not None or gpu.error:
        return False
    if key.startswith("recovery-"):
        return gpu.recovery == 0
    return key != faults.REMAP_FAILED.key or gpu.remap_failed is False


def as_gpu(gpu: GpuHealth, left_out: str | None) -> Gpu:
    """The GPU as a start looks at it. `left_out`: why it is to be left out, if it is.

    What the driver itself refuses is in trouble whatever was decided about it.
    """
    trouble = left_out
    if trouble is None and gpu.error in (LOST, RESET_REQUIRED):
        trouble = gpu.error_text or (faults.LOST if gpu.error == LOST else faults.RESET_REQUIRED).meaning
    if trouble is None and gpu.error and not gpu.uuid:
        trouble = gpu.error_text or f"error {gpu.error} of the driver"
    if trouble is None and gpu.remap_failed:
        trouble = faults.REMAP_FAILED.meaning
    return Gpu(gpu.index, gpu.uuid, frozenset(gpu.pids), trouble)


@dataclass(slots=True)
class HealthTrail:
    """What was seen of all GPUs before, to tell what has grown."""

    _last: dict[str, tuple[float, GpuHealth]] = field(default_factory=dict)
    _slow: dict[str, int] = field(default_factory=dict)

    def compare(self, gpu: GpuHealth, wall_at: float) -> Iterator[tuple[Fault, str]]:
        """What has become worse since the last look, with words for it."""
        before = self._last.get(gpu.uuid)
        self._last[gpu.uuid] = (wall_at, gpu)
        is_slow = gpu.slow_bits is not None and bool(gpu.slow_bits & SLOW_BITS)
        self._slow[gpu.uuid] = self._slow.get(gpu.uuid, 0) + 1 if is_slow else 0
        if self._slow[gpu.uuid] == SLOW_LOOKS:
            yield faults.SLOWDOWN, f"reasons {gpu.slow_bits or 0:#x}"
        if before is None:
            return
        last_at, last = before
        if gpu.remap_pending and last.remap_pending is False:
            yield faults.REMAP_PENDING, ""
        if (more := _growth(last.ecc_uncorrected, gpu.ecc_uncorrected)) > 0:
            yield faults.ECC_UNCORRECTED, f"{more} more"
        if (more := _growth(last.nvlink_errors, gpu.nvlink_errors)) > 0:
            yield faults.NVLINK_ERRORS, f"{more} more"
        minutes = max(wall_at - last_at, 1.0) / 60.0
        if (more := _growth(last.ecc_corrected, gpu.ecc_corrected)) > CORRECTED_A_MINUTE * max(minutes, 1.0):
            yield faults.ECC_CORRECTED, f"{more} more"

    def forget_all_but(self, gpus: Mapping[str, object]) -> None:
        """Forgets what is not listed any more."""
        for uuid in self._last.keys() - gpus.keys():
            del self._last[uuid]
            self._slow.pop(uuid, None)


def _growth(before: int | None, now: int | None) -> int:
    """How much a counter has grown; one that is smaller than before began anew."""
    if now is None or before is None:
        return 0
    return now - before if now >= before else now
