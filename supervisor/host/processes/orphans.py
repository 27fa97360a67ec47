"""The duty of PID 1 in a container: takes the exit status of processes that others started and left to us.

Whose parent dies becomes a child of PID 1 (or of the nearest subreaper, prctl(2)) and stays a zombie until that one
asks how it ended. Ours are asked for elsewhere, through their pidfds, and must not be taken from there.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import structlog

PATIENCE_S = 2.0  # for whoever else in this process started a child to ask for its status; nobody needs a pid sooner
PR_GET_CHILD_SUBREAPER = 37  # <linux/prctl.h>

log = structlog.get_logger()


def adopts_orphans() -> bool:
    """Whether orphans become children of this process: it is PID 1, or a subreaper."""
    if os.getpid() == 1:
        return True
    answer = ctypes.c_int(0)
    return ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and bool(answer.value)


@contextlib.contextmanager
def reaping_orphans(is_ours: Callable[[int], bool]) -> Iterator[None]:
    """Within it orphans are reaped, if they come here at all; see Orphans."""
    if not adopts_orphans():
        yield
        return
    orphans = OrphanReaper(is_ours)
    orphans.watch()
    try:
        yield
    finally:
        orphans.close()


class OrphanReaper:
    """Reaps zombies that are not ours, PATIENCE_S after they were first seen. For the running loop.

    `is_ours`: whether a pid is that of a child whose exit status somebody here waits for.
    """

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self._seen: set[psutil.Process] = set()
        self._look_again: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def watch(self) -> None:
        """From now on; the kernel says SIGCHLD for each, nothing polls."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._later)
        self._later()  # some may have come before

    def close(self) -> None:
        """No more."""
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._look_again is not None:
            self._look_again.cancel()
        if self._task is not None:
            self._task.cancel()

    def _later(self) -> None:
        """Looks once for all that die within PATIENCE_S."""
        if self._look_again is None:
            self._look_again = self._loop.call_later(PATIENCE_S, self._begin)

    def _begin(self) -> None:
        self._look_again = None  # who dies from here on may not be on the list, and is looked for once more
        if self._task is not None and not self._task.done():
            self._later()
            return
        self._task = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """Reaps what was there the last time already, and remembers what is new."""
        dead = await asyncio.to_thread(_zombies)
        found = {each for each in dead if not self._is_ours(each.pid)}
        for orphan in found & self._seen:
            _reap(orphan.pid)
        self._seen = found - self._seen
        if self._seen or len(found) < len(dead):  # what may be ours now may turn out to be nobody's
            self._later()


def _zombies() -> list[psutil.Process]:
    """Our children that have ended. Reads all of /proc: for a thread."""
    zombies = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # reaped meanwhile
            if child.status() == psutil.STATUS_ZOMBIE:
                zombies.append(child)
    return zombies


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # somebody asked meanwhile
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        log.debug("orphan.reaped", pid=pid)
