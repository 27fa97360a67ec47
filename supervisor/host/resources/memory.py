"""How much memory is left for others, on the host and in the control group that this process is in."""

import os
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")


def available_and_total(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> tuple[int, int]:
    """Bytes; of the tightest limit of the host and of every control group (v2) above this process."""
    host = psutil.virtual_memory()
    available, total = int(host.available), int(host.total)
    for folder in _folders(groups, own):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None or limit >= host.total:
            continue
        left = max(0, limit - used + _reclaimable(folder))
        if left < available:
            available, total = left, limit
    return available, total


def _folders(groups: Path, own: Path) -> list[Path]:
    try:
        lines = os.fsdecode(own.read_bytes()).splitlines()
    except OSError:
        return []
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    if inside is None:
        return []
    folder = groups / inside.lstrip("/")
    return [folder, *(each for each in folder.parents if each == groups or groups in each.parents)]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    """What the kernel holds for files and would give back."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "inactive_file" and pair[1].isdecimal())
