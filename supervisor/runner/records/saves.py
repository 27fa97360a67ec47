"""How long the saves of all jobs took, and on which disk: what a flush under a deadline is planned from."""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from supervisor.core.notices.flush import (
    RECENT_COUNT,
    MeasuredSave,
    expected_save_s,
    without_queueing,
)
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger, LedgerError

log = structlog.get_logger()


class SaveDurations:
    """The last few saves of every job. Jobs whose disk is not known yet are taken to share one."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called, from the event loop's thread, after every save."""
        self._saves: defaultdict[str, deque[MeasuredSave]] = defaultdict(lambda: deque(maxlen=RECENT_COUNT))
        self._attempts: dict[str, int] = {}  # whose save was the last
        self._first_of: dict[str, int | None] = {}  # that save was the first of this attempt
        self._disks: dict[str, int] = {}
        self._store = CheckpointStore()
        self._looking: set[asyncio.Task[None]] = set()

    def load_history(self, ledger: Ledger) -> None:
        """What earlier daemons measured, so that the first notice finds something; each counts as alone on its disk."""
        try:
            found = ledger.recent_saves(RECENT_COUNT)
        except LedgerError as error:
            log.warning("ledger.not_read", error=str(error), effect="how long saves take is measured anew")
            return
        for job, durations_s in found.items():
            self._saves[job].extend(MeasuredSave(-math.inf, save_s) for save_s in durations_s)

    def record_save(self, job: str, attempt: int, directory: Path, save_s: float, now: float) -> None:
        """A save of `job` is on the disk.

        The first of an attempt builds what the others use, and may take twice as long: the second one replaces it.
        """
        if job not in self._disks and len(self._looking) < RECENT_COUNT:
            task = asyncio.get_running_loop().create_task(self._find_disk(job, directory))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        earlier = self._saves[job]
        saved = without_queueing(MeasuredSave(now, max(0.0, save_s)), earlier[-1] if earlier else None)
        first_of, self._first_of[job] = self._first_of.get(job), None if self._attempts.get(job) == attempt else attempt
        self._attempts[job] = attempt
        if first_of == attempt:
            earlier.pop()
        earlier.append(saved)
        self.on_change()

    def expected_s(self, finishing: Collection[str]) -> dict[str, float]:
        """How long the next save of each job takes (s) while those of `finishing` save too; measured jobs only."""
        unknown = {name for name in self._saves if name not in self._disks}
        found: dict[str, float] = {}
        for disk in {*self._disks.values()} or {0}:
            beside = unknown | {name for name in self._saves if self._disks.get(name) == disk}
            saves = {name: tuple(self._saves[name]) for name in beside}
            for name, save_s in expected_save_s(saves, beside.intersection(finishing)).items():
                found[name] = max(save_s, found.get(name, 0.0))
        return found

    async def _find_disk(self, job: str, directory: Path) -> None:
        """A file server that is away must hold up neither supervision nor the daemon's end."""
        try:
            self._disks[job] = await self._store.device_number(directory)
        except OSError:
            return  # it stays unknown, which is the careful way; the next save looks again
