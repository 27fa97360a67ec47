"""How much memory is left on the host, or under the control group that limits this process most; what it holds, and
how many threads go through it.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MAX_THREADS = 8  # on a large host; more than two were not measured
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class _Names:
    """Files of a control group, and the line of its memory.stat that counts the cache which the kernel gives back."""

    limit: str
    used: str
    cache: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Names("memory.max", "memory.current", "inactive_file")


def available_memory(groups: Path = CGROUPS, own: Path = OWN_CGROUP, host: Path = MEMINFO) -> tuple[int, int]:
    """Free and total bytes under the tightest limit: of the host, or of a control group (v1 or v2) above this process.

    Page cache that the kernel would give back counts as free. Raises OSError or ValueError if the host does not say.
    """
    fields = dict(line.split(":", 1) for line in host.read_text().splitlines())
    available, total = (int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
    host_total = total
    for folder, names in _limiting_folders(groups, own):
        limit, used = _number(folder / names.limit), _number(folder / names.used)
        if limit is None or used is None or limit >= host_total:
            continue
        left = max(0, limit - used + _reclaimable(folder, names))
        if left < available:
            available, total = left, limit
    return available, total


def resident_bytes() -> int:
    """What this process holds itself. Raises OSError."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _limiting_folders(groups: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """The control groups of this process and above it."""
    try:
        lines = os.fsdecode(own.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = (groups / "memory", _VERSION_1) if controllers else (groups, _VERSION_2)
        folder = base / inside.lstrip("/")
        for limiting in (folder, *(parent for parent in folder.parents if parent.is_relative_to(base))):
            yield limiting, names


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def _reclaimable(folder: Path, names: _Names) -> int:
    """The file cache that the kernel would give back."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == names.cache and pair[1].isdecimal())


def memory_threads() -> int:
    """How many threads read or copy what lies in memory side by side: the processors that this process may use."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)
