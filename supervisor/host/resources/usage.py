"""How much CPU time and memory trees of processes use."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
