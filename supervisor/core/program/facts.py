"""What is known of one program: its policy, which is fixed, and the facts, which only actions change."""

from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from supervisor.core.failures.hang_detection import HangDetector
from supervisor.core.failures.hang_evidence import Verdict
from supervisor.core.failures.restart import Cause, FailureCounts
from supervisor.core.failures.slowness import Slowdown
from supervisor.core.failures.storage import StorageWait
from supervisor.core.failures.suspects import Suspects
from supervisor.core.notices.flush import Pause
from supervisor.core.notices.notice import Notice
from supervisor.core.program.events import CheckpointSelected
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.protocol.checkpoints.account import Older, ProgressAccount
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire.messages import Then


class State(StrEnum):
    """Where a program stands; docs/state-machine.md draws how it moves."""

    STOPPED = "STOPPED"  # not wanted (or the daemon is leaving), nothing runs
    STARTING = "STARTING"  # the process exists but does not train yet; a plain program: younger than startsecs
    RUNNING = "RUNNING"  # steps arrive; a plain program: older than startsecs
    FLUSHING = "FLUSHING"  # a checkpoint was asked for
    STOPPING = "STOPPING"  # the stop signal was sent
    KILLING = "KILLING"  # SIGKILL was sent
    BACKOFF = "BACKOFF"  # waits for the next attempt
    SUCCEEDED = "SUCCEEDED"  # ended as it should
    EXITED = "EXITED"  # a plain program ended as it should not, and is not to be restarted
    FAILED = "FAILED"  # given up, with the reason
    ADOPTING = "ADOPTING"  # a live worker of an earlier daemon was found and has not said yet where it stands


ALIVE = frozenset({State.STARTING, State.RUNNING, State.FLUSHING, State.STOPPING, State.KILLING, State.ADOPTING})
"""States in which a process exists."""
UP = frozenset({State.RUNNING, State.FLUSHING})
"""States in which it trains, or serves."""
ENDING = frozenset({State.STOPPING, State.KILLING})
"""States in which its process has been told to end."""
OVER = (State.STOPPED, State.SUCCEEDED, State.EXITED, State.FAILED)
"""States in which nothing runs and nothing is waited for, so that they have no deadline."""

KILL_AGAIN_S = 10.0  # SIGKILL can't be refused; longer means the kernel holds the process (D state)


class AutoRestart(StrEnum):
    """When a program that ended by itself is started again (Supervisor's words)."""

    ALWAYS = "true"
    NEVER = "false"
    UNEXPECTED = "unexpected"


class OnNotice(StrEnum):
    """What a job does once its last checkpoint before the host goes is on the disk."""

    STOP = "stop"  # its worker leaves, and what becomes of the host is waited for
    TRAIN = "train"  # it trains on until it is killed


class Durable(StrEnum):
    """What a flush waits for before a host goes away."""

    LOCAL = "local"  # the checkpoint is on the disk of this host
    REMOTE = "remote"  # it is in the job's mirror as well


class OnOom(StrEnum):
    """What follows when a job runs out of memory."""

    RESTART = "restart"
    MICROBATCH = "microbatch"  # the next attempt divides each batch into twice as many parts


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says about starting and stopping one program; times in seconds."""

    name: str
    is_job: bool
    autorestart: AutoRestart = AutoRestart.UNEXPECTED
    exitcodes: frozenset[int] = frozenset({0})
    startsecs: float = 1.0
    notify_timeout: float | None = None  # set: a plain program says itself when it is ready, within this
    startretries: int = 3
    startup_timeout: float = 600.0
    hang_timeout: float | None = None  # fixed
    hang_timeout_min: float | None = None  # set: learned, with this as the least
    hang_evidence: float | None = None  # the least silence after which evidence makes it a hang; None: never
    has_ranks_elsewhere: bool = False  # other hosts train the same job
    flush_timeout: float = 120.0
    stopwaitsecs: float = 10.0
    on_notice: OnNotice = OnNotice.STOP
    notice_margin: float = 1.0
    notice_grace: float = 60.0
    durable: Durable = Durable.LOCAL
    on_oom: OnOom = OnOom.RESTART
    is_gang: bool = (
        False  # one rank of several nodes: one attempt for each start of all, as they begin together or not at all
    )
    checkpoint_dir: str | None = None  # of a job
    script: str = "the script"  # what it runs, for messages
    start_paths: tuple[str, ...] = ()  # its directory, its command, and the script that a job's interpreter reads


@dataclass(frozen=True, slots=True)
class PendingFlush:
    """The flush that is being waited for. `committed`: its checkpoint is on the disk, and the worker is leaving."""

    id: int
    then: Then
    committed: bool = False
    requested_at: float = 0.0  # monotonic


@dataclass(slots=True)
class AttemptFacts:
    """What is known of one attempt; every launch begins with a fresh one. Points in time are monotonic seconds."""

    started_at: float = 0.0
    startup_deadline_at: float = 0.0  # when startup_timeout has passed
    start_limit_s: float | None = None  # adopted: its age at that time, where an earlier daemon gave it longer
    progressed_at: float = 0.0  # when the training loop last showed progress
    made_progress: bool = False  # it did a step, or outlived startsecs
    outdated: bool = False  # adopted, and its configuration has changed since it was started
    readiness_unknown: bool = False  # adopted, and its READY=1 may have been lost
    start_afresh: bool = False  # an operator started it while it stopped: the next attempt begins with full budgets
    checkpoint_dir: str | None = None  # where its worker saves; one that is adopted may have had another section
    gpus_left_out: str | None = None  # what is wrong with the GPUs that it does without

    # training; steps are optimizer steps
    checkpoint: CheckpointSelected | None = None  # what it was told to begin from
    has_spoken: bool = False  # a message of its worker came, to this daemon or an earlier one
    restore_begun: bool = False  # the worker has begun to restore: from here on the checkpoint may be to blame
    from_checkpoint: bool = False  # it begins from a checkpoint, not from nothing
    start_step: int | None = None  # the step at which it stood once it was restored
    step: int | None = None
    last_step_at: float | None = None  # when the last step was reported
    saved_step: int | None = None  # of its last checkpoint
    from_memory: bool = False  # it restores what another one had left in memory
    in_memory: bool = False  # the daemon holds memory into which it copies its state
    flush: PendingFlush | None = None

    looks_end_at: float = 0.0  # when an answer to the last looks at its silence is due, or it may be looked at again
    silence: Verdict | None = None  # what the last looks at a silence showed, until progress is made
    slowdown: Slowdown | None = None  # it trains slower than it used to

    # how it ends
    done_reported: bool = False  # the worker says that training is complete
    reported_error: str | None = None
    failed_step: int | None = None  # the step at which it reports that it failed
    out_of_memory: bool = False  # it reports that it lacked memory
    failed_errno: int | None = None  # it reports that the checkpoint directory failed with this error
    older_readable: bool = False  # its newest checkpoint could not be read, but there are older ones
    go_back: bool = False  # it reports that training diverged, and that the next attempt is to begin before that
    gang_attempt: int | None = None  # a rank of a gang reports the chief's, after which checkpoints are named
    decided_end: tuple[Cause, str] | None = None  # the core ended it, with this cause and text
    older: Older | None = None  # it began from an older checkpoint than the newest, and why
    save_error: str | None = None  # why its last save failed, unless one has succeeded since
    flush_failure: str | None = None  # why the flush before its end brought no checkpoint, if the core knows

    # while a notice holds
    early_flush_requested: bool = False  # the one before the time in which a long pause may come
    last_flush_requested: bool = False  # the one at the last safe moment before the host goes
    flush_retry_at: float | None = None  # a flush failed and is to be requested again


@dataclass(slots=True)
class ProgramFacts:
    """What is known of one program, whichever attempt runs. None means not known; points in time are monotonic."""

    policy: Policy
    state: State = State.STOPPED
    deadline_at: float | None = None  # the state's one deadline
    wanted: bool = False  # what the operator wants
    closing: bool = False  # nothing is started any more: the daemon leaves, or the program was taken out of use
    host_leaves: bool = False  # closing because the host shuts down
    held_back: bool = False  # what it depends on is not ready: nothing is launched
    reason: str | None = None  # why it is in BACKOFF, EXITED or FAILED
    attempt: int = 0  # number of the current attempt, or of the last one
    launched: bool = False  # by this daemon
    attempts_used: int = 0  # higher numbers than it that another host has used
    current: AttemptFacts = field(default_factory=AttemptFacts)
    flushes_requested: int = 0  # by all attempts; the id of the last flush

    # what failures taught
    failures: FailureCounts = field(default_factory=FailureCounts)
    hang_detector: HangDetector = field(default_factory=HangDetector)
    suspects: Suspects = field(default_factory=Suspects)
    best_step: int | None = None  # the highest step that was committed or restored
    ever_trained: bool = False  # since the operator's start, some attempt did a step
    microbatches: int = 1  # number of parts that each batch is divided into
    no_copies: bool = False  # an attempt that copied its state into memory ran out of memory: later ones don't
    restore_below_step: int | None = None  # training diverged there: the next checkpoint has to be of a lower step
    diverged_attempt: int | None = None  # in which it did; of a rank of a gang, the chief's
    backoff_until: float | None = None  # the end of a back-off that a new daemon continues

    # the checkpoint directory
    account: ProgressAccount = field(default_factory=ProgressAccount)  # the newest one that was ever reported
    passed_over: str | None = None  # the name of one that a start has passed over, until one begins as far
    ended: SavedProgress | None = None  # how far the last attempt of a job that has ended had come
    mount: str | None = None  # the file system that it was on when the last attempt began
    salvaged: str | None = None  # the name of the last checkpoint that a dead worker had left in memory
    begin_at: int | None = None  # an operator chose the step at which the next start that succeeds begins; 0: anew
    begin_since: int | None = None  # the first attempt that was launched to begin there
    set_aside: int | None = None  # where an operator chose to begin, once what is newer was moved away for it
    storage: StorageWait | None = None  # it failed, and no step was done since
    waits_for_storage: bool = False  # in BACKOFF because of that

    # what it is started from
    worked_paths: tuple[str, ...] = ()  # the directory and command of the last process that could be started
    start_paths_missing: bool = False  # in BACKOFF, with waits_for_storage: these can't be reached

    # how long things take, measured over attempts
    startup_s: float | None = None  # from the spawn to the first step, the last time
    steps_s: tuple[float, ...] = ()  # the last few steps, as the worker reported them
    pauses: tuple[Pause, ...] = ()  # the longest times without a step in the last hour
    save_s: float | None = None  # expected of the next save, with other jobs saving too
    flush_s: float | None = None  # from the request to the commit, the last time

    # the mirror of a job with durable = remote
    upload_s: float | None = None  # expected of the next upload, with other jobs uploading too
    upload_waits: bool = False  # a checkpoint is on the disk and not yet in the mirror
    upload_fits: bool = True  # as far as known, the last checkpoint before the host goes can reach the mirror in time

    # the host
    notice: Notice | None = None  # the most severe one that holds
    notice_recalled: bool = False  # an earlier daemon received it and requested the first flush
    freeze_until: float | None = None  # until then the host may freeze, as a notice says
    waits_for_host: bool = False  # in BACKOFF because of the notice, not because of a failure

    @property
    def divergence(self) -> SeenDivergence | None:
        """What all of a gang have to know before they begin again; None if training has not diverged here."""
        if self.restore_below_step is None:
            return None
        return SeenDivergence(self.restore_below_step, self.diverged_attempt or self.attempt)

    def restart_silence(self, now: float) -> None:
        """Measures silence from now on: what was before is no sign of a hang, and nothing to learn from."""
        self.current.progressed_at = now
        self.current.last_step_at = None
        self.hang_detector.restart_silence(now)

    def snapshot(self) -> Self:
        """A copy to go back to. Made before every event, so it copies only what actions change in place."""
        same = copy(self)  # dataclasses.replace takes four times as long
        same.current = copy(self.current)
        same.failures, same.suspects = copy(self.failures), copy(self.suspects)
        same.hang_detector = copy(self.hang_detector)
        return same
