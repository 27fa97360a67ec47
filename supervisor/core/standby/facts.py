"""What a job's standby may be, what the job needs of it, and the memory that it may take."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.program.facts import ALIVE, AutoRestart, ProgramFacts, State

MIB = 1 << 20
WARM_BYTES = 640 * MIB  # TensorFlow 2.21, Keras and a small job's module imported: 614 MiB resident, seen on Linux 6
LAST_USE_S = (
    900.0  # before the host goes: a worker that dies then still gets a quick start and some minutes of training
)
HOT_BYTES = 1200 * MIB  # where the worker's own size is not known


class StandbyKind(StrEnum):
    """How much of a start a standby has done before it is needed."""

    OFF = "off"  # there is none
    AUTO = "auto"  # warm where it is safe and memory allows; only wanted, no process is of this kind
    WARM = "warm"  # TensorFlow and the job's modules are imported; no device is touched
    HOT = "hot"  # the model is built and its step traced and run, too


class StandbyStage(StrEnum):
    """How far the standby's process is."""

    NONE = "none"
    LOADING = "loading"
    READY = "ready"
    ENDING = "ending"  # killed and not gone yet


class StandbyNeed(StrEnum):
    """What the job's state means for its standby."""

    NONE = "none"  # no attempt will follow, or the host goes: the standby is dropped
    KEPT = "kept"  # the next attempt may take it; no time to prepare one
    BUSY = "busy"  # a flush is under way: nothing else may use disk and processors
    CALM = "calm"  # the job trains


def need_of(facts: ProgramFacts, now: float) -> StandbyNeed:
    """What a program's facts mean for its standby. A notice far ahead means nothing yet: maintenance is announced two
    weeks before."""
    over = (
        facts.closing
        or facts.current.done_reported
        or not facts.wanted
        or facts.policy.autorestart is AutoRestart.NEVER
    )
    if not facts.policy.is_job or over or _is_host_going_soon(facts, now):
        return StandbyNeed.NONE
    if facts.policy.is_gang and facts.state is State.STOPPED:  # it starts once all ranks are there
        return StandbyNeed.KEPT
    if facts.state is State.RUNNING:
        return StandbyNeed.CALM
    if facts.state is State.FLUSHING:
        return StandbyNeed.BUSY
    return StandbyNeed.KEPT if facts.state in ALIVE or facts.state is State.BACKOFF else StandbyNeed.NONE


def _is_host_going_soon(facts: ProgramFacts, now: float) -> bool:
    """Whether a notice holds that gives no time, or too little for a standby to be of use."""
    notice = facts.notice
    return notice is not None and (notice.deadline_at is None or notice.deadline_at - now <= LAST_USE_S)


@dataclass(frozen=True, slots=True)
class MemoryHeadroom:
    """Memory of the host, or of the container, in bytes."""

    available: int
    total: int

    def allows(self, wanted: int, growth: int = 0) -> bool:
        """Whether so much more leaves a tenth for others, at least 1 GiB, and at least `growth`."""
        return self.available - wanted >= self.reserve(growth)

    def reserve(self, growth: int = 0) -> int:
        """What has to stay available."""
        return max(1024 * MIB, self.total // 10, growth)

    @property
    def is_scarce(self) -> bool:
        """Whether less than a twentieth is left, or 512 MiB."""
        return self.available < max(512 * MIB, self.total // 20)
