"""How much memory is left on the host, or under the control group (v2) that limits this process most; what it holds."""

import os
import resource
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_memory(groups: Path = CGROUPS, own: Path = OWN_CGROUP, host: Path = MEMINFO) -> tuple[int, int]:
    """Free and total bytes under the tightest limit: of the host, or of a control group (v2) above this process.

    Page cache that the kernel would give back counts as free. Raises OSError or ValueError if the host does not say.
    """
    fields = dict(line.split(":", 1) for line in host.read_text().splitlines())
    available, total = (int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
    host_total = total
    for folder in _folders(groups, own):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None or limit >= host_total:
            continue
        left = max(0, limit - used + _reclaimable(folder))
        if left < available:
            available, total = left, limit
    return available, total


def resident_bytes() -> int:
    """What this process holds itself. Raises OSError."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _folders(groups: Path, own: Path) -> list[Path]:
    try:
        lines = os.fsdecode(own.read_bytes()).splitlines()
    except OSError:
        return []
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    if inside is None:
        return []
    folder = groups / inside.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == groups or groups in parent.parents)]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    """The file cache that the kernel would give back."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "inactive_file" and pair[1].isdecimal())
