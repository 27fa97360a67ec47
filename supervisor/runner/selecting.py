"""Finds the checkpoint an attempt begins from, and writes down those that are damaged."""

import errno
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from supervisor.config import JobConfig
from supervisor.core import events as fact
from supervisor.core.effects import SelectCheckpoint
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger import Ledger
from supervisor.protocol.checkpoints import NoValidCheckpoint
from supervisor.protocol.damage import Refused

PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})
"""Errors of reading a checkpoint directory that a later attempt may not meet again."""


async def select(
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

    def book(refused: tuple[Refused, ...]) -> None:
        for each in refused:
            refused_is(each.name, each.reason)
            log.warning("checkpoint.refused", attempt=attempt, checkpoint=each.name, reason=each.reason)
            ledger.checkpoint_refused(program, attempt, each.name, each.reason, time.time())

    try:
        if order.before is not None:
            book(await checkpoints.roll_back(directory, order.before))
        selection = await checkpoints.select(directory, job.initial_checkpoint, order.avoid)
    except NoValidCheckpoint as error:
        book(error.refused)
        return fact.SelectionFailed(attempt, str(error), permanent=True)
    except OSError as error:
        text = f"cannot look for checkpoints in {directory}: {error.strerror}; make it readable for the daemon"
        return fact.SelectionFailed(attempt, text, permanent=error.errno not in PASSING)
    book(selection.refused)
    path = str(selection.path) if selection.path else None
    if selection.foreign is not None:
        found = selection.foreign
        log.info("checkpoint.foreign", attempt=attempt, checkpoint=path, step=found.step, step_source=found.step_source)
    if order.avoid:
        log.warning("checkpoint.avoided", attempt=attempt, suspects=sorted(order.avoid), chosen=path)
    return fact.CheckpointSelected(attempt, path, selection.step, selection.place)
