"""Ends a worker that outlived the daemon that started it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

import psutil

from supervisor.host import tree
from supervisor.host.tree import identity

KILL_WAIT_S = 10.0  # SIGKILL can't be refused; longer means the kernel holds the process (D state)


async def end(pid: int, start_time: int | None, patience_s: float) -> str:
    """Asks the process to flush and leave (SIGTERM), kills its session after `patience_s`; says how it ended.

    A pid alone proves nothing: without the same start time the process is not the one that was started, and is left
    alone.
    """
    if start_time is None or identity(pid) != start_time:
        return "gone when the daemon came back"
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return "gone when the daemon came back"
    try:
        if identity(pid) != start_time:
            return "gone when the daemon came back"
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if await _dead(descriptor, patience_s):
            await asyncio.to_thread(tree.kill_session, pid, start_time)
            return "left running by a lost daemon; told to flush, and gone"
        victims = await asyncio.to_thread(tree.freeze, pid, start_time)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        tree.kill(victims)
        await _dead(descriptor, KILL_WAIT_S)
        return f"left running by a lost daemon; killed after {patience_s:g} s"
    finally:
        os.close(descriptor)


async def end_all(processes: Sequence[psutil.Process], patience_s: float) -> int:
    """Ends processes known by their mark: leaders of a session politely, the others then by SIGKILL; how many lived."""
    alive = [each for each in processes if each.is_running()]
    leaders = [each.pid for each in alive if _leads(each.pid)]
    await asyncio.gather(*(end(pid, identity(pid), patience_s) for pid in leaders), return_exceptions=True)
    tree.kill(each for each in alive if each.is_running())
    return len(alive)


def _leads(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


async def _dead(descriptor: int, patience_s: float) -> bool:
    """Whether the process behind a pidfd ends within `patience_s`; the kernel says so, nothing polls."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), patience_s)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
    return True
