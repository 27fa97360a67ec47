"""Whether, and after how long, a worker that died is started again.

What is limited is failures without progress, not restarts: a job that gets a new best checkpoint between two deaths
may be restarted for ever. Each cause has its own budget, so that a flaky network does not spend that of hangs.
"""

import signal as signals
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from supervisor.protocol.wire.exits import WorkerExit

BACKOFF_FIRST_S = 1.0  # Supervisor's first pause
BACKOFF_LIMIT_S = 60.0  # a minute of idle GPU is the most that politeness to a broken dependency is worth
CALM_S = 60.0  # a plain program that ran for longer is in no loop: as long as the longest pause
AT_ONCE = 3  # crashes in a row, each within CALM_S of its start, that are followed without a pause
JITTER = 0.25  # share of the pause; enough to spread a fleet that lost the same file server at the same moment


@dataclass(frozen=True, slots=True)
class Traits:
    """What follows from a cause, wherever it is asked for: budgets, suspects, texts and metrics derive from this.

    `is_charged`: such an end is a failure and counts against a budget of its own. `retry_limit`: the most retries
    without progress, where startretries allows more. `blames_checkpoint`: the checkpoint that was being restored, or a
    step, may be to blame. `is_sudden`: it ends without warning, so that the steps since the last checkpoint are lost.
    `is_meant`: it was to end. `is_stall`: it made no progress before, and goodput counts its end as hung.
    `has_own_words`: its text says more than a diagnosis that only quotes a line. `discards_memory`: what it left in
    memory is of no use, as its last state is on the disk, or must not be gone on from, or another host has the run.
    """

    is_charged: bool = False
    retry_limit: int | None = None
    blames_checkpoint: bool = False
    is_sudden: bool = False
    is_meant: bool = False
    is_stall: bool = False
    has_own_words: bool = False
    discards_memory: bool = False


CHARGED = Traits(is_charged=True)
OLDER_EACH_TIME = Traits(is_charged=True, retry_limit=3, has_own_words=True, discards_memory=True)
"""It does not mend itself: each retry goes back to an older checkpoint."""
FORGIVEN = Traits()
EXPLAINED = Traits(has_own_words=True)
"""Forgiven, too."""
MEANT = Traits(is_meant=True)


class Cause(StrEnum):
    """Why an attempt ended, as the ledger and `supervisorctl history` name it, and what follows from it (`Traits`)."""

    traits: Traits

    DONE = "done", Traits(is_meant=True, discards_memory=True)
    EXITED = "exited", FORGIVEN  # a plain program ended by itself
    STOPPED = "stopped", MEANT  # on request
    CRASH = "crash", Traits(is_charged=True, blames_checkpoint=True, is_sudden=True)
    STARTUP_TIMEOUT = "startup-timeout", Traits(is_charged=True, blames_checkpoint=True, is_stall=True)
    HANG = "hang", Traits(is_charged=True, blames_checkpoint=True, is_sudden=True, is_stall=True)
    SPAWN = "spawn", CHARGED  # the process could not be created
    SETUP = "setup", Traits(has_own_words=True, discards_memory=True)  # a person has to change something first
    PREEMPTION = "preemption", EXPLAINED  # the host went away, or is about to
    DIVERGENCE = "divergence", OLDER_EACH_TIME  # a loss or weights that are not finite, or a loss far off
    OUT_OF_MEMORY = "out-of-memory", CHARGED  # it asked for more than there was, or the kernel killed it
    BAD_CHECKPOINT = "bad-checkpoint", OLDER_EACH_TIME  # whole, and the program can't go on from it
    BUSY = "busy", Traits(is_charged=True, has_own_words=True)  # another live worker holds the checkpoint directory
    STORAGE = "storage", EXPLAINED  # the checkpoint directory can't be used, or lacks what it held
    MEMORY_LIMIT = "memory-limit", CHARGED  # it and what it started held more than memory_limit
    UNHEALTHY = "unhealthy", CHARGED  # its healthcheck_command said so
    GPU = "gpu-fault", Traits(is_charged=True, is_sudden=True)  # the driver reported a fault of one of its GPUs
    LOST = "lost", Traits(blames_checkpoint=True, is_sudden=True)  # nobody can say how: no daemon saw it, or no kernel

    def __new__(cls, word: str, traits: Traits = FORGIVEN) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.traits = traits
        return member


MISTAKE_RETRIES = 2
"""The most retries, in a row without progress, after a mistake in the script: a file system may have been away."""
_MISTAKES = frozenset(
    {"ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "AttributeError", "TypeError"}
    | {"SyntaxError", "IndentationError", "TabError"}
)
PORTS_FORGIVEN = 3  # in a row: that a program takes a port between choice and use is rare
_PORT_TAKEN = ("could not start grpc server", "address already in use", "eaddrinuse")
"""What TensorFlow, Python and PyTorch say, in small letters."""
MAX_MICROBATCHES = 1024  # parts of a batch; a batch that does not fit in so many is not what the memory is for

_NONE: Mapping[Cause, int] = MappingProxyType({})


def allowed_retries(cause: Cause, startretries: int) -> int:
    """How many failures of a cause without progress between them are followed by another attempt."""
    limit = cause.traits.retry_limit
    return startretries if limit is None else min(startretries, limit)


@dataclass(slots=True)
class FailureCounts:
    """Failures since the last progress, by cause; and deaths in a row that brought none at all."""

    by_cause: Mapping[Cause, int] = field(default_factory=lambda: _NONE)
    deaths_without_progress: int = 0
    short_lives: int = 0
    """Of a plain program: crashes in a row after startsecs, each within CALM_S of its start."""
    ports_lost: int = 0
    """Attempts in a row that began no training, as another program had the port that they were to listen on."""

    def count_failure(self, cause: Cause, made_progress: bool) -> None:
        """Counts a failure. `made_progress`: the attempt did a step (a plain program: outlived startsecs)."""
        self.by_cause = {**self.by_cause, cause: self.by_cause.get(cause, 0) + 1}
        self.deaths_without_progress = 0 if made_progress else self.deaths_without_progress + 1

    def forgive_lost_port(self) -> bool:
        """Whether one more lost port counts for nothing. A script that names the port itself loses it again."""
        self.ports_lost += 1
        return self.ports_lost <= PORTS_FORGIVEN

    def count_short_life(self, lived_s: float) -> None:
        """Counts a crash of a plain program that had outlived startsecs, after `lived_s`."""
        self.short_lives = self.short_lives + 1 if lived_s < CALM_S else 0

    def reset_all(self) -> None:
        """Forgets all failures: an operator starts the program."""
        self.refill_budgets()
        self.short_lives = 0

    def refill_budgets(self) -> None:
        """Refills all budgets: there is a new best checkpoint, or a plain program is RUNNING."""
        self.by_cause = _NONE
        self.deaths_without_progress = self.ports_lost = 0

    def is_exhausted(self, cause: Cause, limit: int) -> bool:
        """Whether the budget of `cause` is spent: `limit` retries were used."""
        return self.by_cause.get(cause, 0) > limit


def backoff_s(idle_deaths: int, key: str) -> float:
    """Seconds to wait before the next attempt: none after progress, then 1, 2, 4 … 60 with jitter.

    `key` names the program and attempt; it seeds the jitter, so that decisions stay repeatable.
    """
    if idle_deaths <= 0:
        return 0.0
    pause = min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(idle_deaths - 1, 16))
    return pause * (1.0 + JITTER * (zlib.crc32(key.encode()) / 2**32 - 0.5))


def is_mistake(error: str) -> bool:
    """Whether an exception, as Python prints it, is one that the same script most likely raises again."""
    return error.partition(":")[0] in _MISTAKES


def has_lost_a_port(error: str) -> bool:
    """Whether another program had the port that this one was to listen on: another start gets another, or waits."""
    return any(words in error.lower() for words in _PORT_TAKEN)


def describe_exit(code: int | None, signal: int | None) -> str:
    """How a process ended, in words: "exit status 3", "terminated by SIGKILL", "exit status 74 (save failed)"."""
    if signal is not None:
        return f"terminated by {_signal_name(signal)}"
    if code is None:
        return "exit status unknown"
    known = next((worker_exit for worker_exit in WorkerExit if worker_exit == code and worker_exit > 1), None)
    return f"exit status {code}" + (f" ({known.name.lower().replace('_', ' ')})" if known else "")


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
