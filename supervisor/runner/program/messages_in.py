"""Worker messages: the event that each is for the core."""

import time
from collections.abc import Iterable

from supervisor.core.failures.hang_detection import parse_section
from supervisor.core.program import events
from supervisor.protocol.wire import messages


def event_of(message: messages.FromWorker, answered: Iterable[int] = ()) -> events.ReportedEvent | None:
    """The event for the core; None if nothing is to be decided.

    `answered`: ids of flushes that are over; one may end while the worker composes its status.
    """
    match message:
        case messages.Hello(attempt):
            return events.WorkerMet(attempt, message.reports_restore)
        case messages.Restoring(attempt):
            return events.RestoreBegun(attempt, message.checkpoint if message.from_memory else None)
        case messages.Restored(attempt, step):
            return events.TrainingRestored(attempt, step, message.checkpoint if message.from_memory else None)
        case messages.Progress(attempt, step):
            return events.StepsDone(attempt, step, message.step_s, parse_section(message.section), message.saving_s)
        case messages.Committed():
            committed_at = time.time() - (message.ago_s or 0.0)
            return events.CheckpointCommitted(
                message.attempt,
                message.step,
                message.flushes,
                committed_at,
                message.checkpoint,
                message.ago_s is not None,
            )
        case messages.SaveFailed():
            return events.CheckpointSaveFailed(message.attempt, message.error, message.flushes, message.step)
        case messages.Done(attempt):
            return events.DoneReported(attempt)
        case messages.Failed():
            return events.FailureReported(
                message.attempt,
                message.error,
                message.step,
                message.out_of_memory,
                message.go_back,
                message.errno,
                message.gang_attempt,
            )
        case messages.WorkerStatus():
            return events.WorkerIdentified(
                message.attempt,
                message.phase,
                step=message.step,
                restored=message.restored is not None,
                flush=max(set(message.flushes) - set(answered), default=None),
                last_flush=message.last_flush,
                then=message.then,
            )
        case _:
            return None
