"""What happened: the only input of the core. Names are in the past tense.

Points in time are monotonic seconds. An event of a worker carries its attempt; those of any other attempt than
the current one are dropped (`job.Job.handle`).
"""

from dataclasses import dataclass

from supervisor.core.diagnosis.evidence import Diagnosis, Evidence
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.looks import SilenceEvidence
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.slowness import Slowdown
from supervisor.core.failures.start_paths import UnreachablePath
from supervisor.core.notices.notice import Notice
from supervisor.protocol.checkpoints.account import StatedReason
from supervisor.protocol.damage import RejectedCheckpoint
from supervisor.protocol.wire.messages import Phase, Then


class Event:
    """Anything that can happen to a program."""

    __slots__ = ()


class ReportedEvent(Event):
    """What a worker's words become: it can say them without end."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MemoryOffer:
    """What attempt `of_attempt` left in memory. `socket`: the name of the one at which a worker gets it."""

    socket: str
    of_attempt: int


@dataclass(frozen=True, slots=True)
class StartRequested(Event):
    """An operator, autostart or the ledger wants the program to run.

    `resumes`: a new daemon continues where the last one was; otherwise earlier failures no longer count.
    """

    resumes: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """An operator wants the program to stop and stay stopped."""


@dataclass(frozen=True, slots=True)
class ProgramClosed(Event):
    """This daemon will not run the program any more: it exits, or the program's configuration has changed.

    The program flushes and stops, and stays wanted, for whoever runs it next. `reason` is a word or two.
    `host_leaves`: the daemon exits because the host shuts down; sent a second time if that is known only later.
    """

    reason: str
    host_leaves: bool = False


@dataclass(frozen=True, slots=True)
class ShutdownHurried(Event):
    """A second request to stop: skip the step that is being waited for and take the next harder one."""


@dataclass(frozen=True, slots=True)
class FlushRequested(Event):
    """Somebody wants a checkpoint now; training goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpawnDelayed(Event):
    """The host cannot take the process yet; SpawnSucceeded or SpawnFailed follows within `limit_s`."""

    attempt: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class SpawnSucceeded(Event):
    """The process exists. `gpus_left_out`: what is wrong with the GPUs that it does without; None: it has all."""

    attempt: int
    gpus_left_out: str | None = None


@dataclass(frozen=True, slots=True)
class SpawnFailed(Event):
    """There is no process. `permanent`: another attempt would fail the same way.

    `retry_in_s`: nothing was tried, since the host cannot take it now; it is tried again after so many seconds.
    `missing`: the directory, command or script that can't be reached, if that is why.
    """

    attempt: int
    error: str
    permanent: bool
    retry_in_s: float | None = None
    missing: UnreachablePath | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSelected(Event):
    """The checkpoint `path` of `step` was verified; None if there never was one.

    `place`: its position in the data, in words, if that is known. `highest_step`: of the committed checkpoints in the
    directory; `mount`: the file system that it is on, in words, `device`: the same as a number. `passed_over`: the
    newest checkpoint that was reported, or one as new, if it is not restored because it is in quarantine or was refused
    now. `memory`: where the worker gets what the last attempt left in memory, from which it begins if that is newer and
    whole. `stated`: why it is an older one, where another node of the gang has selected it. `below_step`: it had to be
    of a lower step, as training has diverged there, on whichever rank of a gang.
    """

    attempt: int
    path: str | None
    step: int | None
    place: str | None = None
    highest_step: int | None = None
    mount: str | None = None
    passed_over: RejectedCheckpoint | None = None
    memory: MemoryOffer | None = None
    stated: StatedReason | None = None
    below_step: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True)
class RunTakenOver(Event):
    """Another host goes on with this run; `text` says which, and what to do."""

    text: str


@dataclass(frozen=True, slots=True)
class CheckpointOutdated(Event):
    """Another host has uploaded a newer checkpoint of this run since the attempt began, and now the run is this host's.

    `text`: which one.
    """

    text: str


@dataclass(frozen=True, slots=True)
class SelectionFailed(Event):
    """No checkpoint may be restored, and step 0 would lose what was trained. `permanent`: a person must act.

    `attempts_used`: attempt numbers up to this one turned out to be taken. `errno`: the error that the directory gave,
    if it gave one, which decides instead of `permanent`. `older_readable`: only the newest checkpoint can't be read.
    """

    attempt: int
    error: str
    permanent: bool
    attempts_used: int = 0
    errno: int | None = None
    older_readable: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointsSetAside(Event):
    """What is newer than the step that an operator chose (0: everything) was moved out of the attempt's way."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class StorageSeen(Event):
    """The answer to LookAtStorage. `error`: why the directory can't be used, with its `errno`; None if it can be.

    `highest_step`, `mount`, `passed_over`: as in CheckpointSelected. `has_store`: the job has a mirror, which the next
    attempt asks for what is missing; `store_error`: why that does not answer.
    """

    attempt: int
    error: str | None = None
    errno: int | None = None
    highest_step: int | None = None
    mount: str | None = None
    passed_over: RejectedCheckpoint | None = None
    has_store: bool = False
    store_error: str | None = None


@dataclass(frozen=True, slots=True)
class StartPathsSeen(Event):
    """The answer to LookAtStartPaths. `error`: why the process could still not be started; None if it could be."""

    attempt: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BeginAtRequested(Event):
    """An operator chooses the step at which the job's next start begins, 0: anew. A start request follows."""

    step: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMet(ReportedEvent):
    """The worker said hello: its script uses the package `worker`, or speaks the protocol.

    `reports_restore`: RestoreBegun follows; otherwise it may begin to restore at any time from now on.
    """

    attempt: int
    reports_restore: bool


@dataclass(frozen=True, slots=True)
class RestoreBegun(ReportedEvent):
    """The worker restores the checkpoint that it was told, or `in_memory`: the name of what a dead one left there."""

    attempt: int
    in_memory: str | None = None


@dataclass(frozen=True, slots=True)
class TrainingRestored(ReportedEvent):
    """The worker has restored its state and is at `step`. `in_memory`: the name of the checkpoint, if it was in memory
    and may not be on the disk."""

    attempt: int
    step: int
    in_memory: str | None = None


@dataclass(frozen=True, slots=True)
class StepsDone(ReportedEvent):
    """The training loop reached `step`. `step_s`: mean seconds a step since the last report, if known.

    `section`: what the loop does from now on. `saving_s`: for how long a save has been written beside it, if one is.
    """

    attempt: int
    step: int
    step_s: float | None = None
    section: LoopSection = LoopSection.STEP
    saving_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointCommitted(ReportedEvent):
    """A checkpoint of `step` is on the disk and answers the flush requests with these ids. `wall_at`: since when, in
    Unix seconds. `name`: its folder's, which has the chief's attempt in a gang; None: that of this attempt.
    `is_repeated`: nothing was saved now.
    """

    attempt: int
    step: int
    flushes: tuple[int, ...] = ()
    wall_at: float | None = None
    name: str | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointMirrored(Event):
    """The newest checkpoint of the run that counts in its mirror: uploaded from here, or by another host.

    `url`: of the run in the store; `epoch`: the newest one there.
    """

    name: str
    url: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CopiesHeld(ReportedEvent):
    """The daemon holds memory into which the worker copies its state, or (`is_held` false) does so no longer."""

    attempt: int
    is_held: bool


@dataclass(frozen=True, slots=True)
class MemorySalvaged(Event):
    """The newest state that an attempt left in memory is committed, as if it had done so itself (`wall_at`: Unix time).

    Another attempt may have begun meanwhile.
    """

    of_attempt: int
    step: int
    name: str
    wall_at: float


@dataclass(frozen=True, slots=True)
class CheckpointSaveFailed(ReportedEvent):
    """A checkpoint of `step` did not reach the disk, so these flush requests got none."""

    attempt: int
    error: str
    flushes: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True, slots=True)
class DoneReported(ReportedEvent):
    """The worker reports that training is complete; only its exit status 0 confirms it."""

    attempt: int


@dataclass(frozen=True, slots=True)
class FailureReported(ReportedEvent):
    """The worker reports why it fails. `step`: where, if it knows; `out_of_memory`: for lack of memory.

    `go_back`: training diverged at `step`, and the next attempt is to begin before that. `errno`: the error of a
    checkpoint directory that it could not use. `gang_attempt`: of a rank of a gang, the chief's.
    """

    attempt: int
    error: str
    step: int | None = None
    out_of_memory: bool = False
    go_back: bool = False
    errno: int | None = None
    gang_attempt: int | None = None


@dataclass(frozen=True, slots=True)
class ReadyReported(Event):
    """A plain program sent READY=1."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StacksCollected(Event):
    """The stacks of the worker's threads are in the file `path`."""

    attempt: int
    path: str


@dataclass(frozen=True, slots=True)
class WorkerExited(Event):
    """The process is gone: its exit status, or the signal that killed it; neither if the kernel does not tell.

    `oom`: the evidence that the kernel killed it for lack of memory, in words. `error_line`: the last line that it
    wrote to standard error. `evidence`: all that was found of its death, None if nobody looked; `diagnosis`: what the
    core makes of that.
    """

    attempt: int
    code: int | None = None
    signal: int | None = None
    oom: str | None = None
    error_line: str | None = None
    evidence: Evidence | None = None
    diagnosis: Diagnosis | None = None


# --- an attempt that an earlier daemon started ---


@dataclass(frozen=True, slots=True)
class AttemptFound(Event):
    """Its process lives and can be supervised. `age_s`: seconds since it was started.

    `outdated`: its configuration has changed since. `ready`: it has sent READY=1.
    """

    attempt: int
    age_s: float
    outdated: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class WorkerIdentified(ReportedEvent):
    """It reported its status. `phase` and `then` as in the message; `restored`: it began from a checkpoint.

    `flush`: id of the latest flush that is not answered yet; `last_flush`: the highest id of all requested flushes.
    """

    attempt: int
    phase: Phase
    step: int | None = None
    restored: bool = False
    flush: int | None = None
    last_flush: int = 0
    then: Then = Then.GO_ON


@dataclass(frozen=True, slots=True)
class AttemptLost(Event):
    """It ended while no daemon was running. `done`, `error`: it reported completion, or a failure.

    `committed_step`: the highest step of its checkpoints. `host_rebooted`: the host was rebooted since it started.
    `step`, `out_of_memory`, `go_back`, `errno`, `gang_attempt`: as in `FailureReported`; `code`: the exit status it was
    about to exit with. `oom`: as in `WorkerExited`. `held_back`: a dependency is not ready, so what follows waits for a
    start request. `in_memory`: the daemon holds what its worker had copied into memory. `not_adopted`: the daemon ended
    it, as it could not take it over, in words.
    """

    attempt: int
    done: bool = False
    error: str | None = None
    committed_step: int | None = None
    host_rebooted: bool = False
    step: int | None = None
    out_of_memory: bool = False
    go_back: bool = False
    code: int | None = None
    oom: str | None = None
    held_back: bool = False
    errno: int | None = None
    gang_attempt: int | None = None
    in_memory: bool = False
    not_adopted: str | None = None


@dataclass(frozen=True, slots=True)
class NoticeReceived(Event):
    """The host goes away, or sooner or more surely than was known: `notice` is now the most severe that holds.

    `recalled`: an earlier daemon received it, and the jobs have saved for it.
    """

    notice: Notice
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class NoticeChanged(Event):
    """The most severe notice has another deadline now, or a more severe one was withdrawn and this one remains."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class NoticeEnded(Event):
    """No notice holds any more: withdrawn, or its deadline passed and the host still stands."""


@dataclass(frozen=True, slots=True)
class SavesMeasured(Event):
    """A save of this job is expected to take `save_s` while all other jobs that must save do so too."""

    save_s: float


@dataclass(frozen=True, slots=True)
class UploadsChanged(Event):
    """How the mirror of a job with durable = remote stands. `waits`: a checkpoint on the disk is not yet there.

    `upload_s`: expected of the next upload while all other jobs that must upload do so too; None: never measured.
    """

    waits: bool
    upload_s: float | None = None


@dataclass(frozen=True, slots=True)
class RestartRequired(Event):
    """The worker has to be replaced by another attempt: it is over its memory limit, unhealthy, or its GPU failed.

    `text` says how. `can_save`: False if it can neither compute nor save any more, so that nothing is asked of it.
    """

    attempt: int
    cause: Cause
    text: str
    can_save: bool = True


@dataclass(frozen=True, slots=True)
class SilenceObserved(Event):
    """The answer to LookAtSilence: what the processes of the silent job did meanwhile."""

    attempt: int
    evidence: SilenceEvidence


@dataclass(frozen=True, slots=True)
class SpeedChanged(Event):
    """The job trains slower than it used to, or as fast as usual again (None)."""

    attempt: int
    slowdown: Slowdown | None


@dataclass(frozen=True, slots=True)
class GangBroken(Event):
    """Another rank of the gang is gone, and nobody can train on. `text` says which, and how that is known."""

    text: str


@dataclass(frozen=True, slots=True)
class GangBegins(Event):
    """All ranks of the gang are ready for another start, after one of them was gone."""


@dataclass(frozen=True, slots=True)
class HostSuspended(Event):
    """Nothing ran here for `suspended_for_s` seconds until now: the host or the daemon was suspended."""

    suspended_for_s: float


@dataclass(frozen=True, slots=True)
class DeadlinePassed(Event):
    """The state's one deadline went by."""
