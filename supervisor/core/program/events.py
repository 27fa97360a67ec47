"""What happened: the only way anything gets into the core. Facts, in the past tense.

Points in time are monotonic seconds. An event that comes from a worker carries its attempt; the words of any other
attempt than the present one are dropped at the door (`job.Job.handle`).
"""

from dataclasses import dataclass

from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import Cause
from supervisor.core.notices.notice import Notice
from supervisor.protocol.messages import Phase, Then


@dataclass(frozen=True, slots=True)
class StartRequested:
    """An operator, autostart, or the ledger's memory wants the program to run.

    `goes_on`: a new daemon goes on where the one before it stopped; otherwise earlier failures count no more.
    """

    resumes: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested:
    """An operator wants the program to stop and stay stopped."""


@dataclass(frozen=True, slots=True)
class ProgramClosed:
    """Nobody here will run the program any more: the daemon leaves, or the program's configuration is another one.

    It flushes and stops, and what is wanted stays wanted, for whoever runs it next. `reason` in a word or two.
    `host_leaves`: the daemon leaves because the host shuts down; told a second time if that is known only later.
    """

    reason: str
    host_leaves: bool = False


@dataclass(frozen=True, slots=True)
class ShutdownHurried:
    """Somebody asked a second time: give up the gentle way that is being tried and take the next harder one."""


@dataclass(frozen=True, slots=True)
class FlushRequested:
    """Somebody wants a checkpoint now and training to go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpawnDelayed:
    """There is no process yet, as the host can't take it; SpawnSucceeded or SpawnFailed follows within `limit_s`."""

    attempt: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class SpawnSucceeded:
    """The process exists."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """There is no process. `permanent`: trying the same again would fail the same way.

    `waits_s`: nothing was tried, as the host can't take it now; it is looked at again after so many seconds.
    """

    attempt: int
    error: str
    permanent: bool
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSelected:
    """`path` is proven whole (None: there never was a checkpoint); its `step`.

    `place`: where its data stand, in words, if that is known.
    """

    attempt: int
    path: str | None
    step: int | None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class SelectionFailed:
    """Nothing may be restored, and beginning at step 0 would lose what was trained. `permanent`: a person must act."""

    attempt: int
    error: str
    permanent: bool


@dataclass(frozen=True, slots=True)
class TrainingRestored:
    """The worker has its state and stands at `step`."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The training loop reached `step`. `step_s`: mean seconds a step since the last time, if it was told.

    `section`: what the loop is at from now on. `saving_s`: for how long a save has been written beside it, if one is.
    """

    attempt: int
    step: int
    step_s: float | None = None
    section: LoopSection = LoopSection.STEP
    saving_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint of `step` is on the disk and answers the flush requests with these ids."""

    attempt: int
    step: int
    flushes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointSaveFailed:
    """A checkpoint did not reach the disk; these flush requests got no checkpoint."""

    attempt: int
    error: str
    flushes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DoneReported:
    """The worker says that training is complete; only its exit status 0 makes it so."""

    attempt: int


@dataclass(frozen=True, slots=True)
class FailureReported:
    """The worker's last words. `step`: where it failed, if it knows; `out_of_memory`: for lack of memory.

    `go_back`: training diverged at `step`, and the next attempt is to begin from before that.
    """

    attempt: int
    error: str
    step: int | None = None
    out_of_memory: bool = False
    rolls_back: bool = False


@dataclass(frozen=True, slots=True)
class ReadyReported:
    """A plain program says that it does its work now."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StacksCollected:
    """What the worker's threads were at is in the file `path`."""

    attempt: int
    path: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process is gone: exit status, or the signal that killed it; neither, where the kernel does not say.

    `oom`: what shows that the kernel killed it as memory ran out, in words. `error_line`: the last line that it wrote
    to standard error.
    """

    attempt: int
    code: int | None = None
    signal: int | None = None
    oom: str | None = None
    error_line: str | None = None


# --- an attempt that an earlier daemon began ---


@dataclass(frozen=True, slots=True)
class AttemptFound:
    """Its process lives and can be supervised. `age_s`: seconds since it was started.

    `outdated`: it was started from another configuration than the present one. `ready`: it has said that it is.
    """

    attempt: int
    age_s: float
    outdated: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class WorkerIdentified:
    """It said where it stands. `phase` and `then` as in `messages.Standing`; `restored`: it began from a checkpoint.

    `flush`: id of the latest flush that is not answered yet; `last_flush`: the highest that was ever asked of it.
    """

    attempt: int
    phase: Phase
    step: int | None = None
    restored: bool = False
    flush: int | None = None
    last_flush: int = 0
    then: Then = Then.GO_ON


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """It ended while no daemon was there. `done`: it had said so; `error`: its last words if it failed.

    `committed_step`: the highest step of its checkpoints. `host_left`: the host was started anew since it began.
    `step`, `out_of_memory`, `go_back`: as in `FailureSaid`; `code`: the exit status that it was about to leave with.
    `oom`: as in `WorkerExited`. `held_back`: what it depends on is not ready, so that what follows waits for a start.
    """

    attempt: int
    done: bool = False
    error: str | None = None
    committed_step: int | None = None
    host_rebooted: bool = False
    step: int | None = None
    out_of_memory: bool = False
    rolls_back: bool = False
    code: int | None = None
    oom: str | None = None
    held_back: bool = False


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """The host is going to go away, or sooner or more surely than was known: `notice` is now the gravest that holds.

    `again`: an earlier daemon had told it, and everybody has saved for it.
    """

    notice: Notice
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class NoticeChanged:
    """The gravest notice says another time now, or a graver one was withdrawn and this one remains."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class NoticeEnded:
    """No notice holds any more: withdrawn, or its deadline passed and the host still stands."""


@dataclass(frozen=True, slots=True)
class SavesMeasured:
    """`save_s`: what a save of this job is going to take while all others that must save do so too."""

    save_s: float


@dataclass(frozen=True, slots=True)
class RestartRequired:
    """It runs and must not go on as it is: over a limit, or not healthy. `text`: which and how."""

    attempt: int
    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class HostSuspended:
    """Nothing ran here for `suspended_for_s` seconds, until now: the host was frozen, or the daemon was."""

    suspended_for_s: float


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The state's one deadline went by."""


Event = (
    StartRequested
    | StopRequested
    | ProgramClosed
    | ShutdownHurried
    | FlushRequested
    | SpawnDelayed
    | SpawnSucceeded
    | SpawnFailed
    | CheckpointSelected
    | SelectionFailed
    | TrainingRestored
    | StepsDone
    | CheckpointCommitted
    | CheckpointSaveFailed
    | DoneReported
    | FailureReported
    | ReadyReported
    | StacksCollected
    | WorkerExited
    | AttemptFound
    | WorkerIdentified
    | AttemptLost
    | NoticeReceived
    | NoticeChanged
    | NoticeEnded
    | SavesMeasured
    | RestartRequired
    | HostSuspended
    | DeadlinePassed
)
