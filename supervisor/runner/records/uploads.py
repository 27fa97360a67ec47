"""How long the uploads of all jobs took: what a flush that has to reach a mirror is planned from.

All jobs share the host's way to the stores, as those of one disk share that; so the same arithmetic serves
(`core/notices/flush.py`). What is uploaded under `mirror_rate_limit` takes longer than it would without, and under a
deadline there is no limit: such an upload counts only until one was measured without. The ledger has the last ones for
the next daemon, whose first deadline is planned with them.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from supervisor.core.notices.flush import RECENT_COUNT, MeasuredSave, expected_save_s
from supervisor.host.ledger.ledger import Ledger, LedgerError

log = structlog.get_logger()


@dataclass(slots=True)
class _Measured:
    at_full_rate: deque[MeasuredSave] = field(default_factory=lambda: deque(maxlen=RECENT_COUNT))
    limited: deque[MeasuredSave] = field(default_factory=lambda: deque(maxlen=RECENT_COUNT))


class UploadDurations:
    """The last few uploads of every job."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called, in the event loop's thread, after every upload."""
        self._ledger: Ledger | None = None
        self._on_change = on_change
        self._measured: defaultdict[str, _Measured] = defaultdict(_Measured)

    def load_history(self, ledger: Ledger) -> None:
        """Goes on from what earlier daemons measured, and records what is measured from now on."""
        self._ledger = ledger
        try:
            history = ledger.uploads.load()
        except LedgerError as error:
            log.warning("ledger.not_read", error=str(error), effect="how long uploads take is measured anew")
            return
        for job, uploads in history.items():
            for upload_s, is_limited in uploads:
                self._append(job, MeasuredSave(-math.inf, upload_s), is_limited)

    def forget(self, job: str) -> None:
        """The job was removed long ago: nothing that is held by its name stays."""
        self._measured.pop(job, None)

    def _append(self, job: str, upload: MeasuredSave, is_limited: bool) -> None:
        own = self._measured[job]
        (own.limited if is_limited else own.at_full_rate).append(upload)

    def record_upload(self, job: str, upload_s: float, now: float, is_limited: bool) -> None:
        """An upload of `job` has reached the store. `is_limited`: it was held back by a limit."""
        upload = MeasuredSave(now, max(0.0, upload_s))
        self._append(job, upload, is_limited)
        if self._ledger is not None:
            self._ledger.uploads.store(job, upload.save_s, is_limited, RECENT_COUNT)
        self._on_change()

    def expected_s(self, finishing: Collection[str]) -> dict[str, float]:
        """How long the next upload of each job takes (s) while those of `finishing` upload too; measured jobs only."""
        uploads = {name: tuple(own.at_full_rate or own.limited) for name, own in self._measured.items()}
        return expected_save_s(uploads, finishing)
