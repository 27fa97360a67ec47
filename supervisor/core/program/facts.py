"""What is known of one program: its policy (fixed), and the facts that events add (changed by actions only)."""

from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from supervisor.core.failures.restart import Cause, Failures
from supervisor.core.failures.silences import Patience
from supervisor.core.failures.suspects import Suspects
from supervisor.core.notices.flush import Pause
from supervisor.core.notices.notice import Notice
from supervisor.core.program.events import CheckpointSelected
from supervisor.protocol.messages import Then


class State(StrEnum):
    """Where a program stands; ARCHITECTURE.md draws how it moves."""

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
    flush_timeout: float = 120.0
    stopwaitsecs: float = 10.0
    on_notice: OnNotice = OnNotice.STOP
    notice_margin: float = 1.0
    notice_grace: float = 60.0
    on_oom: OnOom = OnOom.RESTART


@dataclass(frozen=True, slots=True)
class Flush:
    """The flush that is being waited for, since `asked_at`. `committed`: it is on the disk, the worker is leaving."""

    id: int
    then: Then
    committed: bool = False
    asked_at: float = 0.0  # monotonic


@dataclass(slots=True)
class Facts:
    """Everything the machine knows. `step`s are optimizer steps; None means not known."""

    policy: Policy
    state: State = State.STOPPED
    deadline_at: float | None = None  # monotonic; the state's one deadline
    wanted: bool = False
    closing: bool = False  # closed: nothing is started any more
    host_leaves: bool = False  # closed because the host shuts down
    attempt: int = 0
    flushes_asked: int = 0
    failures: Failures = field(default_factory=Failures)
    patience: Patience = field(default_factory=Patience)
    suspects: Suspects = field(default_factory=Suspects)
    best_step: int | None = None  # highest step that is committed, or was restored
    reason: str | None = None  # why it is in BACKOFF, EXITED or FAILED
    microbatches: int = 1  # parts that each batch is divided into
    before: int | None = None  # the next checkpoint to restore is to be of a step below this: training diverged there
    rests_until: float | None = None  # monotonic; the end of a back-off that the next start is not to cut short
    held_back: bool = False  # what it depends on is not ready: nothing is launched

    # of the present attempt
    started_at: float = 0.0  # monotonic
    start_by: float = 0.0  # monotonic; startup_timeout passes
    start_limit_s: float | None = None  # adopted: how old it may be by then, as an earlier daemon gave it longer
    progressed_at: float = 0.0  # monotonic; when the training loop last showed life
    moved: bool = False  # it did a step, or outlived startsecs
    restoring: bool = False  # it begins from a checkpoint, not from nothing
    origin: CheckpointSelected | None = None  # that checkpoint
    saved: int | None = None  # step of its last checkpoint
    step: int | None = None
    unheard: bool = False  # adopted, and its word that it is ready may have been lost
    outdated: bool = False  # adopted, and its configuration has changed since it was started
    flush: Flush | None = None
    anew: bool = False  # an operator started it while it stopped: once it is gone, old failures count no more
    done_said: bool = False
    last_words: str | None = None
    failed_step: int | None = None  # where its last words say that it failed
    ran_out: bool = False  # they say that it lacked memory
    goes_back: bool = False  # they say that training diverged, and is to begin again from before that
    began_at: int | None = None  # the step it was restored at
    ending: tuple[Cause, str] | None = None  # decided by us before the process is gone: cause and text

    ever_moved: bool = False  # since the operator's start: some attempt trained

    # how long things take, and the host's fate
    steps_s: tuple[float, ...] = ()  # the last few, as the worker told them
    stepped_at: float | None = None  # monotonic; the last word of a step, of the present attempt
    pauses: tuple[Pause, ...] = ()  # the longest times without a step, lately
    save_s: float | None = None  # expected of the next save, others saving too
    flushed_s: float | None = None  # from asking to the commit, the last time
    startup_s: float | None = None  # from the spawn to the first step, the last time
    notice: Notice | None = None  # the gravest that holds
    heard_again: bool = False  # an earlier daemon had it saved when the notice came
    last_flush_asked: bool = False  # the one at the last safe moment before the host goes
    insured: bool = False  # it was asked for a checkpoint before the time in which a long pause may come
    flush_again_at: float | None = None  # monotonic; a flush for the notice failed and is tried again
    still_until: float | None = None  # monotonic; till then the host may stand still, as a notice says
    held: bool = False  # in BACKOFF: because of the notice, not of a failure

    def hear_anew(self, now: float) -> None:
        """Silence counts from now on: what was before is no sign of a hang, and nothing to learn from."""
        self.progressed_at = now
        self.stepped_at = None
        self.patience.anew(now)

    def copied(self) -> Self:
        """The same, to go back to; what is in it but values that nobody changes is copied too."""
        same = copy(self)  # before every event: dataclasses.replace takes four times as long
        same.failures, same.patience, same.suspects = copy(self.failures), copy(self.patience), copy(self.suspects)
        return same
