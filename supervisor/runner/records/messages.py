"""What a job's messages, and the decisions about its checkpoints, leave in the ledger and in the log."""

import math
import time
from functools import partial

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.program.effects import Effect, RecordEnd
from supervisor.core.program.events import CheckpointSelected, Event, SilenceObserved, SpeedChanged
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.wire import messages
from supervisor.runner.records.job_log import JobLog
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.process import ProcessRecord
from supervisor.runner.records.saves import SavedCheckpoint, SaveDurations
from supervisor.runner.records.training import TrainingStatus


class MessageRecorder(ProgramObserver):
    """Writes down what people will want to know later of one job."""

    __slots__ = (
        "_directory",
        "_ledger",
        "_log",
        "_process",
        "_program",
        "_recorded",
        "_saves",
        "_training",
        "_user",
    )

    def __init__(
        self,
        config: ProgramConfig,
        job: JobConfig,
        ledger: Ledger,
        saves: SaveDurations,
        process: ProcessRecord,
        training: TrainingStatus,
        log: JobLog,
    ) -> None:
        self._program = config.name
        self._user = config.user
        self._directory = job.checkpoint_dir
        self._ledger = ledger
        self._saves = saves
        self._process = process
        self._training = training
        self._log = log
        self._recorded: str | None = None

    def on_decision(self, event: Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts) -> None:
        for effect in decided:
            if isinstance(effect, RecordEnd) and (lost := effect.unsaved) is not None:
                steps = {"last_step": lost.step, "saved_step": lost.safe_step, "steps_to_repeat": lost.unsaved}
                self._log.error("training.not_saved", attempt=lost.attempt, **steps, why=lost.why)
        if isinstance(event, SilenceObserved) and (verdict := facts.current.silence) is not None:
            section, ended_at = str(facts.hang_detector.section), event.evidence.ended_at
            judgement: dict[str, str | float] = {"verdict": verdict.word, "why": verdict.why, "section": section}
            judgement |= {"silent_s": round(ended_at - facts.current.progressed_at, 1)}
            self._log.info("silence.judged", attempt=event.attempt, step=facts.current.step, **judgement)
        if isinstance(event, SpeedChanged) and event.attempt == facts.attempt:
            self._record_speed(event)
        if not isinstance(event, CheckpointSelected) or event.attempt != facts.attempt:
            return
        if (older := facts.current.older) is not None:
            facts_of_start = {"because": str(older.because), "begins_at": event.step, "why": older.text}
            self._log.warning("checkpoint.older", attempt=event.attempt, **facts_of_start)
        elif facts.state is State.KILLING and facts.current.decided_end is not None:
            self._log.error("checkpoint.lost", attempt=event.attempt, why=facts.current.decided_end[1])

    def _record_speed(self, event: SpeedChanged) -> None:
        slow = event.slowdown
        if slow is None:
            self._log.info("training.as_usual", attempt=event.attempt)
            return
        times = {"step_s": round(slow.step_s, 6), "usual_step_s": round(slow.usual_step_s, 6)}
        self._log.warning("training.slower", attempt=event.attempt, **times, percent=slow.percent, why=slow.why)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        log, attempt = self._log, message.attempt
        match message:
            case messages.Hello():
                log.debug("worker.met", attempt=attempt, pid=message.pid, version=message.version)
            case messages.Restored():
                self._record_restore(message)
            case messages.Committed():
                self._record_commit(message, now)
            case messages.WorkerStatus():
                phase, step = str(message.phase), message.step
                log.info("worker.identified", attempt=attempt, pid=message.pid, phase=phase, step=step)
            case messages.SaveFailed():
                log.error("checkpoint.not_saved", attempt=attempt, step=message.step, error=message.error)
            case messages.Replayed():
                self._record_replay(message)
            case messages.Done():
                log.info("training.done", attempt=attempt, step=message.step, metrics=dict(message.metrics))
            case messages.Failed(step=step):
                facts = {"error": message.error, "traceback": message.traceback}
                log.error("worker.failed", attempt=attempt, step=step, **facts)
                if message.batches:
                    log.warning("batches.left_out", attempt=attempt, step=step, batches=list(message.batches))

    def _record_restore(self, message: messages.Restored) -> None:
        checkpoint, changed, unmatched = message.checkpoint, message.changed, message.unmatched
        self._ledger.attempts.attempt_restored(self._program, message.attempt, checkpoint, message.step, changed)
        write = self._log.warning if unmatched or changed else self._log.info
        write(
            "worker.restored",
            attempt=message.attempt,
            step=message.step,
            checkpoint=checkpoint,
            restore_s=round(message.restore_s, 3),
            from_memory=message.from_memory,
            unmatched=list(unmatched),
            changed=list(changed),
        )

    def _record_commit(self, message: messages.Committed, now: float) -> None:
        directory, name, attempt = self._directory, message.checkpoint, message.attempt
        is_known = message.ago_s is not None and name in (self._recorded, self._training.restored)
        if is_known or (name == self._training.restored and not message.save_s):
            return  # the answer to a flush at a step that a checkpoint holds already: nothing was saved
        self._recorded = name
        checkpoint = SavedCheckpoint(directory, name, self._user, partial(self._record_size, message))
        since = -math.inf if self._process.started_at is None else self._process.started_at
        self._saves.record_save(
            self._program, attempt, directory, message.save_s, now, since=since, checkpoint=checkpoint
        )
        committed_at = time.time() - (message.ago_s or 0.0)
        self._ledger.checkpoints.checkpoint_committed(
            self._program, attempt, name, message.step, message.save_s, message.stall_s, committed_at
        )
        self._log.info(
            "checkpoint.committed",
            attempt=attempt,
            step=message.step,
            size_bytes=message.size_bytes,
            save_s=round(message.save_s, 3),
            stall_s=round(message.stall_s, 3),
        )
        if message.left_out:
            self._log.warning("checkpoint.incomplete", attempt=attempt, left_out=list(message.left_out))

    def _record_size(self, message: messages.Committed, size_bytes: int) -> None:
        self._ledger.checkpoints.checkpoint_measured(self._program, message.attempt, message.checkpoint, size_bytes)
        self._training.checkpoint_measured(message.checkpoint, size_bytes)

    def _record_replay(self, message: messages.Replayed) -> None:
        step, log = {"attempt": message.attempt, "step": message.step}, self._log
        facts = {**step, "steps": message.steps, "took_s": round(message.took_s, 3)}
        if message.problem is not None:
            log.warning("replay.off", **step, why=message.problem)
        elif message.differing:
            log.error("replay.differed", **facts, differing=list(message.differing))
        elif message.checkpoints:
            log.info("checkpoint.replayed", **facts, checkpoints=list(message.checkpoints))
        else:
            log.debug("replay.broken_off", **facts)
