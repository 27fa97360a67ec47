"""Ends processes that outlived the daemon that started them; `marks` knows which those are."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

import psutil

from supervisor.host.processes import tree
from supervisor.host.processes.process_status import read_start_time

KILL_WAIT_S = 10.0  # SIGKILL can't be refused; longer means the kernel holds the process (D state)


async def end_leftovers(processes: Sequence[psutil.Process], patience_s: float, stop_signal: signal.Signals) -> str:
    """Has workers flush and leave, then kills what is left of them and of what they started; says how it went.

    Leaders of a session are workers: they get `stop_signal` and `patience_s` to heed it. Raises OSError if one can't
    be signalled.
    """
    alive = [each for each in processes if each.is_running()]
    if not alive:
        return "gone when the daemon came back"
    in_time = await asyncio.gather(
        *(_end_worker(each.pid, patience_s, stop_signal) for each in alive if _leads(each.pid))
    )
    tree.kill_all(each for each in alive if each.is_running())
    if all(in_time):
        return "left behind by a daemon that died; told to flush, and gone"
    return f"left behind by a daemon that died; killed after {patience_s:g} s"


async def _end_worker(pid: int, patience_s: float, stop_signal: signal.Signals) -> bool:
    """Whether it left by itself in time; it is gone in any case."""
    start_time = read_start_time(pid)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if start_time is None or read_start_time(pid) != start_time:
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, stop_signal)
        if await _dead(descriptor, patience_s):
            return True
        tree.kill_all(await asyncio.to_thread(tree.stop_tree, pid, start_time))
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await _dead(descriptor, KILL_WAIT_S)
        return False
    finally:
        os.close(descriptor)


async def wait_for_exit(pid: int, start_time: int, patience_s: float) -> bool:
    """Whether the process, told so before, ends within `patience_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return read_start_time(pid) != start_time or await _dead(descriptor, patience_s)
    finally:
        os.close(descriptor)


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


async def _dead(descriptor: int, patience_s: float) -> bool:
    """Whether the process behind a pidfd ends within `patience_s`; the kernel says so, nothing polls.

    If it is our child, as after a reload, it is reaped.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), patience_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    _reap(descriptor)
    return True


def _reap(descriptor: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
