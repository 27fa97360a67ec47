"""A control group (v2) for each attempt, where this daemon was given a part of the tree to divide.

One writer for each group: a group is divided only if whoever manages it said so, by the mark that systemd leaves on
delegated groups, or if it is the root of a container's own tree.
"""

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import structlog

LEAF = "daemon"  # a group with processes can't be divided, so the daemon has one of its own, beside its programs'
PREFIX = "job-"  # no file of the kernel's begins like that
CONTROLLERS = ("memory", "cpu", "pids")
ABOVE = 1.1  # of memory_limit: the look once a second, after which a job may flush, comes before the wall
CPU_PERIOD_US = 100_000  # the kernel's own choice, systemd's too
MARKS = ("user.delegate", "trusted.delegate")  # extended attributes that systemd sets for Delegate=
GONE_WITHIN_S = 2.0  # from the kill of a group to the last of its processes
LOOK_EVERY_S = 0.01

log = structlog.get_logger()


class Cgroups:
    """The group `base`, whose groups below are this daemon's; `controllers`: what it may limit there."""

    def __init__(self, base: Path, controllers: frozenset[str]) -> None:
        self.base = base
        self.controllers = controllers

    def group_of(self, program: str, attempt: int) -> "Cgroup":
        """The group of one attempt, which need not exist."""
        return Cgroup(self.base / f"{PREFIX}{quote(program, safe='')}.a{attempt}")

    def create(self, program: str, attempt: int, memory_bytes: int | None, cores: float | None) -> "Cgroup | None":
        """A new group for one attempt, with these limits; None, and a word in the log, where it can't be made."""
        group = self.group_of(program, attempt)
        try:
            group.path.mkdir(exist_ok=True)
        except OSError as error:
            log.warning("cgroup.not_made", program=program, path=str(group.path), error=error.strerror)
            return None
        for name, value in self._settings(memory_bytes, cores).items():
            try:
                (group.path / name).write_text(value)
            except OSError as error:
                log.warning("cgroup.not_limited", program=program, file=name, error=error.strerror)
        return group

    def _settings(self, memory_bytes: int | None, cores: float | None) -> Mapping[str, str]:
        settings = {}
        if "memory" in self.controllers:
            settings["memory.oom.group"] = "1"  # the whole tree goes, or a data loader dies and its worker waits
            if memory_bytes is not None:
                settings["memory.max"] = str(int(memory_bytes * ABOVE))
        if "cpu" in self.controllers and cores is not None:
            settings["cpu.max"] = f"{max(1000, int(cores * CPU_PERIOD_US))} {CPU_PERIOD_US}"
        return settings

    def remove_empty_groups(self, program: str, below: int) -> None:
        """Removes the empty groups of attempts before `below`."""
        stem = f"{PREFIX}{quote(program, safe='')}.a"
        for path in self.base.glob(f"{PREFIX}*"):
            number = path.name.removeprefix(stem)
            if number != path.name and number.isdecimal() and int(number) < below:
                with contextlib.suppress(OSError):
                    path.rmdir()


class Cgroup:
    """One group."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self.path.is_dir()

    def open_procs(self) -> int:
        """A descriptor through which a process that writes `0` into it enters. Raises OSError."""
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def move_process(self, pid: int) -> bool:
        """Has a process that runs already enter; whether it did. Memory that it holds stays where it is counted."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def kill(self) -> bool:
        """SIGKILL to all that is in it, in one go, whatever they fork meanwhile; False where the kernel can't."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:  # gone; or older than Linux 5.14
            return False
        return True

    def remove_if_empty(self) -> None:
        """What a plain program left behind lives on in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def remove(self) -> bool:
        """Kills what is left in it, then removes it; whether it is gone. Waits at most GONE_WITHIN_S: use a thread."""
        if not self.exists:
            return True
        self.kill()
        until = time.monotonic() + GONE_WITHIN_S
        while True:
            try:
                self.path.rmdir()
                return True
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() >= until:
                    return False
            time.sleep(LOOK_EVERY_S)


def prepare_cgroups() -> Cgroups | None:
    """The part of the tree that is this daemon's to divide, ready for it; None if there is none.

    The daemon moves into a group of its own where it has to. A systemd service whose main process is in the delegated
    group itself is left alone: with workers alive below, systemd could not start the next daemon there
    (DelegateSubgroup=, systemd 254, is for that).
    """
    mount = find_cgroup2_mount(os.fsdecode(Path("/proc/self/mounts").read_bytes()))
    own = parse_own_group(os.fsdecode(Path("/proc/self/cgroup").read_bytes()))
    if mount is None or own is None:
        return None
    here = mount / own.lstrip("/")
    try:
        if is_delegated(here.parent) and here.name == LEAF:
            base = here.parent
        elif is_delegated(here) and not here.name.endswith(".service"):
            base = here
            _settle_in(base)
        elif is_delegated(here.parent) and here != mount:
            base = here.parent
        else:
            return None
        return Cgroups(base, _enabled(base))
    except OSError as error:
        log.warning("cgroup.unusable", path=str(here), error=str(error), effect="limits are watched from outside")
        return None


def find_cgroup2_mount(mounts: str) -> Path | None:
    """Where the unified tree is mounted, by the text of /proc/self/mounts."""
    lines = (line.split() for line in mounts.splitlines())
    return next((Path(fields[1]) for fields in lines if len(fields) > 2 and fields[2] == "cgroup2"), None)


def parse_own_group(text: str) -> str | None:
    """The group of a process in the unified tree, by the text of its /proc/PID/cgroup."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


def is_delegated(group: Path) -> bool:
    """Whether somebody gave this group, with all below it, to whoever runs in it, and it can be written."""
    if not (group / "cgroup.type").exists() or not os.access(group, os.W_OK):  # the host's own root has no type
        return False
    if not os.access(group / "cgroup.procs", os.W_OK) or not os.access(group / "cgroup.subtree_control", os.W_OK):
        return False
    if not (group.parent / "cgroup.procs").exists():  # the root of what a container sees
        return True
    marks = os.listxattr(group)
    return any(mark in marks and os.getxattr(group, mark) == b"1" for mark in MARKS)


def _settle_in(base: Path) -> None:
    """Moves all that is in the group itself into one below."""
    leaf = base / LEAF
    leaf.mkdir(exist_ok=True)
    for pid in (base / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)


def _enabled(base: Path) -> frozenset[str]:
    """The controllers that groups below can use, switched on as far as that is allowed."""
    there = (base / "cgroup.controllers").read_text().split()
    for name in CONTROLLERS:
        if name in there:
            with contextlib.suppress(OSError):
                (base / "cgroup.subtree_control").write_text(f"+{name}")
    return frozenset((base / "cgroup.subtree_control").read_text().split())
