"""The names inside a job's checkpoint directory and its runtime folder."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path, PurePath

PREFIX = "ckpt"  # TensorFlow's checkpoint prefix inside a checkpoint's directory
STATE = "state.json"  # what TensorFlow does not save
MANIFEST = "MANIFEST.json"
QUARANTINE = "quarantine"
ABANDONED = "abandoned"  # what was there when an operator began from scratch, in numbered folders; never read
WRITE_TEST = ".stepkeeper.write-test"  # exists for a moment while a directory that could not be written is tested
LOCK = ".stepkeeper.lock"  # held (flock) by the live worker
GANG_MARK = ".stepkeeper.gang-"  # and a random word: the chief makes it, and all workers of its gang have to see it
POINTER = "checkpoint"  # TensorFlow's own pointer file, written for other people's tools only
CONDITIONS = "conditions.json"  # what the bits of a run depend on, from its first start until its first checkpoint
BATCH = "batch.json"  # the shapes of batches, for a hot standby to trace with
EPOCH_HELD = "mirror.json"  # of a mirrored job: the epochs by which the checkpoints that were written here count
FROM_MEMORY = "memory.json"  # inside a checkpoint whose content a dead worker had left in memory, unchecked
FETCHED = "FETCHED.json"  # inside a checkpoint that came from a mirror: the epoch by which it counts
SKIPPED = "skipped.json"  # batches that made training diverge and are left out
REPLAYED = "replayed.json"  # which checkpoints are behind steps that were trained twice with equal bits
SET_ONCE = "set-once.json"  # what the first pass of the loop set in the script's objects, to be compared
PARTIAL = ".partial"
PART = ".part"  # one node's files of a checkpoint that exists in the mirror alone

UNNAMED_JOB = "-"  # what the manifests of a worker without a daemon say; no program can have that name

TO_WORKER = "to-worker"  # control pipe, daemon -> worker
FROM_WORKER = "from-worker"  # control pipe, worker -> daemon
STDIN = "stdin"  # of a plain program, in the same place: named pipe that is its standard input
NOTIFY = "notify"  # beside it: the socket to which the program sends READY=1
READY = "ready"  # beside that: a file that exists once the program was ready
STACKS = "stacks"  # beside the pipes: the stacks of the worker's threads, on the daemon's signal
STACKS_SIGNAL = signal.SIGRTMIN + 13  # no library uses it; sent only once the worker has made the file
LAST_WORDS = "last-words"  # beside the pipes: a copy of `done` and `failed`, for a daemon that starts after the end

_NAME = re.compile(r"step-(\d{10,18})\.a([1-9]\d{0,8})")
_ATTEMPT = re.compile(r"a([1-9]\d{0,8})")
MAX_TRACED_ATTEMPT = 900_000_000
"""Folder names with higher attempts do not count: a user may make them, and the next number must still fit a name."""
_COUNTER = re.compile(r"\.[0-9]+$")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """A checkpoint's directory name; sorts oldest first (by step, then by attempt)."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step-{self.step:010d}.a{self.attempt}"

    @property
    def by_attempt(self) -> tuple[int, ...]:
        """The same name, as it sorts if the attempt counts first."""
        return self.attempt, self.step

    @property
    def partial(self) -> str:
        """The name while it is being written; a directory of this name is not a checkpoint."""
        return f"{self}{PARTIAL}"

    @property
    def part(self) -> str:
        """The folder of this node's files of it, where nodes have folders of their own; it is not a checkpoint."""
        return f"{self}{PART}"


def parse_name(text: str) -> CheckpointName | None:
    """The step and attempt in a directory name, or None if it is not a checkpoint's name."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    name = CheckpointName(step=int(match[1]), attempt=int(match[2]))
    return name if str(name) == text else None


def own_name(path: str | PurePath | None, directory: str | PurePath | None) -> CheckpointName | None:
    """The name of a checkpoint of the job's own, in its directory; None for one from elsewhere."""
    if path is None or directory is None or PurePath(path).parent != PurePath(directory):
        return None
    return parse_name(PurePath(path).name)


def checkpoint_name_in(text: str) -> CheckpointName | None:
    """The checkpoint that a directory name stands for: committed, partial or quarantined (perhaps with `.2`)."""
    return parse_name(text.removesuffix(PARTIAL)) or parse_name(_COUNTER.sub("", text))


def parse_part(text: str) -> CheckpointName | None:
    """The checkpoint of which a directory with this name holds one node's files; None if it is no such name."""
    return parse_name(text.removesuffix(PART)) if text.endswith(PART) else None


def is_partial(text: str) -> bool:
    """Whether a directory name is that of a save that never reached its commit."""
    return text.endswith(PARTIAL) and parse_name(text.removesuffix(PARTIAL)) is not None


def is_unfinished(text: str) -> bool:
    """Whether a directory name is that of a save that never reached its commit, or of one node's files of a save."""
    return is_partial(text) or parse_part(text) is not None


def attempt_folder(runtime_dir: Path, program: str, attempt: int) -> Path:
    """Where the two control pipes of one attempt are; no two attempts share a pipe."""
    return runtime_dir / program / f"a{attempt}"


def standby_folder(runtime_dir: Path, program: str, token: str) -> Path:
    """Where the two control pipes of a standby are; renamed to `attempt_folder` when it is promoted."""
    return runtime_dir / program / f"s{token}"


def highest_attempts(runtime_dir: Path) -> dict[str, int]:
    """By program: the highest attempt whose pipes still exist."""
    return {name: max(attempts, default=0) for name, attempts in attempts_with_folders(runtime_dir).items()}


def attempts_with_folders(runtime_dir: Path) -> dict[str, list[int]]:
    """By program: the attempts whose pipes still exist."""
    return {path.name: _attempts_in(path) for path in _inside(runtime_dir)}


def _attempts_in(folder: Path) -> list[int]:
    matches = (match for path in _inside(folder) if (match := _ATTEMPT.fullmatch(path.name)) is not None)
    return [attempt for match in matches if (attempt := int(match[1])) <= MAX_TRACED_ATTEMPT]


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
