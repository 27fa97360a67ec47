"""Faults and GPUs in words, for people."""

from collections.abc import Mapping

from supervisor.core.gpus.faults import Fault
from supervisor.core.gpus.records import GpuRecord


def describe(fault: Fault, detail: str = "") -> str:
    """The fault in words, without the GPU: `Xid 79: it fell off the bus`."""
    name = f"Xid {fault.key.removeprefix('xid-')}: {fault.meaning}" if fault.key.startswith("xid-") else fault.meaning
    more = f" ({detail})" if detail and not fault.key.startswith("xid-") else ""
    return f"{name}{more}"


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
