"""Gives each attempt a control group (v2), where a part of the tree is delegated to this daemon.

The rule of cgroup v2 is one writer for each group. So a group is divided only if systemd marked it as delegated, or
if it is the root of a container's own tree.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import structlog

LEAF = "daemon"  # a group with processes can't be divided, so the daemon has one of its own beside its programs
PREFIX = "job-"  # no file of the kernel begins with it
CONTROLLERS = ("memory", "cpu", "pids")
KERNEL_LIMIT_FACTOR = 1.1  # above memory_limit: the daemon's check each second lets a job flush before the kernel kills
CPU_PERIOD_US = 100_000  # the default of the kernel and of systemd
MARKS = ("user.delegate", "trusted.delegate")  # extended attributes that systemd sets for Delegate=
GONE_WITHIN_S = 2.0  # from the kill of a group to the last of its processes
POLL_S = 0.01

log = structlog.get_logger()


class Cgroups:
    """The groups of all attempts, below the group `base`. `controllers`: what can be limited there."""

    def __init__(self, base: Path, controllers: frozenset[str]) -> None:
        self.base = base
        self.controllers = controllers

    def group_of(self, program: str, attempt: int) -> "Cgroup":
        """The group of one attempt, whether it exists or not."""
        return Cgroup(self.base / f"{_stem(program)}.a{attempt}")

    def create(self, program: str, attempt: int, memory_bytes: int | None, cores: float | None) -> "Cgroup | None":
        """Creates the group of an attempt with these limits; None, with a warning in the log, if that fails."""
        group = self.group_of(program, attempt)
        return self._made(program, group, memory_bytes, cores)

    def create_for_standby(self, program: str, token: str) -> "Cgroup | None":
        """As `create`, for a standby, which keeps its group when it becomes an attempt. `token`: unique to it."""
        return self._made(program, Cgroup(self.base / f"{_stem(program)}.s{token}"), None, None)

    def _made(self, program: str, group: "Cgroup", memory_bytes: int | None, cores: float | None) -> "Cgroup | None":
        try:
            group.path.mkdir(exist_ok=True)
        except OSError as error:
            log.warning("cgroup.not_made", program=program, path=str(group.path), error=error.strerror)
            return None
        self.limit(program, group, memory_bytes, cores)
        return group

    def limit(self, program: str, group: "Cgroup", memory_bytes: int | None, cores: float | None) -> None:
        """Sets the limits of a group, with a warning in the log for each that can't be."""
        for name, value in self._settings(memory_bytes, cores).items():
            try:
                (group.path / name).write_text(value)
            except OSError as error:
                log.warning("cgroup.not_limited", program=program, file=name, error=error.strerror)

    def group_of_process(self, program: str, pid: int) -> "Cgroup | None":
        """The group of the program's that a process is in; None if it is in none."""
        try:
            own = parse_own_group(os.fsdecode(Path(f"/proc/{pid}/cgroup").read_bytes()))
        except OSError:  # it is gone
            return None
        name = (own or "").rpartition("/")[2]
        group = next((cgroup for cgroup in self.groups_of(program) if cgroup.path.name == name), None)
        return group if group is not None and pid in group.pids() else None

    def groups_of(self, program: str) -> "list[Cgroup]":
        """The groups of the program's attempts and standbys that exist, of this daemon and of earlier ones."""
        parts = ((*path.name.rpartition("."), path) for path in self.base.glob(f"{PREFIX}*"))
        return [Cgroup(path) for stem, _, end, path in parts if stem == _stem(program) and end[:1] in ("a", "s")]

    def _settings(self, memory_bytes: int | None, cores: float | None) -> Mapping[str, str]:
        settings = {}
        if "memory" in self.controllers:
            settings["memory.oom.group"] = (
                "1"  # kill the whole group, or a data loader dies and its worker waits for it
            )
            if memory_bytes is not None:
                settings["memory.max"] = str(int(memory_bytes * KERNEL_LIMIT_FACTOR))
        if "cpu" in self.controllers and cores is not None:
            settings["cpu.max"] = f"{max(1000, int(cores * CPU_PERIOD_US))} {CPU_PERIOD_US}"
        return settings

    def remove_empty_groups(self, program: str, below: int) -> None:
        """Removes the empty groups of attempts before `below`."""
        stem = f"{_stem(program)}.a"
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
        """Whether it exists."""
        return self.path.is_dir()

    def open_procs(self) -> int:
        """Opens cgroup.procs; a process that writes `0` to the descriptor enters the group. Raises OSError."""
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def move_process(self, pid: int) -> bool:
        """Moves a running process into the group; whether it worked. Memory it holds stays charged to its old group."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def pids(self) -> list[int]:
        """The processes in it."""
        try:
            return list(map(int, (self.path / "cgroup.procs").read_text().split()))
        except OSError:  # it is gone
            return []

    def kill(self) -> bool:
        """Kills all processes in it at once, also those being forked; False where the kernel can't."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:  # removed, or Linux before 5.14
            return False
        return True

    def remove_if_empty(self) -> None:
        """Removes it unless processes that a plain program left behind are still in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def remove(self) -> bool:
        """Kills what is left in it and removes it; whether it is gone. Blocks up to GONE_WITHIN_S: use a thread.

        It is killed again and again, as something may be moved into it meanwhile, and with it the groups that processes
        of root's made below it.
        """
        until = time.monotonic() + GONE_WITHIN_S
        while self.exists:
            if not self.kill():
                self._kill_each()
            try:
                self._remove_folders()
            except FileNotFoundError:
                continue  # somebody else removes them
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() >= until:
                    return False
                time.sleep(POLL_S)
        return True

    def _kill_each(self) -> None:
        """For kernels without cgroup.kill. What is forked meanwhile is found in the next round."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _remove_folders(self) -> None:
        for folder, _, _ in os.walk(self.path, topdown=False):
            os.rmdir(folder)  # noqa: PTH106 - a group has files, but is removed as if it was empty


def _stem(program: str) -> str:
    return f"{PREFIX}{quote(program, safe='')}"


def prepare_cgroups() -> Cgroups | None:
    """Prepares the part of the tree that is delegated to this daemon; None if there is none.

    The daemon moves into a group of its own where it has to. A systemd service whose main process is in the delegated
    group itself is left alone: while workers live below, systemd could not start the next daemon there
    (DelegateSubgroup= of systemd 254 solves that).
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
            _move_processes_to_leaf(base)
        elif is_delegated(here.parent) and here != mount:
            base = here.parent
        else:
            return None
        return Cgroups(base, _enable_controllers(base))
    except OSError as error:
        log.warning(
            "cgroup.unusable", path=str(here), error=str(error), effect="the daemon checks limits itself, once a second"
        )
        return None


def find_cgroup2_mount(mounts: str) -> Path | None:
    """Where the unified tree is mounted, from the text of /proc/self/mounts."""
    lines = (line.split() for line in mounts.splitlines())
    return next((Path(fields[1]) for fields in lines if len(fields) > 2 and fields[2] == "cgroup2"), None)


def parse_own_group(text: str) -> str | None:
    """The group of a process in the unified tree, from the text of its /proc/PID/cgroup."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::/")), None)


def is_delegated(group: Path) -> bool:
    """Whether this group is delegated to the processes in it, and we can write to it."""
    if not (group / "cgroup.type").exists() or not os.access(group, os.W_OK):  # the host's own root has no type
        return False
    if not os.access(group / "cgroup.procs", os.W_OK) or not os.access(group / "cgroup.subtree_control", os.W_OK):
        return False
    if not (group.parent / "cgroup.procs").exists():  # the root of what a container sees
        return True
    marks = os.listxattr(group)
    return any(mark in marks and os.getxattr(group, mark) == b"1" for mark in MARKS)


def _move_processes_to_leaf(base: Path) -> None:
    """Moves all processes that are in the group itself into a group below it."""
    leaf = base / LEAF
    leaf.mkdir(exist_ok=True)
    for pid in (base / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)


def _enable_controllers(base: Path) -> frozenset[str]:
    """Enables the controllers for groups below, as far as that is allowed, and returns which are."""
    there = (base / "cgroup.controllers").read_text().split()
    for name in CONTROLLERS:
        if name in there:
            with contextlib.suppress(OSError):
                (base / "cgroup.subtree_control").write_text(f"+{name}")
    return frozenset((base / "cgroup.subtree_control").read_text().split())
