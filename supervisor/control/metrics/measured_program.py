"""What the rows of the table of metrics read of a program, in the event loop's thread."""

import time
from dataclasses import dataclass
from functools import cached_property

from supervisor.core.failures.restart import Cause
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.proof import ProofReport, Verdict
from supervisor.protocol.wire.launch import Interval
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.mirror.asking import MirrorStatus
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.counters import ProgramCounters
from supervisor.runner.records.training import LatestCheckpoint, TrainingStatus

BUDGETED = tuple(cause for cause in Cause if cause.traits.is_charged)
"""The causes that have a budget of restarts."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A program and, of a job, how long a flush of it will take, as far as known; `proofs` are of all jobs."""

    runner: Runner
    flush_expected_s: float | None
    proofs: Proofs

    @property
    def counters(self) -> ProgramCounters:
        """What was counted of it."""
        return self.runner.records.counters

    @property
    def training(self) -> TrainingStatus:
        """What its worker has reported."""
        return self.runner.records.training

    @property
    def checkpoint(self) -> LatestCheckpoint | None:
        """Its newest one."""
        return self.training.checkpoint

    @property
    def state_s(self) -> dict[str, float]:
        """How long it was in each state, up to now."""
        self.runner.records.goodput.count_state(self.runner.state, time.monotonic())
        return self.runner.records.goodput.state_s

    @cached_property
    def mirror(self) -> MirrorStatus | None:
        """How its mirror stands; None if it has none."""
        return None if self.runner.mirror is None else self.runner.mirror.status

    @property
    def proof(self) -> ProofReport | None:
        """The newest one that came to a verdict."""
        return self.proofs.newest(self.runner.name)

    @property
    def is_exact(self) -> bool | None:
        """What the newest proof has found; None without a verdict."""
        verdict = None if self.proof is None else self.proof.verdict
        return None if verdict is None or verdict is Verdict.NOT_PROVABLE else verdict is Verdict.EXACT

    @property
    def older_starts(self) -> dict[str, float]:
        """A job's attempts that began from an older checkpoint than the newest, by reason."""
        counts = self.counters.older_starts
        is_job = self.runner.config.job is not None
        return {because: counts.get(because, 0) for because in OlderBecause} if is_job else {}

    @property
    def checkpoint_interval_s(self) -> float | None:
        """Seconds between two saves: as set, as the worker chose, or, if set in steps, as long as those take now."""
        job, training = self.runner.config.job, self.training
        interval: Interval | None = None if job is None else job.checkpoint_interval
        if interval is None:
            return training.interval_s
        if interval.steps is not None:
            return None if training.step_s is None else interval.steps * training.step_s
        return interval.seconds
