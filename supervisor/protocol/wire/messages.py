"""The messages on the control pipe, one class each, and the exit codes of a worker. Times are in seconds.

Every message carries the attempt it belongs to, so that messages from or to a dead worker are dropped.
`docs/control-pipe.md` describes them for programs in other languages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

PROTOCOL = 1
"""Increased when an old reader would misunderstand a new writer; new fields and types don't need that."""

STANDBY = 0
"""The attempt number of a standby, which is not an attempt yet."""


class Then(StrEnum):
    """What the worker does once a flush is committed."""

    GO_ON = "go-on"
    STOP = "stop"


class Phase(StrEnum):
    """How far a worker is."""

    WAITING = "waiting"  # for `go`
    RESTORING = "restoring"  # `go` has arrived, the state is not restored yet
    TRAINING = "training"
    DONE = "done"  # `done` was sent; it is about to exit


# --- daemon to worker -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Go:
    """Train, starting from `restore` (absolute path of a verified checkpoint), or from the beginning if None."""

    attempt: int
    restore: str | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Write a checkpoint now. `deadline_s`: seconds left from now on, None if there is no limit."""

    attempt: int
    id: int
    reason: str
    then: Then
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Identify:
    """Repeat what a daemon that has just started may have missed, and end with `standing`.

    `daemon_pid`, `daemon_start_time`: that daemon, for a worker that does not outlive it.
    """

    attempt: int
    daemon_pid: int | None = None
    daemon_start_time: int | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """Write the model as it is now to the job's export_dir, between two steps, and train on."""

    attempt: int
    id: int


@dataclass(frozen=True, slots=True)
class Promote:
    """To a standby: it is attempt `attempt` from now on, and `go` follows. Its pipes are in `pipes` now.

    `between_failures_s`, `microbatches`: new values of these launch settings.
    """

    attempt: int
    pipes: str
    between_failures_s: float | None = None
    microbatches: int = 1


# --- worker to daemon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker, and of its answer to `identify`. `reports_restore`: it sends `restoring`."""

    attempt: int
    protocol: int
    pid: int
    version: str
    reports_restore: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A standby (attempt 0) has loaded all that it can and waits. `kind`: warm or hot, whichever it reached.

    `problem`: why it spares the next attempt nothing, so that the daemon may end it.
    """

    attempt: int
    kind: str
    pid: int
    load_s: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Restoring:
    """The restore of `checkpoint` (its name) begins now: if the worker dies of it, the checkpoint may be to blame."""

    attempt: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The state is restored and training may begin. `checkpoint`: the name of the one restored, None at a fresh start.

    `unmatched`: what the program wanted and the checkpoint does not hold, or the other way round. `changed`: conditions
    of bit-exact training that differ from the last attempt, in words. Sent once more, with all of `changed`, if
    the data turn out to differ too, which the worker knows at its first step. `replicas`: over how many devices it
    trains.
    """

    attempt: int
    step: int
    checkpoint: str | None
    restore_s: float
    total_steps: int | None = None
    unmatched: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done; sent by the training loop only. `step_s`: mean seconds per step since the last progress.

    `interval_s`: seconds between periodic saves, if the worker chooses them itself. `data_s`: how long the loop waited
    for its input since the last progress. `section`: what the loop does from now on (core/failures/hang_detection.py),
    None for its steps. `saving_s`: for how long a save has been written beside training.
    """

    attempt: int
    step: int
    epoch: int | None = None
    total_steps: int | None = None
    step_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    interval_s: float | None = None
    data_s: float | None = None
    section: str | None = None
    saving_s: float | None = None


@dataclass(frozen=True, slots=True)
class Flushing:
    """Flush `id` has arrived; a checkpoint is written after the current step."""

    attempt: int
    id: int
    step: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint is on the disk. `flushes`: the ids of the flush requests it answers.

    `stall_s`: how long training waited for it; `save_s`: from the decision to the last sync. `left_out`: variables that
    training uses and no checkpoint of this run holds; only with the first one. `ago_s`: how long ago it was committed,
    if this repeats it for a new daemon.
    """

    attempt: int
    step: int
    checkpoint: str
    size_bytes: int
    save_s: float
    stall_s: float
    flushes: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A save failed before its commit; training goes on."""

    attempt: int
    step: int
    error: str
    flushes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an `export`: the absolute `path` of the SavedModel, or the `error`."""

    attempt: int
    id: int
    step: int
    path: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Training is complete and its last checkpoint is committed."""

    attempt: int
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a worker that fails: the error in one line, and the end of the traceback.

    `out_of_memory`: the exception says that memory ran out. `go_back`: training diverged at `step`, and the next
    attempt is to begin from before that. `batches`: data that later attempts leave out because of it, as `EPOCH:BATCH`,
    both from 0. `code`: the exit status that the worker is about to leave with, if known. `errno`: the error of a
    checkpoint directory that could not be used.
    """

    attempt: int
    step: int | None
    error: str
    traceback: str = ""
    out_of_memory: bool = False
    go_back: bool = False
    batches: tuple[str, ...] = ()
    code: int | None = None
    errno: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """End of the answer to `identify`. `flushes`: ids of flushes that are not answered yet; `last_flush`: the highest
    id ever received, or 0. `then`: what it does once they are answered; also `stop` if a signal asked for it.
    """

    attempt: int
    pid: int
    phase: Phase
    step: int | None = None
    restored: str | None = None
    flushes: tuple[int, ...] = ()
    last_flush: int = 0
    then: Then = Then.GO_ON


ToWorker = Go | Flush | Export | Identify | Promote
FromWorker = (
    Hello
    | Ready
    | Restoring
    | Restored
    | Progress
    | Flushing
    | Committed
    | SaveFailed
    | Exported
    | Done
    | Failed
    | WorkerStatus
)
Message = ToWorker | FromWorker

TYPES: Mapping[str, type[Message]] = {
    "go": Go,
    "flush": Flush,
    "export": Export,
    "identify": Identify,
    "promote": Promote,
    "hello": Hello,
    "ready": Ready,
    "restoring": Restoring,
    "restored": Restored,
    "progress": Progress,
    "flushing": Flushing,
    "committed": Committed,
    "save-failed": SaveFailed,
    "exported": Exported,
    "done": Done,
    "failed": Failed,
    "standing": WorkerStatus,
}


# --- exit status ------------------------------------------------------------------------------------------------


class WorkerExit(IntEnum):
    """Why a worker left; every other exit status is the user's own and counts as a crash.

    Numbers follow sysexits.h where it has the meaning, and the shell's 128 + signal for a stop on request.
    """

    DONE = 0  # finished; only counts as success together with a `done` message
    USER_ERROR = 1  # an exception left the training script (Python's own code for it)
    CHECKPOINT_UNFIT = 65  # EX_DATAERR: the checkpoint is whole but does not fit this program; an older one may
    INCOMPLETE = 70  # EX_SOFTWARE: strict, and the checkpoints would not hold all that training uses
    DIRECTORY_UNUSABLE = 73  # EX_CANTCREAT: checkpoint_dir can't be created or written
    SAVE_FAILED = 74  # EX_IOERR: the last save of the run failed (disk full, I/O error)
    LOCKED = 75  # EX_TEMPFAIL: another live worker holds the checkpoint directory
    BAD_LAUNCH = 78  # EX_CONFIG: entry point missing, launch environment wrong
    DIVERGED = 80  # past sysexits.h: training diverged, and the job must not train on
    STOPPED = 143  # 128 + SIGTERM: asked to stop; flushed and left


PERMANENT_EXITS = frozenset({WorkerExit.INCOMPLETE, WorkerExit.DIRECTORY_UNUSABLE, WorkerExit.BAD_LAUNCH})
"""Codes after which the same start would fail in the same way: a person must change something first."""
