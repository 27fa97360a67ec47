"""Finds out whether the out-of-memory killer killed a process, from counters that rise before it sends SIGKILL.

The counter of the process's own cgroup is best; where it can't be read, that of the whole host has to do. Counters are
read again every few seconds while the process lives, so that an earlier kill is not taken for its end.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

REFRESH_S = 5.0  # a refresh takes a few reads of /proc
_FILES = frozenset({"memory.events", "memory.oom_control"})
_HOST = Path("/proc/vmstat")
_COUNT = b"\noom_kill "


@dataclass(frozen=True, slots=True)
class OomKillCounter:
    """A file with a line `oom_kill N`, and the number it had. `where`: whose kills it counts, in words."""

    file: Path
    where: str
    count: int

    @property
    def is_of_cgroup(self) -> bool:
        """Whether the file can be one of a control group: its path may come from a damaged ledger."""
        is_plain = self.file.is_absolute() and ".." not in self.file.parts
        return self.file.name in _FILES and is_plain and self.file.is_relative_to("/sys/fs/cgroup")

    def has_risen(self) -> bool | None:
        """Whether the number is higher now; None if the file can't be read any more."""
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
        """Reads the counters again, at most every REFRESH_S: the process lives at `now` (monotonic).

        `moved`: it may have entered another cgroup since, as a starting process does; reads them in any case.
        """
        if not moved and now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        self._counters = tuple(filter(None, (_cgroup_counter(self._pid), _host_counter())))

    @property
    def cgroup_counters(self) -> tuple[OomKillCounter, ...]:
        """Those worth storing for the next daemon; the host's counter also counts the kills of other processes."""
        return tuple(counter for counter in self._counters if counter.file.name in _FILES)

    def evidence(self) -> str | None:
        """Why we think that the out-of-memory killer killed it, in words; None if nothing indicates that."""
        return oom_evidence(self._counters)


def oom_evidence(counters: Iterable[OomKillCounter]) -> str | None:
    """The out-of-memory kills that the counters show; the first that can still be read decides."""
    for counter in counters:
        risen = counter.has_risen()
        if risen is not None:
            return f"{counter.where} counts one more out-of-memory kill" if risen else None
    return None


def _cgroup_counter(pid: int) -> OomKillCounter | None:
    """The counter of the memory cgroup (v1) or the unified one (v2) that the process is in now."""
    try:
        cgroups = Path(f"/proc/{pid}/cgroup").read_bytes()
    except OSError:
        return None
    for file, where in _files_of(cgroups):
        count = _count(file)
        if count is not None:
            return _shared_counter(file, where, count)
    return None


@lru_cache(maxsize=64)  # many programs share a cgroup
def _files_of(cgroups: bytes) -> tuple[tuple[Path, str], ...]:
    """The files that may count kills for a process with this /proc/PID/cgroup, and whose kills these are, in words."""
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
def _shared_counter(file: Path, where: str, count: int) -> OomKillCounter:
    """Processes that saw the same value share one object."""
    return OomKillCounter(file, where, count)


def _host_counter() -> OomKillCounter | None:
    count = _count(_HOST)
    return None if count is None else _shared_counter(_HOST, "this host", count)


def _count(file: Path) -> int | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    _, is_there, rest = (b"\n" + content).partition(_COUNT)
    return int(rest.split(maxsplit=1)[0]) if is_there else None
