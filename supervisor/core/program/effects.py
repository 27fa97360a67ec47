"""What to do: the only way anything gets out of the core. Orders, for the runner to carry out in this order."""

from dataclasses import dataclass

from supervisor.protocol.messages import Then


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process of this attempt; answer with SpawnSucceeded or SpawnFailed.

    `microbatches`: into how many parts it is to divide each batch, to need less memory at a time.
    """

    attempt: int
    microbatches: int = 1


@dataclass(frozen=True, slots=True)
class SelectCheckpoint:
    """Find the newest whole checkpoint while the worker loads; answer with CheckpointSelected or SelectionFailed.

    `avoid`: names of checkpoints to pass over while an older one is whole. `before`: of a step below this, if there is
    one; those that are not are set aside. `unfit`: names that the program could not go on from, with why: if there is
    nothing else, there is nothing to begin from.
    """

    attempt: int
    avoid: frozenset[str] = frozenset()
    below_step: int | None = None
    unfit: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineCheckpoints:
    """Put these checkpoints, with why, where nothing will choose them: an older one was restored."""

    attempt: int
    unfit: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SendGo:
    """Tell the worker what to restore (None: nothing) and to train."""

    attempt: int
    restore: str | None


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Ask a worker of an earlier daemon where it stands; answer with WorkerIdentified."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Ask the worker for a checkpoint, and what to do then. `deadline_s`: seconds it has."""

    attempt: int
    id: int
    reason: str
    then: Then
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send the program's stop signal."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Keep the stacks of all threads, within half of `patience_s`, then send SIGABRT; answer with StacksKept."""

    attempt: int
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the worker and everything it started."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordWanted:
    """Write down, durably, whether the program is wanted after a restart of daemon or host."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """Write down how the attempt ended: the cause in one word, and in words for people."""

    attempt: int
    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class PersistHangHistory:
    """Write down the longest silences (s) that the job came back from, by section; only those that changed."""

    longest: tuple[tuple[str, float], ...]


Effect = (
    Spawn
    | SelectCheckpoint
    | QuarantineCheckpoints
    | SendGo
    | RequestIdentity
    | RequestFlush
    | Terminate
    | Abort
    | Kill
    | RecordWanted
    | RecordEnd
    | PersistHangHistory
)
