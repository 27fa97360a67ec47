"""What is to be done: the only output of the core. The runner executes effects in the order they are given."""

from dataclasses import dataclass, field

from supervisor.core.diagnosis.evidence import Diagnosis
from supervisor.core.failures.restart import Cause
from supervisor.core.program.events import MemoryOffer
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.protocol.checkpoints.account import ReportedCheckpoint, StatedReason
from supervisor.protocol.wire.messages import Then


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

    `avoid`: names of checkpoints to pass over while an older one is whole. `restore_below_step`: choose one of a lower
    step if there is one, and quarantine the others. `unfit`: names of checkpoints that did not fit the program, with
    the reason; they are never chosen. `newest`: the newest one that was ever reported, of whose whereabouts the answer
    tells. `begin_at`: an operator chose this step; set aside first what is newer, or for 0 everything.
    `pass_over_unreadable`: choose an older one if the newest can't be read. `begin_since`: the first attempt that was
    launched to begin at that step; what this one or a later one has saved is not set aside. `diverged_attempt`: the one
    that `restore_below_step` is about; what a later one has saved is not quarantined. None: not known.
    `is_memory_short`: what a dead worker left in memory is on the disk, and let go, before another one takes memory.
    """

    attempt: int
    avoid: frozenset[str] = frozenset()
    restore_below_step: int | None = None
    unfit: tuple[tuple[str, str], ...] = ()
    newest: ReportedCheckpoint | None = None
    begin_at: int | None = None
    pass_over_unreadable: bool = False
    begin_since: int | None = None
    diverged_attempt: int | None = None
    is_memory_short: bool = False


@dataclass(frozen=True, slots=True)
class LookAtStorage:
    """Look whether the checkpoint directory can be used and what it holds, without reading it all; answer with
    StorageSeen. `writes`: also write a small file. `newest`: as for SelectCheckpoint. Not again while the last look has
    no answer.
    """

    attempt: int
    writes: bool = False
    newest: ReportedCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class LookAtStartPaths:
    """Look whether the program's directory and command are there; answer with StartPathsSeen. Not again while the last
    look has no answer.
    """

    attempt: int


@dataclass(frozen=True, slots=True)
class WithdrawOrder:
    """What an operator chose (`begin_at` of SelectCheckpoint) is withdrawn: set nothing aside for it any more, also if
    a disk has kept that waiting until now.
    """


@dataclass(frozen=True, slots=True)
class QuarantineCheckpoints:
    """Move these checkpoints to quarantine, each with its reason: an older one was restored."""

    attempt: int
    unfit: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SalvageMemory:
    """Write the newest state that the attempt left in memory as a checkpoint, if it is newer than what it saved, before
    any other attempt begins; answer with MemorySalvaged if there was one. `mount`: the file system of its directory.
    `restored`: the name of the checkpoint from which it began, which stays.
    """

    attempt: int
    mount: str | None = None
    restored: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseMemory:
    """Let go of what the attempt left in memory."""

    attempt: int


@dataclass(frozen=True, slots=True)
class SendGo:
    """Tell the worker what to restore (None: nothing) and to train. `gives_up_newer`: an operator chose that, whatever
    there is that is newer. `memory`: what it restores instead if that is newer and whole. `stated`: why it is not the
    newest, for the other nodes of a gang. `seen_on`: the file system on which the directory was when that was chosen,
    in words, and its number; None if they are not known. `no_copies`: it makes none of its state in memory.
    `highest_step`: of all checkpoints that were there then, 0: none; None: not known. `passed_over`: a newer checkpoint
    that is not begun from for a reason, which the store may have.
    """

    attempt: int
    restore: str | None
    gives_up_newer: bool = False
    memory: MemoryOffer | None = None
    stated: StatedReason | None = None
    no_copies: bool = False
    seen_on: tuple[str, int] | None = field(default=None, compare=False)
    highest_step: int | None = field(default=None, compare=False)
    passed_over: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Ask a worker of an earlier daemon for its status; answer with WorkerIdentified."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RequestFlush:
    """Ask the worker for a checkpoint, and tell it what to do then. `deadline_s`: seconds it has."""

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
    """Dump the stacks of all threads within half of `timeout_s`, then send SIGABRT; answer with StacksCollected."""

    attempt: int
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LookAtSilence:
    """Look `looks` times within `over_s` seconds at what the processes of a silent job do; answer with SilenceObserved.

    Nothing may come of it, if the host has no thread to spare or the processes are gone.
    """

    attempt: int
    over_s: float
    looks: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the worker, and everything that it started unless it is a plain program without `killasgroup`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecordWanted:
    """Store durably whether the program is wanted after a restart of daemon or host."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """Store how the attempt ended: its cause, and a text for people.

    `unsaved`: it was to save before it ended, and its last steps are in no checkpoint. `diagnosis`: why it died; None
    if it was meant to end; it is for people, and no part of the decision.
    """

    attempt: int
    cause: Cause
    text: str
    unsaved: SavedProgress | None = None
    diagnosis: Diagnosis | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PersistHangHistory:
    """Store the longest silences (s) that the job survived, by section; only those that changed."""

    longest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ReportBreach:
    """Log and count that an invariant (`core/invariants.py`) does not hold: a defect of the core.

    `event`: what happened; `before`, `after`: the facts, all as Python prints them.
    """

    invariant: str
    event: str
    before: str
    after: str


Effect = (
    Spawn
    | SelectCheckpoint
    | LookAtStorage
    | LookAtStartPaths
    | WithdrawOrder
    | QuarantineCheckpoints
    | SalvageMemory
    | ReleaseMemory
    | SendGo
    | RequestIdentity
    | RequestFlush
    | Terminate
    | Abort
    | LookAtSilence
    | Kill
    | RecordWanted
    | RecordEnd
    | PersistHangHistory
    | ReportBreach
)
