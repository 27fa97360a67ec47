"""Counts what one program has done since the daemon took it over, for /metrics, from effects and worker messages.

Counters begin at 0 with the daemon and after `update`, as Prometheus expects of a process; the ledger has what was
before. Times are monotonic seconds unless the name says `wall`.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Self

from supervisor.core.program import effects
from supervisor.core.program.events import Event, TrainingRestored
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

OPEN_FLUSHES_KEPT = 64  # requests without an answer; each stop or notice makes one, so this is far more than enough


@dataclass(frozen=True, slots=True)
class DurationStats:
    """How often something was timed, its sum, and the last duration (seconds)."""

    count: int = 0
    sum_s: float = 0.0
    last_s: float | None = None

    def plus(self, span_s: float) -> Self:
        """Returns these with one more."""
        return replace(self, count=self.count + 1, sum_s=self.sum_s + span_s, last_s=span_s)

    @property
    def totals(self) -> tuple[int, float]:
        """Count and sum."""
        return self.count, self.sum_s


_NEVER = DurationStats()


@dataclass(slots=True)
class ProgramCounters(ProgramObserver):
    """The counts of one program."""

    attempts: int = 0
    invariants_broken: int = 0
    ended_by_cause: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    repeated_steps: int = 0
    progressed_wall_at: float | None = None
    refused_checkpoints: int = 0
    older_starts: dict[OlderBecause, int] = field(default_factory=dict)
    failed_saves: int = 0
    replayed_steps: int = 0
    replay_differences: int = 0
    save: DurationStats = _NEVER
    stall: DurationStats = _NEVER
    flush: DurationStats = _NEVER  # from the request to the checkpoint on the disk
    _step: int | None = None  # of the present attempt
    _restored_attempt: int | None = None
    _older_attempt: int | None = None
    _furthest: int = 0
    _flush_asked_at: dict[int, float] = field(default_factory=dict)
    _is_repeating: bool = False  # an adopted worker repeats what an earlier daemon has counted

    def on_effect(self, effect: effects.Effect, now: float) -> None:
        match effect:
            case effects.Spawn():
                self.attempts += 1
                self._step, self._is_repeating = None, False
                self._flush_asked_at.clear()
            case effects.RequestIdentity():
                self._is_repeating = True
            case effects.RequestFlush():
                self._flush_asked_at[effect.id] = now
                while len(self._flush_asked_at) > OPEN_FLUSHES_KEPT:
                    del self._flush_asked_at[next(iter(self._flush_asked_at))]
            case effects.ReportBreach():
                self.invariants_broken += 1
            case effects.RecordEnd():
                self.ended_by_cause = {
                    **self.ended_by_cause,
                    effect.cause: self.ended_by_cause.get(effect.cause, 0) + 1,
                }

    def on_decision(
        self, event: Event | str | None, before: State, decided: list[effects.Effect], facts: ProgramFacts
    ) -> None:
        older = facts.current.older
        if isinstance(event, TrainingRestored) and older is not None and event.attempt != self._older_attempt:
            self._older_attempt = event.attempt  # it may say once more what it restored
            self.older_starts = {**self.older_starts, older.because: self.older_starts.get(older.because, 0) + 1}

    def on_checkpoint_refused(self, checkpoint: str, reason: str) -> None:
        self.refused_checkpoints += 1

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if self._is_repeating:
            self._catch_up(message)
            return
        match message:
            case messages.Restored():
                if message.attempt != self._restored_attempt:  # otherwise it only says more about what it restored
                    self.repeated_steps += max(0, self._furthest - message.step)
                self._step, self._restored_attempt = message.step, message.attempt
            case messages.Progress():
                self._progressed(message.step)
            case messages.Committed():
                self._progressed(message.step)
                if message.ago_s is None:
                    self.save = self.save.plus(message.save_s)
                    self.stall = self.stall.plus(message.stall_s)
                asked_at = [
                    self._flush_asked_at.pop(flush) for flush in message.flushes if flush in self._flush_asked_at
                ]
                if asked_at:
                    self.flush = self.flush.plus(now - min(asked_at))
            case messages.Replayed():
                self.replayed_steps += message.steps
                self.replay_differences += bool(message.differing)
            case messages.SaveFailed():
                self.failed_saves += 1
                for flush in message.flushes:
                    self._flush_asked_at.pop(flush, None)

    def _catch_up(self, message: messages.FromWorker) -> None:
        """Until its WorkerStatus, an adopted worker repeats where it is; none of that was done for this daemon."""
        match message:
            case messages.Restored() | messages.Progress() | messages.Committed():
                self._step = max(message.step, self._step or 0)
                self._furthest = max(message.step, self._furthest)
            case messages.WorkerStatus():
                self._is_repeating = False

    def _progressed(self, step: int) -> None:
        if self._step is not None and step > self._step:
            self.steps += step - self._step
            self.progressed_wall_at = time.time()
        self._step = max(step, self._step or 0)
        self._furthest = max(step, self._furthest)
