"""Ends what an earlier daemon left behind, before a program starts anew and before the daemon leaves."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence

import psutil
import structlog

from supervisor.host.processes import leftovers, tree
from supervisor.host.resources.cgroup import Cgroup

log = structlog.get_logger()


class LeftoverProcesses:
    """Those of all programs that are being ended."""

    def __init__(self) -> None:
        self._ending: dict[asyncio.Event, Sequence[psutil.Process]] = {}

    async def end_all(
        self, name: str, strays: Sequence[psutil.Process], patience_s: float, stop_signal: signal.Signals
    ) -> bool:
        """Whether none of them runs any more: two workers for one job must never be."""
        if not strays:
            return True
        pids = [stray.pid for stray in strays]
        try:
            with self.ending(strays):
                text = await leftovers.end_leftovers(strays, patience_s, stop_signal)
        except OSError as error:
            remedy = "end them by hand, then start"
            log.error("worker.left_over", program=name, pids=pids, error=str(error), remedy=remedy)
            return False
        log.warning("worker.left_over", program=name, pids=pids, how=text)
        return True

    async def end_groups(self, name: str, groups: Sequence[Cgroup]) -> None:
        """Kills all that is in these control groups, which no mark or session tells any more, and removes them."""
        for group in groups:
            pids = group.pids()
            is_gone = await asyncio.to_thread(group.remove)
            if pids or not is_gone:
                how = "killed with their control group" if is_gone else "they don't die; see what holds them"
                log.warning("worker.left_over", program=name, pids=pids, how=how)

    @contextlib.contextmanager
    def ending(self, strays: Sequence[psutil.Process]) -> Iterator[None]:
        """While they are being ended, in whatever way: `gone` waits for it, `kill` cuts it short."""
        ended = asyncio.Event()
        self._ending[ended] = strays
        try:
            yield
        finally:
            del self._ending[ended]
            ended.set()

    async def wait_until_gone(self) -> None:
        """Waits until all have ended, in the time that they are given."""
        await asyncio.gather(*(ended.wait() for ended in self._ending))

    def kill_all(self) -> None:
        """Their time is over."""
        tree.kill_all(stray for strays in self._ending.values() for stray in strays if stray.is_running())
