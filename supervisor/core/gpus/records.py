"""What has to be known of GPUs after the daemon: which are left out and why, and their faults of the last weeks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from supervisor.core.gpus.faults import Remedy
from supervisor.protocol.wire.limits import Items, Range, Text

WEEKS_S = 28 * 86400.0  # a GPU that fails now and then is found by counting over weeks
MAX_FAULTS = 200  # of each GPU
MAX_GPUS = 1024  # that were ever seen
FORMAT = 1

Name = Annotated[str, Text(300)]
WallTime = Annotated[float, Range(0, 1e11)]


@dataclass(frozen=True, slots=True)
class PastFault:
    """One incident. `program`, `step`: that used the GPU, and where it stood."""

    wall_at: WallTime
    fault: Annotated[str, Text(40)]
    program: Name | None = None
    step: Annotated[int, Range(0, 1 << 62)] | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a GPU is not used. `is_state`: until NVML says otherwise. `is_urgent`: nothing can run on it.

    `is_asked`: the operator's hook was run for it, or there is none.
    """

    fault: Annotated[str, Text(40)]
    text: Annotated[str, Text(1000)]
    since_wall_at: WallTime
    remedy: Remedy | None = None
    is_state: bool = False
    is_urgent: bool = True
    is_asked: bool = False
    programs: Annotated[tuple[Name, ...], Items(1000)] = ()


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """One GPU. `uuid` is "" while only its address is known."""

    uuid: Annotated[str, Text(96)]
    address: Annotated[str, Text(32)] = ""
    name: Annotated[str, Text(96)] = ""
    index: Annotated[int, Range(0, 1 << 16)] | None = None
    left_out: LeftOut | None = None
    faults: Annotated[tuple[PastFault, ...], Items(MAX_FAULTS)] = ()


@dataclass(frozen=True, slots=True)
class GuardRecords:
    """All GPUs, by id or else address. `boot_id`: of the host when this was written; `log_number`: of the last record
    of the kernel's log that was judged."""

    gpus: Annotated[Mapping[Annotated[str, Text(96)], GpuRecord], Items(MAX_GPUS)] = field(default_factory=dict)
    boot_id: Annotated[str, Text(64)] = ""
    log_number: Annotated[int, Range(0, 1 << 62)] | None = None
    format: int = FORMAT
