"""Finds the checkpoint an attempt begins from, and writes down those that are damaged."""

import errno
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from supervisor.config import JobConfig
from supervisor.core.program import events as fact
from supervisor.core.program.effects import SelectCheckpoint, SetAside
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.damage import RejectedCheckpoint

TRANSIENT_ERRNOS = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN}
)
"""Errors of reading a checkpoint directory that a later attempt may not meet again."""


async def select_checkpoint(
    program: str,
    order: SelectCheckpoint,
    job: JobConfig,
    checkpoints: CheckpointStore,
    ledger: Ledger,
    refused_is: Callable[[str, str], None],
    log: FilteringBoundLogger,
) -> fact.CheckpointSelected | fact.SelectionFailed:
    """What the core is told: the newest whole checkpoint, or why there is nothing to begin from.

    `refused_is` hears of every damaged one: its name and why.
    """
    directory, attempt = job.checkpoint_dir, order.attempt

    def book(refused: tuple[RejectedCheckpoint, ...]) -> None:
        _record_refused(refused, program, attempt, ledger, refused_is, log)

    try:
        if order.before is not None:
            book(await checkpoints.roll_back(directory, order.before))
        unfit = dict(order.unfit)
        selection = await checkpoints.select(directory, job.initial_checkpoint, order.avoid | unfit.keys())
    except NoValidCheckpoint as error:
        book(error.refused)
        return fact.SelectionFailed(attempt, str(error), permanent=True)
    except OSError as error:
        text = (
            f"cannot look for checkpoints in {directory}: {error.strerror}; make it a folder that the daemon may read"
        )
        return fact.SelectionFailed(attempt, text, permanent=error.errno not in TRANSIENT_ERRNOS)
    book(selection.refused)
    if selection.path is not None and selection.path.name in unfit:
        remedy = "restore it with the program that wrote it, or give this one a checkpoint_dir of its own"
        text = f"{unfit[selection.path.name]}; nor is there an older checkpoint that fits; {remedy}"
        return fact.SelectionFailed(attempt, text, permanent=True)
    path = str(selection.path) if selection.path else None
    if selection.foreign is not None:
        found = selection.foreign
        log.info("checkpoint.foreign", attempt=attempt, checkpoint=path, step=found.step, step_source=found.step_source)
    if order.avoid:
        log.warning("checkpoint.avoided", attempt=attempt, suspects=sorted(order.avoid), chosen=path)
    return fact.CheckpointSelected(attempt, path, selection.step, selection.place)


async def quarantine_checkpoints(
    program: str,
    order: SetAside,
    job: JobConfig,
    checkpoints: CheckpointStore,
    ledger: Ledger,
    refused_is: Callable[[str, str], None],
    log: FilteringBoundLogger,
) -> None:
    """Puts checkpoints that the program can't go on from into quarantine; what can't be moved stays, and is told."""
    try:
        refused = await checkpoints.quarantine(job.checkpoint_dir, order.unfit)
    except OSError as error:
        log.warning(
            "checkpoint.not_set_aside", attempt=order.attempt, error=error.strerror, names=sorted(dict(order.unfit))
        )
        return
    _record_refused(refused, program, order.attempt, ledger, refused_is, log)


def _record_refused(
    refused: tuple[RejectedCheckpoint, ...],
    program: str,
    attempt: int,
    ledger: Ledger,
    refused_is: Callable[[str, str], None],
    log: FilteringBoundLogger,
) -> None:
    for each in refused:
        refused_is(each.name, each.reason)
        log.warning("checkpoint.refused", attempt=attempt, checkpoint=each.name, reason=each.reason)
        ledger.checkpoint_refused(program, attempt, each.name, each.reason, time.time())
