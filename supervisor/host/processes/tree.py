"""Finds and kills the descendants of a process and the members of its session.

A descendant whose parent dies becomes a child of PID 1, and nobody can tell where it came from. If it also left
the session and cleared its environment, only a control group still holds it. Where there are none, a worker is made
a subreaper (prctl(2)) before its command begins: such orphans then become children of the worker itself.
"""

import ctypes
import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

from supervisor.host.processes.process_status import read_start_time

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>; fork(2) does not pass it on, and execve(2) keeps it

_libc = ctypes.CDLL(None)

MAX_ROUNDS = 50  # each round finds what was forked since the last; a fork bomb must not hold the daemon forever


def become_subreaper() -> None:
    """Has orphans among this process's descendants become its children. For a child between fork(2) and exec(2)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int, start_time: int, most: int | None = None) -> frozenset[psutil.Process]:
    """All that descend from the process by living parents, or `most` of them; none if it is gone. Reads little where
    the kernel can tell a thread's children (CONFIG_PROC_CHILDREN), and else all of /proc."""
    if read_start_time(pid) != start_time:
        return frozenset()
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):  # noqa: PTH110 - this runs every few seconds
        return frozenset(_descendants(pid).values())
    processes: dict[int, psutil.Process] = {}
    parents = [pid]
    while parents and len(processes) != most:
        for child in _children(parents.pop()):
            if len(processes) == most:
                break
            if child not in processes:
                with suppress(psutil.Error):
                    processes[child] = psutil.Process(child)
                    parents.append(child)
    return frozenset(processes.values()) if read_start_time(pid) == start_time else frozenset()


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123 - as above
                children += map(int, file.read().split())
    return children


def stop_tree(pid: int, start_time: int) -> list[psutil.Process]:
    """Stops (SIGSTOP) the process and everything it started, and lists all but the process itself.

    A stopped process can't fork, so the list is complete once a round finds no new process.
    """
    if read_start_time(pid) != start_time:
        return []
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)
    frozen: dict[int, psutil.Process] = {}
    for _ in range(MAX_ROUNDS):
        fresh = [
            descendant
            for descendant in _session_and_descendants(pid).values()
            if frozen.get(descendant.pid) != descendant
        ]
        if not fresh:
            break
        for process in fresh:
            frozen[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(frozen.values())


def kill_all(victims: Iterable[psutil.Process]) -> int:
    """Sends SIGKILL to each; returns how many were still there. psutil spares a pid that was used again."""
    killed = 0
    for victim in victims:
        with suppress(psutil.Error):
            victim.kill()
            killed += 1
    return killed


def kill_session(leader: int, start_time: int) -> int:
    """Sends SIGKILL to all members of the session that `leader`, now dead, led; returns how many that were.

    The kernel does not use the leader's pid again while a member lives. So if a process with another start time has it,
    no member is left.
    """
    killed: dict[int, psutil.Process] = {}
    for _ in range(MAX_ROUNDS):
        if read_start_time(leader) not in (None, start_time):
            break
        fresh = [member for member in _members(leader) if killed.get(member.pid) != member]
        if not fresh:
            break
        killed.update((process.pid, process) for process in fresh)
        kill_all(fresh)
    return len(killed)


def _session_and_descendants(leader: int) -> dict[int, psutil.Process]:
    """By pid: members of the leader's session and descendants of any of them, without the leader itself.

    One look at /proc for all of them: a program may have left thousands of orphans in its session.
    """
    seen = _look_at_all()
    children: dict[int, list[int]] = {}
    for pid, status in seen.items():
        children.setdefault(status.parent, []).append(pid)
    pids = {pid for pid, status in seen.items() if status.session == leader and not status.is_zombie} | {leader}
    parents = list(pids)
    while parents:
        fresh = [pid for pid in children.get(parents.pop(), ()) if pid not in pids]
        pids.update(fresh)
        parents += fresh
    return {process.pid: process for process in _processes(seen, pids - {leader})}


def _descendants(pid: int) -> dict[int, psutil.Process]:
    try:
        return {child.pid: child for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return {}


def _members(session: int) -> list[psutil.Process]:
    """The processes of a session, without zombies."""
    seen = _look_at_all()
    return _processes(seen, [pid for pid, status in seen.items() if status.session == session and not status.is_zombie])


class _Seen(NamedTuple):
    """What /proc/PID/stat says of a process. `start_time`: kernel ticks after boot."""

    parent: int
    session: int
    is_zombie: bool
    start_time: int


def _look_at_all() -> dict[int, _Seen]:
    seen = {}
    for pid in psutil.pids():
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - of every process on the host
            state, parent, _, session, *others = file.read().rpartition(b")")[2].split()  # from field 3 on
            seen[pid] = _Seen(int(parent), int(session), state == b"Z", int(others[15]))
    return seen


def _processes(seen: Mapping[int, _Seen], pids: Iterable[int]) -> list[psutil.Process]:
    """Those that are still what was seen, and not others that got their pids since."""
    processes = []
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if read_start_time(pid) == seen[pid].start_time:
                processes.append(process)
    return processes
