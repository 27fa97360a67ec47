"""Worker messages: the event that each is for the core, and what goes into the ledger and the log."""

import math
import time
from collections.abc import Iterable
from functools import partial

from supervisor.config import ProgramConfig
from supervisor.core.failures.hang_detection import parse_section
from supervisor.core.program import events
from supervisor.core.program.effects import Effect, RecordEnd
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.records.job_log import JobLog
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from supervisor.runner.records.saves import SavedCheckpoint


def event_of(message: messages.FromWorker, answered: Iterable[int] = ()) -> events.Event | None:
    """The event for the core; None if nothing is to be decided.

    `answered`: ids of flushes that are over; one may end while the worker composes its status.
    """
    match message:
        case messages.Hello(attempt):
            return events.WorkerMet(attempt, message.reports_restore)
        case messages.Restoring(attempt):
            return events.RestoreBegun(attempt)
        case messages.Restored(attempt, step):
            return events.TrainingRestored(attempt, step)
        case messages.Progress(attempt, step):
            return events.StepsDone(attempt, step, message.step_s, parse_section(message.section), message.saving_s)
        case messages.Committed():
            committed_at = time.time() - (message.ago_s or 0.0)
            checkpoint = message.checkpoint
            return events.CheckpointCommitted(message.attempt, message.step, message.flushes, committed_at, checkpoint)
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


class MessageRecorder(ProgramObserver):
    """Writes to the ledger and the log what people will want to know later."""

    __slots__ = ("_config", "_log", "_records", "_services")

    def __init__(self, config: ProgramConfig, services: Services, records: ProgramRecords) -> None:
        self._config = config
        self._services = services
        self._records = records
        self._log = records.job_log

    def on_decision(
        self, event: events.Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts
    ) -> None:
        for effect in decided:
            if isinstance(effect, RecordEnd) and (lost := effect.unsaved) is not None:
                steps = {"last_step": lost.step, "saved_step": lost.safe_step, "steps_to_repeat": lost.unsaved}
                self._log.error("training.not_saved", attempt=lost.attempt, **steps, why=lost.why)
        if not isinstance(event, events.CheckpointSelected) or event.attempt != facts.attempt:
            return
        if (older := facts.current.older) is not None:
            facts_of_start = {"because": str(older.because), "begins_at": event.step, "why": older.text}
            self._log.warning("checkpoint.older", attempt=event.attempt, **facts_of_start)
        elif facts.state is State.KILLING and facts.current.decided_end is not None:
            self._log.error("checkpoint.lost", attempt=event.attempt, why=facts.current.decided_end[1])

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if isinstance(message, messages.Committed) and self._config.job is not None:
            directory, started_at = self._config.job.checkpoint_dir, self._records.process.started_at
            self._services.save_durations.record_save(
                self._config.name,
                message.attempt,
                directory,
                message.save_s,
                now,
                since=-math.inf if started_at is None else started_at,
                checkpoint=SavedCheckpoint(
                    directory, message.checkpoint, self._config.user, partial(self._record_size, message)
                ),
            )
        _record_message(message, self._config.name, self._services.ledger, self._log)

    def _record_size(self, message: messages.Committed, size_bytes: int) -> None:
        self._services.ledger.checkpoint_measured(self._config.name, message.attempt, message.checkpoint, size_bytes)
        self._records.training.checkpoint_measured(message.checkpoint, size_bytes)


def _record_message(message: messages.FromWorker, program: str, ledger: Ledger, log: JobLog) -> None:
    attempt = message.attempt
    match message:
        case messages.Hello():
            log.debug("worker.met", attempt=attempt, pid=message.pid, version=message.version)
        case messages.Restored():
            ledger.attempt_restored(program, attempt, message.checkpoint, message.step, message.changed)
            tell = log.warning if message.unmatched or message.changed else log.info
            tell(
                "worker.restored",
                attempt=attempt,
                step=message.step,
                checkpoint=message.checkpoint,
                restore_s=round(message.restore_s, 3),
                unmatched=list(message.unmatched),
                changed=list(message.changed),
            )
        case messages.Committed():
            ledger.checkpoint_committed(
                program,
                attempt,
                message.checkpoint,
                message.step,
                message.save_s,
                message.stall_s,
                time.time() - (message.ago_s or 0.0),
            )
            log.info(
                "checkpoint.committed",
                attempt=attempt,
                step=message.step,
                size_bytes=message.size_bytes,
                save_s=round(message.save_s, 3),
                stall_s=round(message.stall_s, 3),
            )
            if message.left_out:
                log.warning("checkpoint.incomplete", attempt=attempt, left_out=list(message.left_out))
        case messages.WorkerStatus():
            log.info("worker.identified", attempt=attempt, pid=message.pid, phase=str(message.phase), step=message.step)
        case messages.SaveFailed():
            log.error("checkpoint.not_saved", attempt=attempt, step=message.step, error=message.error)
        case messages.Replayed():
            _record_replay(message, log)
        case messages.Done():
            log.info("training.done", attempt=attempt, step=message.step, **{"metrics": dict(message.metrics)})
        case messages.Failed():
            log.error(
                "worker.failed", attempt=attempt, step=message.step, error=message.error, traceback=message.traceback
            )
            if message.batches:
                log.warning("batches.left_out", attempt=attempt, step=message.step, batches=list(message.batches))
        case _:
            pass


def _record_replay(message: messages.Replayed, log: JobLog) -> None:
    facts = {
        "attempt": message.attempt,
        "step": message.step,
        "steps": message.steps,
        "took_s": round(message.took_s, 3),
    }
    if message.problem is not None:
        log.warning("replay.off", attempt=message.attempt, step=message.step, why=message.problem)
    elif message.differing:
        log.error("replay.differed", **facts, differing=list(message.differing))
    elif message.checkpoints:
        log.info("checkpoint.replayed", **facts, checkpoints=list(message.checkpoints))
    else:
        log.debug("replay.broken_off", **facts)
