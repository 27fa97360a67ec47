"""The messages on the control pipe, one class each. Times are in seconds.

Every message carries the attempt it belongs to, so that messages from or to a dead worker are dropped. A field's
annotation says what it may hold, `rate` how often a worker may send the message; the codec and the daemon's end of the
pipes refuse what is beyond. `docs/control-pipe.md` describes all this for programs in other languages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from supervisor.protocol.wire.limits import (
    Attempt,
    Bytes,
    Checkpoint,
    Count,
    ErrorText,
    FileNamed,
    Flushes,
    Id,
    Items,
    Metrics,
    Names,
    OrderedSeconds,
    PathText,
    Pid,
    Range,
    Rate,
    Seconds,
    Step,
    Text,
    Word,
)

PROTOCOL = 1
"""Increased when an old reader would misunderstand a new writer; new fields and types don't need that."""

STANDBY = 0
"""The attempt number of a standby, which is not an attempt yet."""

MAX_CLUSTER = 40_000  # characters; in a line there is room for that, with its quotes escaped

AWAY = 1500  # messages at once: so many a worker keeps while no daemon reads, with what the pipe holds


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
    """Train, starting from `restore` (absolute path of a verified checkpoint), or from the beginning if None.

    `memory`: at this abstract socket lies what attempt `memory_attempt` left in memory (docs/memory-tier.md); a newer
    state there that is whole is restored instead. Only for a worker that `restores_memory`. `mount`, `device`: the file
    system on which `checkpoint_dir` was when that was chosen, in words, and its number (stat(2), st_dev). `no_copies`:
    an attempt that copied its state into memory ran out of memory; this one is not to. `highest_step`: of all
    checkpoints that were there when that was chosen, 0: none; None: not known.
    """

    attempt: Attempt
    restore: PathText | None
    memory: Word | None = None
    memory_attempt: Attempt | None = None
    mount: Annotated[str, Text(1000)] | None = None
    device: Count | None = None
    no_copies: bool = False
    highest_step: Count | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Write a checkpoint now. `deadline_s`: seconds left from now on, None if there is no limit."""

    attempt: Attempt
    id: Id
    reason: Annotated[str, Text(1000)]
    then: Then
    deadline_s: OrderedSeconds | None = None


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Answers `parts-written`: the checkpoint exists in the mirror, or, with an `error`, it was given up."""

    attempt: Attempt
    checkpoint: Checkpoint
    error: ErrorText | None = None


@dataclass(frozen=True, slots=True)
class Identify:
    """Repeat what a daemon that has just started may have missed, and end with `standing`.

    `daemon_pid`, `daemon_start_time`: that daemon, for a worker that does not outlive it.
    """

    attempt: Attempt
    daemon_pid: Pid | None = None
    daemon_start_time: Count | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """Write the model as it is now to the job's export_dir, between two steps, and train on."""

    attempt: Attempt
    id: Id


@dataclass(frozen=True, slots=True)
class Promote:
    """To a standby: it is attempt `attempt` from now on, and `go` follows. Its pipes are in `pipes` now.

    `between_failures_s`, `microbatches`, `generation`: new values of these launch settings. `cluster`: TF_CONFIG of a
    rank of a gang.
    """

    attempt: Attempt
    pipes: PathText
    between_failures_s: OrderedSeconds | None = None
    microbatches: Count = 1
    generation: Count | None = None
    cluster: Annotated[str, Text(MAX_CLUSTER)] | None = None


# --- worker to daemon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker, and of its answer to `identify`. `reports_restore`: it sends `restoring`.

    `restores_memory`: it can begin from what an attempt before it left in memory.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    protocol: Count
    pid: Pid
    version: Word
    reports_restore: bool = False
    restores_memory: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A standby (attempt 0) has loaded all that it can and waits. `kind`: warm or hot, whichever it reached.

    `problem`: why it spares the next attempt nothing, so that the daemon may end it.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    kind: Word
    pid: Pid
    load_s: Seconds
    problem: ErrorText | None = None


@dataclass(frozen=True, slots=True)
class Restoring:
    """The restore of `checkpoint` (its name) begins now: if the worker dies of it, the checkpoint may be to blame.

    `from_memory`: it is in memory, and may not be on the disk.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    checkpoint: Annotated[str, FileNamed()]  # of another program, perhaps
    from_memory: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """The state is restored and training may begin. `checkpoint`: the name of the one restored, None at a fresh start.

    `unmatched`: what the program wanted and the checkpoint does not hold, or the other way round. `changed`: conditions
    of bit-exact training that differ from the last attempt, in words. Sent once more, with all of `changed`, if
    the data turn out to differ too, which the worker knows at its first step. `replicas`: over how many devices it
    trains. `gpus_missing`: that it sees none of the GPUs it was meant to use, and why. `from_memory`: the checkpoint
    was in memory, and may not be on the disk.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    step: Step
    checkpoint: Annotated[str, FileNamed()] | None  # of another program, perhaps
    restore_s: Seconds
    total_steps: Count | None = None
    unmatched: Names = ()
    changed: Names = ()
    replicas: Annotated[int, Range(0, 1_000_000)] | None = None
    gpus_missing: Annotated[str, Text(500)] | None = None
    from_memory: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done; sent by the training loop only. `step_s`: mean seconds per step since the last progress.

    `interval_s`: seconds between periodic saves, if the worker chooses them itself. `data_s`: how long the loop waited
    for its input since the last progress. `section`: what the loop does from now on (core/failures/hang_detection.py),
    None for its steps. `saving_s`: for how long a save has been written beside training. `memory_step`: the step of the
    newest state that outlives the worker in memory. `memory_interval_s`: seconds between two such copies;
    `memory_cost_s`: what one costs training.
    """

    rate: ClassVar[Rate] = Rate(200, 2000)

    attempt: Attempt
    step: Step
    epoch: Count | None = None
    total_steps: Count | None = None
    step_s: Seconds | None = None
    metrics: Metrics = field(default_factory=dict)
    interval_s: Seconds | None = None
    data_s: Seconds | None = None
    section: Word | None = None
    saving_s: Seconds | None = None
    memory_step: Step | None = None
    memory_interval_s: Seconds | None = None
    memory_cost_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class MemoryCopies:
    """The worker copies its newest state into a file in memory, so that it outlives the worker (docs/memory-tier.md).

    The file has `descriptor` in the process `pid`, and takes `size_bytes`. `why_not`: why there is none from now on.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    pid: Pid
    descriptor: Annotated[int, Range(0, 1 << 20)] | None = None
    size_bytes: Bytes = 0
    why_not: ErrorText | None = None


@dataclass(frozen=True, slots=True)
class Flushing:
    """Flush `id` has arrived; a checkpoint is written after the current step."""

    rate: ClassVar[Rate] = Rate(10, AWAY)

    attempt: Attempt
    id: Id
    step: Step


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint is on the disk. `flushes`: the ids of the flush requests it answers.

    `stall_s`: how long training waited for it; `save_s`: from the decision to the last sync. `left_out`: variables that
    training uses and no checkpoint of this run holds; only with the first one. `ago_s`: how long ago it was committed,
    if nothing was saved now: this repeats it for a new daemon, or answers a flush at a step that it holds already.
    """

    rate: ClassVar[Rate] = Rate(100, AWAY)

    attempt: Attempt
    step: Step
    checkpoint: Checkpoint
    size_bytes: Bytes
    save_s: Seconds
    stall_s: Seconds
    flushes: Flushes = ()
    left_out: Names = ()
    ago_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class PartsWritten:
    """A checkpoint's files are on the disks of the nodes that wrote them; it exists once the mirror has its manifest.

    `is_divided`: every node that trains has files of it, and not this one alone. The worker waits for `mirrored`.
    """

    rate: ClassVar[Rate] = Rate(50, AWAY)

    attempt: Attempt
    step: Step
    checkpoint: Checkpoint
    is_divided: bool


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A save failed before its commit; training goes on."""

    rate: ClassVar[Rate] = Rate(50, AWAY)

    attempt: Attempt
    step: Step
    error: ErrorText
    flushes: Flushes = ()


@dataclass(frozen=True, slots=True)
class Replayed:
    """Steps were trained a second time from the same state, to compare the bits (docs/replay.md).

    `step`: the last of them; `steps`: how many were compared, 0 if that was broken off. `took_s`: how long training
    stood still for it. `differing`: what was not the same bits, by name. `checkpoints`: those of the states that both
    agree on. `problem`: why this attempt replays nothing from now on.
    """

    rate: ClassVar[Rate] = Rate(50, AWAY)

    attempt: Attempt
    step: Step
    steps: Count
    took_s: Seconds
    differing: Names = ()
    checkpoints: Names = ()
    problem: ErrorText | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an `export`: the absolute `path` of the SavedModel, or the `error`."""

    rate: ClassVar[Rate] = Rate(5, AWAY)

    attempt: Attempt
    id: Id
    step: Step
    path: PathText | None = None
    error: ErrorText | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Training is complete and its last checkpoint is committed."""

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    step: Step
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a worker that fails: the error in one line, and the end of the traceback.

    `out_of_memory`: the exception says that memory ran out. `go_back`: training diverged at `step`, and the next
    attempt is to begin from before that. `batches`: data that later attempts leave out because of it, as `EPOCH:BATCH`,
    both from 0. `code`: the exit status that the worker is about to leave with, if known. `errno`: the error of a
    checkpoint directory that could not be used. `gang_attempt`: of several workers with a daemon each, the attempt
    after which their checkpoints are named.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    step: Step | None
    error: ErrorText
    traceback: Annotated[str, Text(16_000, keep_end=True)] = ""
    out_of_memory: bool = False
    go_back: bool = False
    batches: Annotated[tuple[Annotated[str, Text(50)], ...], Items(1000)] = ()
    code: Annotated[int, Range(0, 255)] | None = None
    errno: Annotated[int, Range(0, 4095)] | None = None
    gang_attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """End of the answer to `identify`. `flushes`: ids of flushes that are not answered yet; `last_flush`: the highest
    id ever received, or 0. `then`: what it does once they are answered; also `stop` if a signal asked for it.
    """

    rate: ClassVar[Rate] = Rate(1, 20)

    attempt: Attempt
    pid: Pid
    phase: Phase
    step: Step | None = None
    restored: Annotated[str, FileNamed()] | None = None
    flushes: Flushes = ()
    last_flush: Id = 0
    then: Then = Then.GO_ON


ToWorker = Go | Flush | Export | Mirrored | Identify | Promote
FromWorker = (
    Hello
    | Ready
    | Restoring
    | Restored
    | Progress
    | MemoryCopies
    | Flushing
    | Committed
    | PartsWritten
    | SaveFailed
    | Replayed
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
    "mirrored": Mirrored,
    "identify": Identify,
    "promote": Promote,
    "hello": Hello,
    "ready": Ready,
    "restoring": Restoring,
    "restored": Restored,
    "progress": Progress,
    "memory-copies": MemoryCopies,
    "flushing": Flushing,
    "committed": Committed,
    "parts-written": PartsWritten,
    "save-failed": SaveFailed,
    "replayed": Replayed,
    "exported": Exported,
    "done": Done,
    "failed": Failed,
    "standing": WorkerStatus,
}
NAMES: Mapping[type[Message], str] = {kind: name for name, kind in TYPES.items()}
