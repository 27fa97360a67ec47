"""How long the saves of all jobs took, and on which disk: what a flush under a deadline is planned from.

How long a save took is a job's own word, and counts for itself alone. What it does to others follows from the bytes
that its checkpoints have on the disk, which the daemon looks at (`core/notices/flush.py`).
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from supervisor.core.notices.flush import (
    RECENT_COUNT,
    MeasuredSave,
    expected_claimed_save_s,
    without_queueing,
)
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger, LedgerError

LOOK_EVERY_S = 10.0  # at a job's checkpoints: for another user's, each look is a process
LOOKS_AT_ONCE = 8
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint to be measured: its job's directory, its name, and the job's user. `tell` gets its bytes."""

    directory: Path
    name: str
    user: str | None
    tell: Callable[[int], None]


@dataclass(slots=True)
class _JobSaves:
    """What is known of one job's saves. `attempt`: whose save was the last; `first_of`: the attempt whose first save
    that was; `disk`: that of `directory`, if known. `sizes`: of checkpoints, in bytes; `newest`: the one to look at.
    """

    saves: deque[MeasuredSave] = field(default_factory=lambda: deque(maxlen=RECENT_COUNT))
    attempt: int | None = None
    first_of: int | None = None
    directory: Path | None = None
    disk: int | None = None
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_COUNT))
    newest: SavedCheckpoint | None = None
    looked_at: float = -math.inf
    is_looking: bool = False


class SaveDurations:
    """The last few saves of every job. Jobs whose disk is not known yet are taken to share one."""

    def __init__(self, on_change: Callable[[], None] = lambda: None, store: CheckpointStore | None = None) -> None:
        """`on_change`: called, in the event loop's thread, after every save, and when one is measured."""
        self._on_change = on_change
        self._jobs: defaultdict[str, _JobSaves] = defaultdict(_JobSaves)
        self._store = store or CheckpointStore()
        self._looking: set[asyncio.Task[None]] = set()

    def load_history(self, ledger: Ledger) -> None:
        """What earlier daemons measured, so that the first notice finds something; each counts as alone on its disk."""
        try:
            history = ledger.checkpoints.recent_saves(RECENT_COUNT)
        except LedgerError as error:
            log.warning("ledger.not_read", error=str(error), effect="how long saves take is measured anew")
            return
        for job, saves in history.items():
            self._jobs[job].saves.extend(MeasuredSave(-math.inf, save_s) for save_s, _ in saves)
            self._jobs[job].sizes.extend(size for _, size in saves if size)

    def forget(self, job: str) -> None:
        """The job was removed long ago: nothing that is held by its name stays."""
        self._jobs.pop(job, None)

    def record_save(
        self,
        job: str,
        attempt: int,
        directory: Path,
        save_s: float,
        now: float,
        *,
        since: float = -math.inf,
        checkpoint: SavedCheckpoint | None = None,
    ) -> None:
        """A save of `job` is on the disk, as the job says. It can't have begun before `since`.

        The first of an attempt builds what the others use, and may take twice as long: the second one replaces it.
        `checkpoint`: where to look how large it is.
        """
        save_s = min(save_s, max(0.0, now - since))
        known = self._jobs[job]
        if checkpoint is not None:
            known.newest = checkpoint
            self._look_at_newest(job, known)
        if known.directory != directory:  # an update has moved it
            known.directory, known.disk = directory, None
        if known.disk is None and len(self._looking) < RECENT_COUNT:
            self._look(self._find_disk(known, directory))
        earlier = known.saves
        saved = without_queueing(MeasuredSave(now, max(0.0, save_s)), earlier[-1] if earlier else None)
        if known.first_of == attempt:
            earlier.pop()
        known.first_of = None if known.attempt == attempt else attempt
        known.attempt = attempt
        earlier.append(saved)
        self._on_change()

    def expected_s(self, finishing: Collection[str]) -> dict[str, float]:
        """How long the next save of each job takes (s) while those of `finishing` save too; measured jobs only."""
        unknown = {name for name, known in self._jobs.items() if known.disk is None}
        estimates: dict[str, float] = {}
        for disk in {known.disk for known in self._jobs.values() if known.disk is not None} or {0}:
            beside = unknown | {name for name, known in self._jobs.items() if known.disk == disk}
            saves = {name: tuple(self._jobs[name].saves) for name in beside}
            sizes = {name: max(self._jobs[name].sizes) for name in beside if self._jobs[name].sizes}
            expected = expected_claimed_save_s(saves, sizes, beside.intersection(finishing))
            for name, save_s in expected.items():
                estimates[name] = max(save_s, estimates.get(name, 0.0))
        return estimates

    def _look(self, look: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(look)
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _look_at_newest(self, job: str, known: _JobSaves) -> None:
        """Looks at once, or, as often as that may be, later."""
        loop = asyncio.get_running_loop()
        if known.is_looking or known.newest is None:
            return
        known.is_looking = True
        if known.looked_at + LOOK_EVERY_S <= loop.time() and len(self._looking) < LOOKS_AT_ONCE:
            self._look(self._measure(job, known))
        else:
            loop.call_later(LOOK_EVERY_S, self._look_later, job, known)

    def _look_later(self, job: str, known: _JobSaves) -> None:
        if self._jobs.get(job) is known:  # else it was removed meanwhile
            self._look(self._measure(job, known))

    async def _measure(self, job: str, known: _JobSaves) -> None:
        """What the job's own user can't read can't be restored either, and counts as nothing. A disk that does not
        answer leaves it unknown how much was written, which is the careful way."""
        checkpoint, known.newest = known.newest, None
        known.looked_at = asyncio.get_running_loop().time()
        if checkpoint is None:
            known.is_looking = False
            return
        try:
            size = await self._store.size_of(checkpoint.directory, checkpoint.name, checkpoint.user)
        except TimeoutError:
            known.is_looking = False
            return
        except OSError:
            size = 0
        known.is_looking = False
        if self._jobs.get(job) is not known:
            return  # it was removed meanwhile
        known.sizes.append(size)
        if size:
            checkpoint.tell(size)
        self._on_change()
        self._look_at_newest(job, known)

    async def _find_disk(self, known: _JobSaves, directory: Path) -> None:
        """A file server that is away must hold up neither supervision nor the daemon's end."""
        try:
            disk = await self._store.device_number(directory)
        except OSError:
            return  # it stays unknown, which is the careful way; the next save looks again
        if known.directory == directory:
            known.disk = disk
