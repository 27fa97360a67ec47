"""When a job has a hot or warm standby: a process that has loaded everything and becomes its next attempt.

This is a state machine of its own beside the job's. `handle(event, now)` gives effects; `deadline()` says when it needs
the host's memory measured again (`MemoryMeasured`). All it knows of the job is `need_of(facts)`, and it decides nothing
about the job: the job's table cannot tell whether the next attempt is the standby or a new process.
"""

import math
from dataclasses import dataclass, replace

from supervisor.core.standby.events import (
    AttemptStarting,
    DropStandby,
    JobChanged,
    MemoryMeasured,
    PrepareStandby,
    PromoteStandby,
    StandbyEffect,
    StandbyEvent,
    StandbyExited,
    StandbyLoaded,
    StandbyUseless,
    StartExpected,
)
from supervisor.core.standby.facts import StandbyKind, StandbyNeed, StandbyStage
from supervisor.protocol.plurals import counted_bytes

SETTLE_S = 2.0  # of undisturbed training before one is prepared: a job that dies at its first steps needs the machine
AUTO_SETTLE_S = 10.0  # where nobody asked for one: a job of some seconds is not to load everything twice
AGAIN_S = 0.5  # once one was ready: the job has trained before, and the next death may come as soon
MEASURE_S = 10.0  # how often memory is measured while there is one: it gives way before the kernel has to choose
TURN_S = 1.0  # another job's standby is loading; a load takes some seconds
SCARCE_S = 60.0  # after it had to give way to others
BACKOFF_FIRST_S, BACKOFF_LIMIT_S = 10.0, 600.0  # after it died while loading; training matters more


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """Everything that the machine knows, replaced at every change. Points in time are monotonic seconds."""

    stage: StandbyStage = StandbyStage.NONE
    kind: StandbyKind | None = None  # of the one there is, once that is known
    reason: str | None = None  # why there is none
    need: StandbyNeed = StandbyNeed.NONE
    calm_since: float = 0.0
    not_before: float = 0.0
    measure_at: float | None = None
    load_by: float = 0.0
    microbatches: int = 1  # it divides batches into as many parts
    deaths: int = 0  # since one was of use
    was_ready: bool = False  # this one, or an earlier one of the job
    is_expected: bool = False  # the attempt that it is for starts soon


class Standby:
    """The standby of one job. `load_limit_s`: how long one may load; `impossible`: why the job can never have one."""

    def __init__(self, kind: StandbyKind, load_limit_s: float = 600.0, impossible: str | None = None) -> None:
        self.wanted = kind
        self.is_possible = kind is not StandbyKind.OFF and impossible is None
        self.status = StandbyStatus(reason=impossible)
        self._load_limit_s = load_limit_s

    def deadline(self) -> float | None:
        """When to measure memory (`MemoryMeasured`), in monotonic seconds; None if nothing depends on it."""
        return self.status.measure_at

    def handle(self, event: StandbyEvent, now: float) -> list[StandbyEffect]:
        """What to do about `event`, which happened at `now`. If it raises, nothing has changed."""
        if not self.is_possible:
            return []
        match event:
            case JobChanged():
                return self._job_changed(event, now)
            case StartExpected():
                self.status = replace(self.status, is_expected=True)
                self._plan(now)
                return []
            case MemoryMeasured():
                return self._memory_measured(event, now)
            case StandbyLoaded():
                return self._standby_loaded(event, now)
            case StandbyUseless():
                effects = self._drop(event.text, None)
                self.status = replace(self.status, not_before=math.inf if effects else self.status.not_before)
                self._plan(now)
                return effects
            case StandbyExited():
                return self._standby_exited(event, now)
            case AttemptStarting():
                return self._attempt_starting(event)

    def _job_changed(self, event: JobChanged, now: float) -> list[StandbyEffect]:
        was = self.status
        is_cancelled = event.is_closed and was.is_expected
        if event.need is was.need and not is_cancelled:
            return []
        self.status = was = replace(was, is_expected=was.is_expected and not is_cancelled)
        calm_since = now if event.need is StandbyNeed.CALM else was.calm_since
        self.status = was = replace(was, need=event.need, calm_since=calm_since)
        effects: list[StandbyEffect] = []
        if event.need is StandbyNeed.NONE:
            effects = self._drop("the job does not need one", None)
        elif event.need is StandbyNeed.BUSY and was.stage is StandbyStage.LOADING:
            effects = self._drop("it stops loading while the job saves, and starts again after that", None)
        self._plan(now)
        return effects

    def _memory_measured(self, event: MemoryMeasured, now: float) -> list[StandbyEffect]:
        was = self.status
        effects: list[StandbyEffect] = []
        if was.stage in (StandbyStage.LOADING, StandbyStage.READY) and event.memory.is_scarce:
            self.status = replace(was, not_before=now + SCARCE_S)
            effects = self._drop(f"memory is scarce ({counted_bytes(event.memory.available)} left)", None)
        elif was.stage is StandbyStage.LOADING and now >= was.load_by:
            effects = self._drop(
                f"not ready within {self._load_limit_s:g} s; does the script wait for the daemon?", now
            )
        elif was.stage is StandbyStage.NONE and self._is_wanted() and now >= self._earliest():
            return self._prepare(event, now)
        self._plan(now)
        return effects

    def _prepare(self, event: MemoryMeasured, now: float) -> list[StandbyEffect]:
        # Nobody asked for an automatic one, so it also leaves the worker room to grow by half: the copy that a save
        # takes of Adam's state, or an evaluation with larger batches.
        growth = event.worker // 2 if self.wanted is StandbyKind.AUTO else 0
        if not event.memory.allows(event.expected, growth):
            reason = (
                f"memory: it needs {counted_bytes(event.expected)}, {counted_bytes(event.memory.available)} is "
                f"available, and {counted_bytes(event.memory.reserve(growth))} of that must stay free"
            )
            self.status = replace(self.status, reason=reason, measure_at=now + MEASURE_S)
            return []
        if not event.may_load:
            self.status = replace(self.status, reason="another job's standby is loading", measure_at=now + TURN_S)
            return []
        self.status = replace(
            self.status, stage=StandbyStage.LOADING, kind=None, reason=None, load_by=now + self._load_limit_s
        )
        self._plan(now)
        kind = StandbyKind.WARM if self.wanted is StandbyKind.AUTO else self.wanted
        return [PrepareStandby(kind, self.status.microbatches, self.status.is_expected)]

    def _standby_loaded(self, event: StandbyLoaded, now: float) -> list[StandbyEffect]:
        if self.status.stage is StandbyStage.LOADING:
            self.status = replace(self.status, stage=StandbyStage.READY, kind=event.kind, was_ready=True)
            self._plan(now)
        return []

    def _standby_exited(self, event: StandbyExited, now: float) -> list[StandbyEffect]:
        """Records its death, which is no failure of the job; the next one is prepared later each time."""
        was = self.status
        if was.stage in (StandbyStage.LOADING, StandbyStage.READY):
            self._died(event.text, now, event.permanent)
        self.status = replace(self.status, stage=StandbyStage.NONE, kind=None)
        self._plan(now)
        return []

    def _attempt_starting(self, event: AttemptStarting) -> list[StandbyEffect]:
        was = self.status
        traced_otherwise = event.microbatches != was.microbatches and self.wanted is StandbyKind.HOT
        not_before = 0.0 if math.isinf(was.not_before) else was.not_before  # what was wrong may be right by now
        self.status = was = replace(was, microbatches=event.microbatches, not_before=not_before, is_expected=False)
        if was.stage not in (StandbyStage.LOADING, StandbyStage.READY) or was.need is StandbyNeed.NONE:
            return []
        if event.unusable_because is not None or traced_otherwise:
            return self._drop(event.unusable_because or "its step was traced for another number of microbatches", None)
        self.status = replace(self.status, stage=StandbyStage.NONE, kind=None, reason=None, deaths=0, measure_at=None)
        return [PromoteStandby()]

    def _drop(self, reason: str, died_at: float | None) -> list[StandbyEffect]:
        if self.status.stage not in (StandbyStage.LOADING, StandbyStage.READY):
            return []
        if died_at is not None:
            self._died(reason, died_at)
        self.status = replace(self.status, stage=StandbyStage.ENDING, kind=None, reason=reason)
        return [DropStandby(reason)]

    def _died(self, text: str, now: float, permanent: bool = False) -> None:
        if permanent:
            self.status = replace(self.status, not_before=math.inf, reason=text)
            return
        pause = min(BACKOFF_FIRST_S * 2.0 ** min(self.status.deaths, 20), BACKOFF_LIMIT_S)
        self.status = replace(
            self.status, deaths=self.status.deaths + 1, not_before=now + pause, reason=f"the last one ended: {text}"
        )

    def _is_wanted(self) -> bool:
        return self.status.need is StandbyNeed.CALM or self.status.is_expected

    def _earliest(self) -> float:
        if self.status.is_expected:
            return self.status.not_before
        settle_s = AUTO_SETTLE_S if self.wanted is StandbyKind.AUTO else SETTLE_S
        if self.status.was_ready:
            settle_s = AGAIN_S
        return max(self.status.calm_since + settle_s, self.status.not_before)

    def _plan(self, now: float) -> None:
        """Sets when memory is measured next."""
        was = self.status
        measure_at: float | None = None
        if was.stage in (StandbyStage.LOADING, StandbyStage.READY):
            measure_at = now + MEASURE_S
        elif was.stage is StandbyStage.NONE and self._is_wanted():
            measure_at = None if math.isinf(self._earliest()) else max(self._earliest(), now)
        self.status = replace(was, measure_at=measure_at)
