"""Ends processes that outlived the daemon which started them; `marks` finds them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

import psutil

from supervisor.host.processes import tree
from supervisor.host.processes.process_status import read_start_time

KILL_WAIT_S = 10.0  # SIGKILL can't be refused; longer means the kernel holds the process (D state)


async def end_leftovers(processes: Sequence[psutil.Process], timeout_s: float, stop_signal: signal.Signals) -> str:
    """Asks workers to flush and exit, then kills what is left of them and their children; returns how it went.

    Session leaders are workers: they get `stop_signal` and have `timeout_s` to exit. Raises OSError if one can't be
    signalled.
    """
    alive = [process for process in processes if process.is_running()]
    if not alive:
        return "had ended before the daemon came back"
    exited = await asyncio.gather(
        *(_end_worker(process.pid, timeout_s, stop_signal) for process in alive if leads_session(process.pid))
    )
    tree.kill_all(process for process in alive if process.is_running())
    if all(exited):
        return "left behind by a daemon that died; flushed and exited when asked"
    return f"left behind by a daemon that died; killed, as it did not exit within {timeout_s:g} s"


async def _end_worker(pid: int, timeout_s: float, stop_signal: signal.Signals) -> bool:
    """Whether the worker exited in time; if not, it is killed."""
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
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # a process that is stopped (SIGSTOP) hears nothing
        if await _ends_within(descriptor, timeout_s):
            return True
        tree.kill_all(await asyncio.to_thread(tree.stop_tree, pid, start_time))
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await _ends_within(descriptor, KILL_WAIT_S)
        return False
    finally:
        os.close(descriptor)


async def wait_for_exit(pid: int, start_time: int, timeout_s: float) -> bool:
    """Whether the process ends within `timeout_s`; nothing is sent to it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return read_start_time(pid) != start_time or await _ends_within(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def leads_session(pid: int) -> bool:
    """Whether a process leads its session, as every worker does."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


async def _ends_within(descriptor: int, timeout_s: float) -> bool:
    """Whether the process behind a pidfd ends within `timeout_s`. If it is our child, as after a reload, reaps it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    _reap(descriptor)
    return True


def _reap(descriptor: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
