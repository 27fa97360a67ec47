"""What is known and shown of one program: what `control` and `fleet` read, and supervision itself does not need."""

import time

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.failures.reliability import Reliability
from supervisor.core.program.effects import Effect, RecordEnd, Spawn
from supervisor.host.ledger.attempts import LastEnd
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.pipes.message_filter import NOTHING_REFUSED, RefusedMessages
from supervisor.host.processes.process_status import Exit
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire import messages
from supervisor.runner.records.counters import ProgramCounters
from supervisor.runner.records.goodput import GoodputRecorder
from supervisor.runner.records.job_log import JobLog
from supervisor.runner.records.messages import MessageRecorder
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.process import ProcessRecord
from supervisor.runner.records.saves import SaveDurations
from supervisor.runner.records.series import SeriesRecorder
from supervisor.runner.records.speed import SpeedRecorder
from supervisor.runner.records.timeline import Timeline
from supervisor.runner.records.training import TrainingStatus


class ProgramRecords(ProgramObserver):
    """The records of one program, each kept by an observer of its own; here is also what belongs to none of them."""

    def __init__(self, config: ProgramConfig, ledger: Ledger, saves: SaveDurations, log: FilteringBoundLogger) -> None:
        """`saves`: of all programs."""
        self.process = ProcessRecord()
        self.timeline = Timeline()
        self.training = TrainingStatus()
        self.counters = ProgramCounters()
        self.goodput = GoodputRecorder(config.name, ledger, time.monotonic())
        self.series = None if config.job is None else SeriesRecorder(config.name, ledger)
        """The metrics of a job over its steps; None for a plain program."""
        self.speed = None if config.job is None else SpeedRecorder()
        """How fast a job trains, compared with its past; None for a plain program."""
        self.job_log = JobLog(log)
        self.losses = MessageLosses(config.name, ledger, self.job_log)
        self.reliability = Reliability()
        """How the program's attempts ended so far."""
        self.committed_at = 0.0
        """When the newest checkpoint was committed: monotonic, so that its age is right whatever the clock does."""
        self._recorder: MessageRecorder | None = None
        if config.job is not None:
            self._recorder = MessageRecorder(
                config, config.job, ledger, saves, self.process, self.training, self.job_log
            )
        self.storage_remarks: tuple[str, ...] = ()
        """What checkpoints can't rely on in the file system of the checkpoint directory, as of the last look."""

    def observers(self) -> list[ProgramObserver]:
        """Who keeps the records."""
        of_jobs = [observer for observer in (self._recorder, self.series, self.speed) if observer is not None]
        return [self.timeline, self, self.training, self.counters, self.goodput, *of_jobs]

    def reset_for_attempt(self) -> None:
        """Another attempt begins: nothing is known of it yet."""
        self.training.reset_for_attempt()
        self.process.reset_for_attempt()

    def recall_end(self, end: LastEnd) -> None:
        """How the last attempt ended, which an earlier daemon saw."""
        self.process.ended_wall_at = end.ended_at
        self.process.last_exit = Exit(end.exit_code, end.signal)

    def save(self) -> None:
        """Stores in the ledger what is stored now and then: this daemon leaves."""
        self.goodput.save()
        if self.series is not None:
            self.series.save()

    def on_effect(self, effect: Effect, now: float) -> None:
        match effect:
            case Spawn():
                self.reset_for_attempt()
            case RecordEnd():
                self.process.diagnosis = effect.diagnosis
                if self.training.step is not None and (ran_s := self.process.run_time_s) is not None:
                    self.reliability = self.reliability.with_attempt(ran_s, effect.cause)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if isinstance(message, messages.Committed):
            self.committed_at = now - (message.ago_s or 0.0)


class MessageLosses:
    """What of the messages of a program's workers was not taken, or not written down. `job_log`: leaves lines out."""

    __slots__ = ("_before", "_job_log", "_ledger", "_present", "_program")

    def __init__(self, program: str, ledger: Ledger, job_log: JobLog) -> None:
        self._program = program
        self._ledger = ledger
        self._job_log = job_log
        self._present: RefusedMessages = NOTHING_REFUSED  # of the present or last worker
        self._before = (0, 0)  # of earlier ones: refused, and left out

    @property
    def refused(self) -> int:
        """How many messages were refused since the daemon took the program over."""
        return self._before[0] + self._present.refused

    @property
    def left_out(self) -> int:
        """How many were left out, as they came too often."""
        return self._before[1] + self._present.left_out

    def begin_worker(self, refused: RefusedMessages) -> None:
        """From now on those of another worker are counted."""
        self._before, self._present = (self.refused, self.left_out), refused

    def describe(self, now: float) -> tuple[str, ...]:
        """What `status` says of it; empty if all was taken and written down."""
        unwritten = self._ledger.records_left_out(self._program)
        left_out = [f"{counted(unwritten, 'record')} of it not in the ledger"] if unwritten else []
        return (*self._present.describe(now), *self._job_log.describe(now), *left_out)
