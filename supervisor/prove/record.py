"""Reads what the worker of a proof has recorded, also while it goes on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable
from supervisor.protocol.proof_plan import RECORD, Begun, Killed, Line, Named, ReachedValues, StepDone, decode_line


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What happened in one run, in its order."""

    lines: tuple[Line, ...] = ()

    @property
    def begun(self) -> tuple[Begun, ...]:
        """The runs that were entered, of all attempts."""
        return tuple(line for line in self.lines if isinstance(line, Begun))

    @property
    def steps(self) -> tuple[StepDone, ...]:
        """Every step, each time that it was trained."""
        return tuple(line for line in self.lines if isinstance(line, StepDone))

    @property
    def named(self) -> tuple[Named, ...]:
        """What the checks found, each once."""
        return tuple({line.name: line for line in self.lines if isinstance(line, Named)}.values())

    @property
    def killed(self) -> tuple[Killed, ...]:
        """The kills."""
        return tuple(line for line in self.lines if isinstance(line, Killed))

    @property
    def reached(self) -> tuple[ReachedValues, ...]:
        """The values that the loop reached, where they were recorded."""
        return tuple(line for line in self.lines if isinstance(line, ReachedValues))

    @property
    def last(self) -> int:
        """The highest step; 0 if there is none."""
        return max((step.step for step in self.steps), default=0)

    @property
    def edges(self) -> tuple[int, ...]:
        """The last steps of the epochs after which another one was seen to begin."""
        return edges_of(self.steps)


def edges_of(steps: Iterable[StepDone]) -> tuple[int, ...]:
    """The steps after which the epoch is another one. Steps that were trained again count once."""
    edges: list[int] = []
    before: StepDone | None = None
    for step in steps:
        if before is not None and step.step > before.step and step.epoch > before.epoch:
            # where the position behind an epoch's last step is already in the next epoch, that step itself is the edge
            edges.append(step.step if step.batch == 0 else before.step)
        before = step
    return tuple(sorted(set(edges)))


class RecordReader:
    """Follows a record while it grows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD
        self._at = 0
        self._lines: list[Line] = []

    def read(self) -> list[Line]:
        """The lines that were added since the last call."""
        try:
            with durable.open_regular(self._path) as file:
                file.seek(self._at)
                content = file.read()
        except OSError:  # it is not there yet
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        new = [line for text in whole.splitlines() if (line := decode_line(text)) is not None]
        self._lines += new
        return new

    def record(self) -> RunRecord:
        """All that was read so far."""
        return RunRecord(tuple(self._lines))
