"""What a proof of exactness found: a job's own command, run undisturbed and killed, and compared.

`prove` writes it as its last line of JSON and in its scratch folder; the daemon keeps the newest one of each job in its
ledger and shows it.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from supervisor.protocol.wire.codec import fit_record
from supervisor.protocol.wire.limits import TEN_YEARS_S, Count, Items, Range, Text

FORMAT = 1
MAX_KILLS, MAX_DIFFERENCES, MAX_LINES = 200, 50, 50
MAX_FILES = 100  # of a script; those beyond are not looked at
MAX_FILE_BYTES = 1 << 20  # of a file, that its fingerprint is made of
MAX_WALL_AT = 1e11  # 3,000 years after 1970: what a calendar can show

Value = Annotated[str, Text(200)]
Line = Annotated[str, Text(500)]
Lines = Annotated[str, Text(4000)]
FilePath = Annotated[str, Text(4096)]


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
class ProofKill:
    """One SIGKILL of the killed run. `step`: the newest step done then. `damaged`: the newest checkpoint was damaged
    before the relaunch. `resumed_from`: the step of the checkpoint that the next attempt restored."""

    place: KillPlace
    step: Count
    damaged: bool = False
    resumed_from: Count | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same bits. `name`: as the user knows it, such as `model/dense/kernel`,
    `run.state["best"]`, `metric loss` or `number of steps`. `step`: the first step at which it differs."""

    name: Value
    step: Count | None
    undisturbed: Value
    killed: Value


@dataclass(frozen=True, slots=True)
class ProofReport:
    """One proof of one job.

    `reason`: why it is not provable, or a sentence about the difference. `steps`: of each run; `epoch_ends`: how many
    ends of epochs are among them. `state_bytes`: the size of the compared state. `named`: what the worker's checks said
    at the first step. `remedy`: the lines to write. `not_varied`: what could not be varied, such as another host.
    `script`: a fingerprint of the command and of the files that it ran (`files`), to see whether they have changed.
    `wall_at`: when it ended, in Unix seconds.
    """

    verdict: Verdict
    job: Value
    wall_at: Annotated[float, Range(0, MAX_WALL_AT)]
    took_s: Annotated[float, Range(0, TEN_YEARS_S)]
    steps: Count = 0
    epoch_ends: Count = 0
    state_bytes: Count = 0
    kills: Annotated[tuple[ProofKill, ...], Items(MAX_KILLS)] = ()
    reason: Lines = ""
    differences: Annotated[tuple[Difference, ...], Items(MAX_DIFFERENCES)] = ()
    likely: Likely | None = None
    named: Annotated[tuple[Line, ...], Items(MAX_LINES)] = ()
    remedy: Lines = ""
    not_varied: Annotated[tuple[Line, ...], Items(MAX_LINES)] = ()
    script: Value = ""
    files: Annotated[tuple[FilePath, ...], Items(MAX_FILES)] = ()
    format: Count = FORMAT


def fit_report(report: ProofReport) -> ProofReport:
    """The report with what is beyond its limits cut, so that every reader takes it."""
    return fit_record(report)


def fingerprint(command: Sequence[str], files: Iterable[str], read: Callable[[str], bytes]) -> str:
    """Of a command and the files that it runs. `read`: gives a file's first MAX_FILE_BYTES, or raises OSError."""
    hashed = hashlib.sha256("\0".join(command).encode(errors="surrogateescape"))
    for file in list(files)[:MAX_FILES]:
        with contextlib.suppress(OSError):  # one that is gone gives another fingerprint
            content = read(file)[:MAX_FILE_BYTES]
            hashed.update(f"\0{file}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    return hashed.hexdigest()[:16]
