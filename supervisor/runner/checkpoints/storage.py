"""Whether a job's checkpoint directory can be used, and which of its checkpoints are refused."""

import errno
import os
import time
from collections.abc import Awaitable, Callable

from supervisor.config import JobConfig
from supervisor.core.failures.storage import remedy_for
from supervisor.core.program import effects, events
from supervisor.protocol.checkpoints.account import is_as_new
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.runner.attempt.services import ProgramServices

RECORDED = 50  # refused checkpoints of one selection that log and ledger tell one by one: retention keeps fewer


class CheckpointStorage:
    """The checkpoint directory of one job, as it is found.

    The program's observers learn of every checkpoint that is damaged or does not fit.
    """

    __slots__ = ("_is_looking", "_job", "_log", "_observers", "_post", "_program", "_records", "_services", "_user")

    def __init__(self, program: ProgramServices, job: JobConfig) -> None:
        self._program = program.config.name
        self._user = program.config.user
        self._records = program.records
        self._job = job
        self._services = program.services
        self._observers = program.observers
        self._post = program.post
        self._log = program.log
        self._is_looking = False

    async def look(
        self, effect: effects.LookAtStorage, find_store_error: Callable[[], Awaitable[str | None]] | None
    ) -> None:
        """Posts whether the directory can be used and what it holds; nothing while an earlier look has no answer.

        `find_store_error`: says why the job's mirror can't be asked for what is missing here; None: it has no mirror.
        """
        if self._is_looking:
            return
        self._is_looking = True
        try:
            expected = None if effect.newest is None else effect.newest.name
            seen = await self._services.checkpoints.look(self._job.checkpoint_dir, effect.writes, self._user, expected)
        except OSError as error:
            self._post(events.StorageSeen(effect.attempt, self.explain(error), error.errno))
        except RuntimeError as error:  # the host has no thread to spare
            self._post(events.StorageSeen(effect.attempt, f"cannot look at {self._job.checkpoint_dir}: {error}"))
        else:
            self.remember_remarks(seen)
            highest, newest = seen.highest_step, effect.newest
            is_missing = highest is None or (newest is not None and not is_as_new(highest, newest))
            has_store = find_store_error is not None
            store_error = await find_store_error() if find_store_error is not None and is_missing else None
            place = highest, seen.mount, seen.passed_over
            self._post(events.StorageSeen(effect.attempt, None, None, *place, has_store, store_error))
        finally:
            self._is_looking = False

    def explain(self, error: OSError) -> str:
        """Why the directory can't be used, and what to do."""
        if error.errno == errno.EBUSY:
            remedy = "stop that worker, or wait until it ends; it is tried again by itself"
            return f"cannot begin elsewhere in checkpoint_dir {self._job.checkpoint_dir}: {_reason(error)}; {remedy}"
        if error.errno == errno.ENODEV:
            remedy = "mount it, and the job starts by itself; if no volume belongs there, take it out of that table"
            return f"cannot use checkpoint_dir {self._job.checkpoint_dir}: {_reason(error)}; {remedy}"
        remedy = remedy_for(error.errno, self._user or "the daemon")
        return f"cannot use checkpoint_dir {self._job.checkpoint_dir}: {_reason(error)}; {remedy}"

    def remember_remarks(self, seen: DirectoryView) -> None:
        """Keeps what is to be said of the directory; logs what is new."""
        if seen.remarks != self._records.storage_remarks:
            for remark in seen.remarks:
                self._log.warning("checkpoint_dir.remark", text=remark)
        self._records.storage_remarks = seen.remarks

    async def quarantine(self, effect: effects.QuarantineCheckpoints) -> None:
        """Moves checkpoints that the program can't restore into quarantine; one that can't be moved stays."""
        try:
            refused = await self._services.checkpoints.quarantine(
                self._job.checkpoint_dir, effect.unfit, OlderBecause.UNFIT, self._user
            )
        except OSError as error:
            names = sorted(dict(effect.unfit))
            self._log.warning("checkpoint.not_set_aside", attempt=effect.attempt, error=error.strerror, names=names)
            return
        self.record_refused(effect.attempt, refused)

    def record_refused(self, attempt: int, refused: tuple[RejectedCheckpoint, ...]) -> None:
        """Tells log, ledger and observers of checkpoints that are damaged or don't fit."""
        for checkpoint in refused[:RECORDED]:
            self._observers.on_checkpoint_refused(checkpoint.name, checkpoint.reason)
            self._log.warning(
                "checkpoint.refused", attempt=attempt, checkpoint=checkpoint.name, reason=checkpoint.reason
            )
            self._services.ledger.checkpoints.checkpoint_refused(
                self._program, attempt, checkpoint.name, checkpoint.reason, time.time()
            )
        if len(refused) > RECORDED:
            self._log.warning("checkpoint.more_refused", attempt=attempt, count=len(refused) - RECORDED)


def _reason(error: OSError) -> str:
    return error.strerror or (os.strerror(error.errno) if error.errno else str(error))
