"""Reaps orphans, which is the duty of PID 1 in a container.

A process whose parent dies becomes a child of PID 1 (or of the nearest subreaper, prctl(2)), and stays a zombie until
that process reads its exit status. The exit status of workers is read through their pidfds; it must not be read here.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import structlog

from supervisor.host.loop_signals import LoopSignals

REAP_DELAY_S = 2.0  # other parts of this process may have started the child and still have to read its status
PR_GET_CHILD_SUBREAPER = 37  # <linux/prctl.h>

log = structlog.get_logger()


def adopts_orphans() -> bool:
    """Whether orphans become children of this process: it is PID 1, or a subreaper."""
    if os.getpid() == 1:
        return True
    answer = ctypes.c_int(0)
    return ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and bool(answer.value)


@contextlib.contextmanager
def reaping_orphans(is_ours: Callable[[int], bool], signals: LoopSignals) -> Iterator[None]:
    """Reaps orphans inside the context, if they become our children; see OrphanReaper."""
    if not adopts_orphans():
        yield
        return
    orphans = OrphanReaper(is_ours, signals)
    orphans.watch()
    try:
        yield
    finally:
        orphans.close()


class OrphanReaper:
    """Reaps zombies that are not our workers, REAP_DELAY_S after they were first seen. For the running loop.

    `is_ours`: whether a pid belongs to a child whose exit status is read elsewhere.
    """

    def __init__(self, is_ours: Callable[[int], bool], signals: LoopSignals) -> None:
        self._is_ours = is_ours
        self._signals = signals
        self._seen: set[psutil.Process] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def watch(self) -> None:
        """Starts watching: the kernel sends SIGCHLD for each child that ends, so nothing polls."""
        self._signals.handle(signal.SIGCHLD, self._schedule)
        self._schedule()  # some may have ended before

    def close(self) -> None:
        """Stops watching."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _schedule(self) -> None:
        """Schedules one round for all that end within REAP_DELAY_S."""
        if self._timer is None:
            self._timer = self._loop.call_later(REAP_DELAY_S, self._start_round)

    def _start_round(self) -> None:
        self._timer = None  # processes that end from here on need another round
        if self._task is not None and not self._task.done():
            self._schedule()
            return
        self._task = self._loop.create_task(self._reap_round())

    async def _reap_round(self) -> None:
        """Reaps the zombies that the last round saw too, and remembers the new ones."""
        dead = await asyncio.to_thread(_zombies)
        orphans = {process for process in dead if not self._is_ours(process.pid)}
        for orphan in orphans & self._seen:
            _reap(orphan.pid)
        self._seen = orphans - self._seen
        if self._seen or len(orphans) < len(dead):  # a pid that is ours now may later belong to an orphan
            self._schedule()


def _zombies() -> list[psutil.Process]:
    """Our children that have ended. Reads all of /proc: call it from a thread."""
    zombies = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # reaped meanwhile
            if child.status() == psutil.STATUS_ZOMBIE:
                zombies.append(child)
    return zombies


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped elsewhere meanwhile
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        log.debug("orphan.reaped", pid=pid)
