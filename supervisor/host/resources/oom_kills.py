"""Tells whether the kernel killed a process as memory ran out, from counters that rise before the signal."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

REFRESH_S = 5.0  # a few reads of /proc, so that another's end long ago is not taken for this one's
_FILES = frozenset({"memory.events", "memory.oom_control"})
_HOST = Path("/proc/vmstat")
_COUNT = b"\noom_kill "


@dataclass(frozen=True, slots=True)
class OomKillCounter:
    """A file with a line `oom_kill N`, and what it said. `where`: whose kills it counts."""

    file: Path
    where: str
    count: int

    @classmethod
    def from_stored(cls, file: str, where: str, count: int) -> "OomKillCounter":
        """One that was written down; only of files that a counter may be in."""
        path = Path(file)
        is_known = path.name in _FILES and path.is_absolute() and ".." not in path.parts
        if not is_known or not path.is_relative_to("/sys/fs/cgroup"):
            raise ValueError(f"{file} is no counter of a cgroup")
        return cls(path, where, count)

    def has_risen(self) -> bool | None:
        """Whether it says more now; None if it can't be read any more."""
        now = _count(self.file)
        return None if now is None else now > self.count


class OomWatch:
    """The counters of one process: of its memory cgroup, or, where that can't be read, of the whole host."""

    __slots__ = ("_counters", "_looked_at", "_pid")

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked_at = float("-inf")
        self._counters: tuple[OomKillCounter, ...] = ()
        self.refresh(time.monotonic())

    def refresh(self, now: float, moved: bool = False) -> None:
        """The process was heard at `now` (monotonic), so that what was counted before is not its end.

        `moved`: it may be in another cgroup than at the last look; one that starts it may do that.
        """
        if not moved and now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        self._counters = tuple(filter(None, (_cgroup_counter(self._pid), _host_counter())))

    @property
    def cgroup_counters(self) -> tuple[OomKillCounter, ...]:
        """Those that a later daemon can compare with: the host's count other processes too, and for longer."""
        return tuple(each for each in self._counters if each.file.name in _FILES)

    def evidence(self) -> str | None:
        """What shows that the kernel took it for its memory, in words; None if nothing does."""
        return oom_evidence(self._counters)


def oom_evidence(counters: Iterable[OomKillCounter]) -> str | None:
    """What counters show; the first one that can still be read decides: a cgroup's says more than the host's."""
    for counter in counters:
        risen = counter.has_risen()
        if risen is not None:
            return f"{counter.where} counts one more kill for lack of memory" if risen else None
    return None


def _cgroup_counter(pid: int) -> OomKillCounter | None:
    """Of the memory cgroup (v1), else of the unified one (v2), that the process is in now."""
    try:
        cgroups = Path(f"/proc/{pid}/cgroup").read_bytes()
    except OSError:
        return None
    for file, where in _files_of(cgroups):
        count = _count(file)
        if count is not None:
            return _seen(file, where, count)
    return None


@lru_cache(maxsize=64)  # where programs have no groups of their own, they are all in the same ones
def _files_of(cgroups: bytes) -> tuple[tuple[Path, str], ...]:
    """What may count for a process with this /proc/PID/cgroup, and in whose words."""
    lines = os.fsdecode(cgroups).splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    known = (
        (Path("/sys/fs/cgroup/memory"), paths.get("memory"), "memory.oom_control"),
        (Path("/sys/fs/cgroup"), paths.get(""), "memory.events"),
    )
    return tuple(
        (root / path.lstrip("/") / name, f"its cgroup {path}") for root, path, name in known if path is not None
    )


@lru_cache(maxsize=64)
def _seen(file: Path, where: str, count: int) -> OomKillCounter:
    """One for all processes that saw the same."""
    return OomKillCounter(file, where, count)


def _host_counter() -> OomKillCounter | None:
    count = _count(_HOST)
    return None if count is None else _seen(_HOST, "this host", count)


def _count(file: Path) -> int | None:
    try:
        said = file.read_bytes()
    except OSError:
        return None
    _, is_there, rest = (b"\n" + said).partition(_COUNT)
    return int(rest.split(maxsplit=1)[0]) if is_there else None
