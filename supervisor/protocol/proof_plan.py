"""What a proof and the worker that it runs tell each other, in files of a folder that an environment variable names.

`plan.json`: what the worker is to do. `end`: the step at which training ends as complete, once that is decided.
`written/record.jsonl`: what happened, one JSON object a line: a run that begins, each step that is done, what the
checks found, and each kill, written by the process right before it kills itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.proof import KillPlace
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

PLAN = "plan.json"
END = "end"
WRITTEN = "written"  # the folder of what the worker writes
RECORD = f"{WRITTEN}/record.jsonl"
QUEUE = "in the queue: "  # how the text of a queue's value begins


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """Where a worker kills itself: with SIGKILL at or after the boundary behind `step`, see `KillPlace`.

    `saves`: a checkpoint of the step is committed before. `damages`: after that, one bit of the newest one is flipped.
    """

    place: KillPlace
    step: int
    saves: bool = False
    damages: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What the workers of one run do. The first kill is for the first attempt, and so on. `end`: the step at which
    training ends as complete; None: where the script ends it, or where the file `end` says. `watched`: the steps
    behind which the values that the loop reaches are recorded; `watches_restarts`: they also are where an attempt
    begins, and behind its first step."""

    kills: tuple[PlannedKill, ...] = ()
    end: int | None = None
    watched: tuple[int, ...] = ()
    watches_restarts: bool = False

    def write(self, folder: Path) -> None:
        """Writes it into the folder. Raises OSError."""
        (folder / PLAN).write_text(encode_record(self))

    @classmethod
    def read(cls, folder: Path) -> "WorkerPlan":
        """Reads it. Raises OSError; ProtocolError if the file is not one."""
        return decode_record(parse_object((folder / PLAN).read_text()), cls, PLAN)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that was entered. `step`: of the checkpoint that it restored. `kind`: the class of the run; `files`: those
    of the script's own modules."""

    attempt: int
    step: int
    kind: str
    python: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step, each time that it was trained. `at`: monotonic seconds. `metrics`: the exact bits of each value, of each
    replica: a number as float.hex() writes it, an array as its hash."""

    attempt: int
    step: int
    at: float
    epoch: int
    batch: int
    examples: int | None = None
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Named:
    """What the worker's checks named at the first steps. `left_out`: the script names it in leave_out."""

    attempt: int
    name: str
    remedy: str
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Killed:
    """The process is about to kill itself. `number`: of the planned kill. `damaged`: the checkpoint that it damaged."""

    attempt: int
    number: int
    step: int
    damaged: str | None = None


@dataclass(frozen=True, slots=True)
class ReachedValues:
    """The values that the loop reaches, by path, behind a step; `is_begin`: where the attempt begins from its state."""

    attempt: int
    step: int
    is_begin: bool
    values: Mapping[str, str]


Line = Begun | StepDone | Named | Killed | ReachedValues
_KINDS: Mapping[str, type[Line]] = {
    "begun": Begun,
    "step": StepDone,
    "named": Named,
    "killed": Killed,
    "reached": ReachedValues,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_line(line: Line) -> bytes:
    """One line of the record."""
    return f'{{"{_NAMES[type(line)]}":{encode_record(line)}}}\n'.encode()


def decode_line(text: bytes) -> Line | None:
    """What a line says; None for one that is not whole, which a killed process may leave, or of a newer kind."""
    try:
        body: dict[str, Any] = parse_object(text)
        for name, content in body.items():
            if name in _KINDS and isinstance(content, dict):
                return decode_record(content, _KINDS[name], name)
    except ProtocolError:
        return None
    return None


def damage_newest(directory: Path) -> str | None:
    """Flips one bit in the largest file of the newest checkpoint; gives its name, None if there is none.

    Raises OSError.
    """
    names = selection.committed_checkpoints(directory)
    if not names:
        return None
    files = [path for path in (directory / str(names[0])).iterdir() if path.name != layout.MANIFEST]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        middle = largest.stat().st_size // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
    return str(names[0])
