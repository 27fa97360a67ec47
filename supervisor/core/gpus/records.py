"""What has to be known of GPUs after the daemon: which are left out and why, and their faults of the last weeks."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(slots=True)
class GpuRecords:
    """The records while the daemon runs. `content`: what has to be stored; `revision` grows with each change of it."""

    content: GuardRecords = field(default_factory=GuardRecords)
    revision: int = 0

    @property
    def gpus(self) -> Mapping[str, GpuRecord]:
        """All GPUs, by id or else address."""
        return self.content.gpus

    def left_out(self, key: str) -> LeftOut | None:
        """Why a GPU is left out; None if it is not."""
        record = self.gpus.get(key)
        return None if record is None else record.left_out

    def key_at(self, address: str) -> str | None:
        """The key of the GPU at an address; None if there is no record of it."""
        return next((key for key, record in self.gpus.items() if record.address == address), None)

    def on_named(self, address: str, uuid: str) -> None:
        """It is known now which GPU is at an address."""
        if (record := self.gpus.get(address)) is not None and uuid not in self.gpus:
            self._replace({key: its for key, its in self.gpus.items() if key != address})
            self.store(uuid, replace(record, uuid=uuid))
        elif uuid not in self.gpus or self.gpus[uuid].address != address:
            self.store(uuid, replace(self.gpus.get(uuid, GpuRecord(uuid)), address=address))

    def store(self, key: str, record: GpuRecord) -> None:
        """This is known of a GPU now."""
        self._replace({**self.gpus, key: record})

    def note_log_number(self, number: int) -> None:
        """The kernel's log has been judged as far as this record."""
        self.content = replace(self.content, log_number=number)
        self.revision += 1

    def _replace(self, gpus: Mapping[str, GpuRecord]) -> None:
        if gpus != self.gpus:
            self.content = replace(self.content, gpus=gpus)
            self.revision += 1


def last_fault(record: GpuRecord) -> tuple[float, str] | None:
    """When the last fault of a GPU happened, and what it was, in words; None if there was none in weeks."""
    if not record.faults:
        return None
    last = record.faults[-1]
    number = last.fault.removeprefix("xid-")
    return last.wall_at, f"Xid {number}" if number != last.fault else last.fault


def gpu_words(records: Mapping[str, GpuRecord], uuid: str, address: str) -> str:
    """A GPU for people: `GPU 1 (GPU-bbbb)`."""
    record = records.get(uuid)
    number = "" if record is None or record.index is None else f" {record.index}"
    return f"GPU{number} ({uuid or address or 'no id'})"
