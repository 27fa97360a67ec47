"""What happens to a job's standby, and what is to be done about it (the effects)."""

from dataclasses import dataclass

from supervisor.core.standby.facts import MemoryHeadroom, StandbyKind, StandbyNeed

# --- what happens -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobChanged:
    """The job's need, after anything that may have changed it. `is_closed`: no attempt starts any more, also none that
    was expected."""

    need: StandbyNeed
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """The host's memory. `expected`: bytes that a standby will take; `may_load`: no other one is loading.

    `worker`: bytes that the job's worker takes; 0 if that is not known.
    """

    memory: MemoryHeadroom
    expected: int
    may_load: bool
    worker: int = 0


@dataclass(frozen=True, slots=True)
class StandbyLoaded:
    """The standby is ready. `kind`: how much it has loaded."""

    kind: StandbyKind


@dataclass(frozen=True, slots=True)
class StandbyUseless:
    """The standby can't spare the next attempt anything. `text`: why; the same would happen again."""

    text: str


@dataclass(frozen=True, slots=True)
class StandbyExited:
    """The standby's process is gone, or could not be started. `text`: how; `permanent`: the same would happen again."""

    text: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStarting:
    """The job's next attempt starts. `unusable_because`: why the standby cannot become it; None if it can.

    `microbatches`: into how many parts batches are divided from now on.
    """

    unusable_because: str | None = None
    microbatches: int = 1


@dataclass(frozen=True, slots=True)
class StartExpected:
    """The job's next attempt starts within seconds, and nothing trains here."""


StandbyEvent = (
    JobChanged | StartExpected | MemoryMeasured | StandbyLoaded | StandbyUseless | StandbyExited | AttemptStarting
)


# --- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareStandby:
    """Start a standby; answer with StandbyLoaded, and in the end with StandbyExited."""

    kind: StandbyKind
    microbatches: int
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class DropStandby:
    """Send it SIGKILL, as it holds nothing; answer with StandbyExited."""

    reason: str


@dataclass(frozen=True, slots=True)
class PromoteStandby:
    """Make it the next attempt's process; it is no standby any more."""


StandbyEffect = PrepareStandby | DropStandby | PromoteStandby
