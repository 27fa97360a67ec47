"""Reads what NVIDIA's driver writes into the kernel's log about a GPU in trouble.

The lines differ between drivers: `NVRM: Xid (PCI:0000:c5:00): 31, pid=2512, name=python3.10, Ch 00000008, ...`, without
`PCI:`, with an instance under MIG (`0000:01:00 GPU-I:05`), without a pid or with `pid='<unknown>'`. A GPU can fall off
the bus without any Xid; that counts as the Xid that stands for it, 79.

Other lines of the kernel's hold names that any user of the host chooses: of a process (15 characters, often the first
ones of the line), of the file in which it crashed, of a control group. So a line counts only if it is the driver's from
its beginning on, without a gap as long as such a name.
"""

import re
from dataclasses import dataclass

FELL_OFF = 79
RECOVERY_CHANGED = 154
MAX_TEXT = 300  # characters of a line that are kept

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_BEGIN = r"(?:\[ {0,9}\d{1,9}\.\d{1,6}\] )?NVRM: "  # with a time as dmesg shows it
_XID = re.compile(
    rf"{_BEGIN}Xid \((?:PCI:)?(?P<address>{_ADDRESS})(?: (?P<part>[^)]{{1,40}}))?\): (?P<number>\d{{1,5}})\b"
)
_PID = re.compile(r"\bpid=(\d{1,10})\b")
_ACTION = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]*\) to 0x([0-9a-fA-F]{1,8})\b")
_NAMED = re.compile(rf"{_BEGIN}GPU at PCI:({_ADDRESS}): (GPU-[0-9a-fA-F-]{{8,80}})")
_GPU = re.compile(rf"{_BEGIN}The NVIDIA GPU ({_ADDRESS})")
_OFF = re.compile(
    rf"{_BEGIN}(?:(?:The NVIDIA )?GPU ({_ADDRESS})(?:: GPU| \(PCI ID: [0-9a-fA-F:]{{1,20}}\))? has )?fallen off the bus"
)
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
        if (named := _NAMED.match(line)) is not None:
            return GpuNamed(normal_address(named[1]), named[2])
        if (xid := _XID.match(line)) is not None:
            return _read_xid(line, xid)
        if (gpu := _GPU.match(line)) is not None:
            self._last_address = normal_address(gpu[1])
        if (off := _OFF.match(line)) is not None:
            address = self._last_address if off[1] is None else normal_address(off[1])
            return None if address is None else XidLine(FELL_OFF, address, text=line[:MAX_TEXT])
        return None


def _read_xid(line: str, xid: re.Match[str]) -> XidLine:
    rest = line[xid.end() :]
    pid, action = _PID.search(rest), _ACTION.search(rest)
    severity = _SEVERITY.findall(rest)[-1:]  # the last one, as the name of a process may stand before
    return XidLine(
        number=int(xid["number"]),
        address=normal_address(xid["address"]),
        pid=int(pid[1]) if pid is not None and 0 < int(pid[1]) < 1 << 31 else None,
        recovery=int(action[1], 16) if action is not None else None,
        is_fatal=severity == ["Fatal"] if severity else None,
        text=line[:MAX_TEXT],
    )


def normal_address(address: str) -> str:
    """A PCI address as in /sys: 0000:c5:00.0. NVML has a domain of eight digits, the kernel's log no function."""
    rest, _, function = address.lower().partition(".")
    *domain, bus, device = rest.split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus}:{device}.{function or '0'}"
