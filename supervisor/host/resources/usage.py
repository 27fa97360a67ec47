"""How much CPU time and memory trees of processes use, and how much memory is left on the host."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The resources that a tree of processes uses.

    `cpu_s`: since their start, with children that ended and were waited for. `memory_bytes`: resident; memory that
    processes share counts once for each of them.
    """

    processes: int
    cpu_s: float
    memory_bytes: int
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    session: int
    cpu_s: float
    memory_bytes: int


def usage_of_trees(leaders: Collection[int]) -> dict[int, ResourceUsage]:
    """The resources used by each live leader, its descendants and its session, by the leader's pid.

    Reads all of /proc once, for any number of leaders: call it from a thread.
    """
    stats = dict(_stats())
    owners: dict[int, int | None] = {}
    trees: dict[int, list[int]] = {}
    for pid in stats:
        owner = _owner(pid, stats, leaders, owners)
        if owner is not None:
            trees.setdefault(owner, []).append(pid)
    return {
        leader: ResourceUsage(
            processes=len(pids),
            cpu_s=sum(stats[pid].cpu_s for pid in pids),
            memory_bytes=sum(stats[pid].memory_bytes for pid in pids),
            pids=frozenset(pids),
        )
        for leader, pids in trees.items()
    }


def _owner(pid: int, stats: dict[int, _Stat], leaders: Collection[int], owners: dict[int, int | None]) -> int | None:
    """The leader that a process belongs to: itself, its session's, or its parent's."""
    climbed: list[int] = []
    owner: int | None = None
    while pid in stats:
        if pid in owners:
            owner = owners[pid]
            break
        climbed.append(pid)
        owners[pid] = None  # ends a cycle of parents, possible as /proc is not read in one moment
        if pid in leaders:
            owner = pid
            break
        if stats[pid].session in leaders:
            owner = stats[pid].session
            break
        pid = stats[pid].parent
    owners.update(dict.fromkeys(climbed, owner))
    return owner


def _stats() -> Iterator[tuple[int, _Stat]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            content = (folder / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        fields = content[content.rindex(b")") + 2 :].split()  # from field 3 of proc(5) on; the name may hold anything
        ticks = sum(map(int, fields[11:15]))  # utime, stime, and those of children that were waited for
        yield (
            int(folder.name),
            _Stat(int(fields[1]), int(fields[3]), ticks / TICKS_PER_S, max(0, int(fields[21])) * PAGE_BYTES),
        )


def parent_and_session(pid: int) -> tuple[int, int] | None:
    """The parent of a process and the leader of its session; None if it is gone. Reads what no stuck process locks."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()
    return int(fields[1]), int(fields[3])


def available_memory(groups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> tuple[int, int]:
    """Free and total bytes under the tightest limit: of the host, or of a control group (v2) above this process."""
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
