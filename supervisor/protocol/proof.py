"""What a proof of exactness found: a job's own command, run undisturbed and killed, and compared.

`prove` writes it as its last line of JSON and in its scratch folder; the daemon keeps the newest one of each job in its
ledger and shows it.
"""

from dataclasses import dataclass
from enum import StrEnum

FORMAT = 1


class Verdict(StrEnum):
    """How a proof ended; `EXIT_STATUS` has the exit status of each."""

    EXACT = "exact"
    DIFFERENT = "different"
    NOT_PROVABLE = "not provable"


EXIT_STATUS = {Verdict.EXACT: 0, Verdict.DIFFERENT: 1, Verdict.NOT_PROVABLE: 2}


class KillPlace(StrEnum):
    """Where in training a worker was killed."""

    STEP = "in a step"
    EPOCH_EDGE = "at an epoch's edge"
    SAVE = "in a save"


class Likely(StrEnum):
    """The likely cause of a difference."""

    NOT_KEPT = "a value that nobody keeps"
    DATA = "other data"
    RANDOMNESS = "other random numbers"
    LOOP_BEGAN_ANEW = "a loop that began anew"
    NOT_DETERMINISTIC = "undisturbed runs differ from each other"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL of the killed run. `step`: the newest step done then. `damaged`: the newest checkpoint was damaged
    before the relaunch. `resumed_from`: the step of the checkpoint that the next attempt restored."""

    place: KillPlace
    step: int
    damaged: bool = False
    resumed_from: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same bits. `name`: as the user knows it, such as `model/dense/kernel`,
    `run.state["best"]`, `metric loss` or `number of steps`. `step`: the first step at which it differs."""

    name: str
    step: int | None
    undisturbed: str
    killed: str


@dataclass(frozen=True, slots=True)
class ProofReport:
    """One proof of one job.

    `reason`: why it is not provable, or a sentence about the difference. `steps`: of each run; `epoch_ends`: how many
    ends of epochs are among them. `state_bytes`: the size of the compared state. `named`: what the worker's checks said
    at the first step. `remedy`: the lines to write. `not_varied`: what could not be varied, such as another host.
    `script`: a fingerprint of the command and of the files that it ran, to see whether they have changed since.
    `wall_at`: when it ended, in Unix seconds.
    """

    verdict: Verdict
    job: str
    wall_at: float
    took_s: float
    steps: int = 0
    epoch_ends: int = 0
    state_bytes: int = 0
    kills: tuple[Kill, ...] = ()
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    likely: Likely | None = None
    named: tuple[str, ...] = ()
    remedy: str = ""
    not_varied: tuple[str, ...] = ()
    script: str = ""
    format: int = FORMAT
