"""How long the saves of all jobs took, and on which disk: what a flush under a deadline is planned from.

How long a save took is a job's own word, and counts for itself alone. What it does to others follows from the bytes
that its checkpoints have on the disk, which the daemon looks at (`core/notices/flush.py`).
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass(slots=True)
class _Sizes:
    """What is known of the bytes of one job's checkpoints. `newest`: the one that is to be looked at."""

    measured: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_COUNT))
    newest: "SavedCheckpoint | None" = None
    looked_at: float = -math.inf
    is_looking: bool = False


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint to be measured: its job's directory, its name, and the job's user. `tell` gets its bytes."""

    directory: Path
    name: str
    user: str | None
    tell: Callable[[int], None]


class SaveDurations:
    """The last few saves of every job. Jobs whose disk is not known yet are taken to share one."""

    def __init__(self, on_change: Callable[[], None] = lambda: None, store: CheckpointStore | None = None) -> None:
        """`on_change`: called, in the event loop's thread, after every save, and when one is measured."""
        self._on_change = on_change
        self._saves: defaultdict[str, deque[MeasuredSave]] = defaultdict(lambda: deque(maxlen=RECENT_COUNT))
        self._attempts: dict[str, int] = {}  # whose save was the last
        self._first_of: dict[str, int | None] = {}  # that save was the first of this attempt
        self._disks: dict[str, int] = {}
        self._directories: dict[str, Path] = {}  # whose disk that is
        self._store = store or CheckpointStore()
        self._sizes: defaultdict[str, _Sizes] = defaultdict(_Sizes)
        self._looking: set[asyncio.Task[None]] = set()

    def load_history(self, ledger: Ledger) -> None:
        """What earlier daemons measured, so that the first notice finds something; each counts as alone on its disk."""
        try:
            history = ledger.checkpoints.recent_saves(RECENT_COUNT)
        except LedgerError as error:
            log.warning("ledger.not_read", error=str(error), effect="how long saves take is measured anew")
            return
        for job, saves in history.items():
            self._saves[job].extend(MeasuredSave(-math.inf, save_s) for save_s, _ in saves)
            self._sizes[job].measured.extend(size for _, size in saves if size)

    def forget(self, job: str) -> None:
        """The job was removed long ago: nothing that is held by its name stays."""
        for known in (self._saves, self._attempts, self._first_of, self._disks, self._directories, self._sizes):
            known.pop(job, None)

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
        if checkpoint is not None:
            self._sizes[job].newest = checkpoint
            self._look_at_newest(job)
        if self._directories.get(job) != directory:  # an update has moved it
            self._directories[job] = directory
            self._disks.pop(job, None)
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
        self._on_change()

    def expected_s(self, finishing: Collection[str]) -> dict[str, float]:
        """How long the next save of each job takes (s) while those of `finishing` save too; measured jobs only."""
        unknown = {name for name in self._saves if name not in self._disks}
        estimates: dict[str, float] = {}
        for disk in {*self._disks.values()} or {0}:
            beside = unknown | {name for name in self._saves if self._disks.get(name) == disk}
            saves = {name: tuple(self._saves[name]) for name in beside}
            sizes = {name: max(self._sizes[name].measured) for name in beside if self._sizes[name].measured}
            expected = expected_claimed_save_s(saves, sizes, beside.intersection(finishing))
            for name, save_s in expected.items():
                estimates[name] = max(save_s, estimates.get(name, 0.0))
        return estimates

    def _look_at_newest(self, job: str) -> None:
        """Looks at once, or, as often as that may be, later."""
        sizes, loop = self._sizes[job], asyncio.get_running_loop()
        if sizes.is_looking or sizes.newest is None:
            return
        sizes.is_looking = True
        if sizes.looked_at + LOOK_EVERY_S <= loop.time() and len(self._looking) < LOOKS_AT_ONCE:
            self._start_look(job)
        else:
            loop.call_later(LOOK_EVERY_S, self._start_look, job)

    def _start_look(self, job: str) -> None:
        if (sizes := self._sizes.get(job)) is None:
            return  # it was removed meanwhile
        task = asyncio.get_running_loop().create_task(self._measure(job, sizes))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _measure(self, job: str, sizes: _Sizes) -> None:
        """What the job's own user can't read can't be restored either, and counts as nothing. A disk that does not
        answer leaves it unknown how much was written, which is the careful way."""
        checkpoint, sizes.newest = sizes.newest, None
        sizes.looked_at = asyncio.get_running_loop().time()
        if checkpoint is None:
            sizes.is_looking = False
            return
        try:
            size = await self._store.size_of(checkpoint.directory, checkpoint.name, checkpoint.user)
        except TimeoutError:
            sizes.is_looking = False
            return
        except OSError:
            size = 0
        sizes.is_looking = False
        if self._sizes.get(job) is not sizes:
            return  # it was removed meanwhile
        sizes.measured.append(size)
        if size:
            checkpoint.tell(size)
        self._on_change()
        self._look_at_newest(job)

    async def _find_disk(self, job: str, directory: Path) -> None:
        """A file server that is away must hold up neither supervision nor the daemon's end."""
        try:
            disk = await self._store.device_number(directory)
        except OSError:
            return  # it stays unknown, which is the careful way; the next save looks again
        if self._directories.get(job) == directory:
            self._disks[job] = disk
