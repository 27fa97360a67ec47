"""Finds and kills what a process started: its descendants, and the members of its session."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

import psutil

from supervisor.host.processes.process_status import read_start_time

MAX_ROUNDS = 50  # each finds what was forked since the one before; a fork bomb must not hold the daemon for ever


def stop_tree(pid: int, start_time: int) -> list[psutil.Process]:
    """Stops the process and everything it started, and lists all but itself.

    A stopped process can't fork, so the list is complete once a round finds nobody new.
    """
    if read_start_time(pid) != start_time:
        return []
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)
    frozen: dict[int, psutil.Process] = {}
    for _ in range(MAX_ROUNDS):
        fresh = [each for each in _belongings(pid).values() if frozen.get(each.pid) != each]
        if not fresh:
            break
        for each in fresh:
            frozen[each.pid] = each
            with suppress(psutil.Error):
                each.suspend()
    return list(frozen.values())


def kill_all(victims: Iterable[psutil.Process]) -> int:
    """SIGKILL to each; how many were still there. A pid that somebody else has by now is left alone."""
    killed = 0
    for victim in victims:
        with suppress(psutil.Error):
            victim.kill()
            killed += 1
    return killed


def kill_session(leader: int, start_time: int) -> int:
    """SIGKILL to every member of the session that `leader`, now dead, led; how many that were.

    As long as a member lives the kernel gives the leader's number to nobody else. So if the number belongs to a
    process of another start time, no member is left.
    """
    killed: dict[int, psutil.Process] = {}
    for _ in range(MAX_ROUNDS):
        if read_start_time(leader) not in (None, start_time):
            break
        fresh = [each for each in _members(leader) if killed.get(each.pid) != each]
        if not fresh:
            break
        killed.update((each.pid, each) for each in fresh)
        kill_all(fresh)
    return len(killed)


def _belongings(leader: int) -> dict[int, psutil.Process]:
    """Members of the leader's session and descendants of any of them, by pid; the leader itself is not among them."""
    members = {each.pid: each for each in _members(leader) if each.pid != leader}
    found = _descendants(leader)
    for pid in members.keys() - found.keys():  # its parent died, so it is nobody's descendant any more
        found |= _descendants(pid)
    return found | members


def _descendants(pid: int) -> dict[int, psutil.Process]:
    try:
        return {each.pid: each for each in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return {}


def _members(session: int) -> list[psutil.Process]:
    """The live processes of a session; zombies are nobody's trouble."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(pid) == session:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
    return members
