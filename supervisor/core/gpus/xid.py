"""Reads what NVIDIA's driver writes into the kernel's log about a GPU in trouble.

The lines differ between drivers: `NVRM: Xid (PCI:0000:c5:00): 31, pid=2512, name=python3.10, Ch 00000008, ...`, without
`PCI:`, with an instance under MIG (`0000:01:00 GPU-I:05`), without a pid or with `pid='<unknown>'`. A GPU can fall off
the bus without any Xid; that counts as the Xid that stands for it, 79.
"""

import re
from dataclasses import dataclass

FELL_OFF = 79
RECOVERY_CHANGED = 154
MAX_TEXT = 300  # characters of a line that are kept

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<address>{_ADDRESS})(?: (?P<part>[^)]{{1,40}}))?\): (?P<number>\d{{1,5}})\b"
)
_PID = re.compile(r"\bpid=(\d{1,10})\b")
_ACTION = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]*\) to 0x([0-9a-fA-F]{1,8})\b")
_NAMED = re.compile(rf"NVRM: GPU at PCI:({_ADDRESS}): (GPU-[0-9a-fA-F-]{{8,80}})")
_GPU = re.compile(rf"NVRM: (?:The NVIDIA )?GPU ({_ADDRESS})")
_OFF = "fallen off the bus"
_SEVERITY = re.compile(r"\b(Fatal|Nonfatal)\b")


@dataclass(frozen=True, slots=True)
class XidLine:
    """The driver reports an error of the GPU at `address` (0000:c5:00.0). `pid`: of the process that it names.

    `recovery`: of Xid 154, what the GPU now needs (`faults.RECOVERY`). `is_fatal`: what an NVLink error says of itself;
    None if it says nothing.
    """

    number: int
    address: str
    pid: int | None = None
    recovery: int | None = None
    is_fatal: bool | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class GpuNamed:
    """The driver says which GPU is at an address."""

    address: str
    uuid: str


class XidReader:
    """Reads one line after another; the driver may cut a message about a GPU that is gone into several."""

    def __init__(self) -> None:
        self._last_address: str | None = None

    def read(self, line: str) -> XidLine | GpuNamed | None:
        """What the line says of a GPU; None if that is nothing."""
        if "NVRM:" not in line:
            return None
        if (named := _NAMED.search(line)) is not None:
            return GpuNamed(normal_address(named[1]), named[2])
        if (xid := _XID.search(line)) is not None:
            return _read_xid(line, xid)
        if (gpu := _GPU.search(line)) is not None:
            self._last_address = normal_address(gpu[1])
        if _OFF in line and self._last_address is not None:
            return XidLine(FELL_OFF, self._last_address, text=line[:MAX_TEXT])
        return None


def _read_xid(line: str, xid: re.Match[str]) -> XidLine:
    rest = line[xid.end() :]
    pid, action, severity = _PID.search(rest), _ACTION.search(rest), _SEVERITY.search(rest)
    return XidLine(
        number=int(xid["number"]),
        address=normal_address(xid["address"]),
        pid=int(pid[1]) if pid is not None and 0 < int(pid[1]) < 1 << 31 else None,
        recovery=int(action[1], 16) if action is not None else None,
        is_fatal=severity[1] == "Fatal" if severity is not None else None,
        text=line[:MAX_TEXT],
    )


def normal_address(address: str) -> str:
    """A PCI address as in /sys: 0000:c5:00.0. NVML has a domain of eight digits, the kernel's log no function."""
    rest, _, function = address.lower().partition(".")
    *domain, bus, device = rest.split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus}:{device}.{function or '0'}"
