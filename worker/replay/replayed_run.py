"""What the replays of a run copy, put back and compare: the tensors of its library, and what every run has besides."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from worker.state.plain_values import SavedValue
from worker.state.state_file import Position

Tensors = TypeVar("Tensors")


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a run knows between two steps, besides tensors.

    `values`: of `run.state`. `generators`: the states of random generators, by kind. `metrics`: as the script gave them
    to `step_done`. `passes`: over the data, which can't be put back.
    """

    step: int
    position: Position
    values: Mapping[str, Any]
    generators: Mapping[str, Any]
    metrics: Mapping[str, Any]
    passes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopAccess:
    """What a run lets its replays do. `begin` and `end`: steps don't count in between; `end` gets how long that was.
    `serve_requests`: what was requested meanwhile; it may exit."""

    read: Callable[[], LoopState]
    read_passes: Callable[[], Mapping[str, Any]]
    read_step: Callable[[], int]
    write: Callable[[LoopState], None]
    is_between_steps: Callable[[], bool]
    begin: Callable[[], None]
    end: Callable[[float], None]
    serve_requests: Callable[[], None]
    metric_values: Callable[[Mapping[str, Any]], Mapping[str, float]]


class Saves(Protocol):
    """What the saves of a run tell its replays."""

    @property
    def step_s(self) -> float | None:
        """How long a step takes; None if that is not known yet."""

    @property
    def begun_step(self) -> int | None:
        """The step of the newest checkpoint that this process has begun to write."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The names of what no checkpoint holds."""


@dataclass(frozen=True, slots=True)
class StateCopy(Generic[Tensors]):
    """All that a checkpoint would hold at one step boundary, in memory of its own."""

    loop: LoopState
    tensors: Tensors


class ReplayedRun(ABC, Generic[Tensors]):
    """One run, for its replays. All of it is asked between two steps."""

    def __init__(self, loop: LoopAccess, saves: Saves) -> None:
        self.loop = loop
        self.saves = saves

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """The size of the tensors."""

    @abstractmethod
    def why_no_copy(self) -> str | None:
        """Why the tensors can't be copied and put back; None if they can."""

    @abstractmethod
    def read_tensors(self) -> Tensors:
        """A copy of the tensors. Raises MemoryError."""

    @abstractmethod
    def write_tensors(self, tensors: Tensors) -> None:
        """Puts a copy back. It may be used up by this."""

    @abstractmethod
    def differing_tensors(self, tensors: Tensors) -> Iterator[str]:
        """The names of those that are not the same bits as in a copy."""

    @abstractmethod
    def is_same_structure(self, one: Tensors, other: Tensors) -> bool:
        """Whether both are of the same tensors."""

    def why_not_replayable(self) -> str | None:
        """Why steps of this run can't be trained again from a copy of the state; None if they can."""
        if names := self.saves.findings:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            return f"a second time would not begin in the same state, as no checkpoint has {', '.join(names[:3])}{more}"
        return self.why_no_copy()

    def copy(self) -> StateCopy[Tensors]:
        """The present state. Raises MemoryError."""
        return StateCopy(self.loop.read(), self.read_tensors())

    def can_go_back(self, before: StateCopy[Tensors], now: StateCopy[Tensors]) -> bool:
        """Whether nothing of the present state `now` would be left if `before` were put back.

        New names in `run.state` would, and new tensors.
        """
        are_same_values = before.loop.values.keys() == now.loop.values.keys()
        return are_same_values and self.is_same_structure(before.tensors, now.tensors)

    def put_back(self, copy: StateCopy[Tensors]) -> None:
        """Makes the present state the one of the copy, which is used up by this."""
        self.write_tensors(copy.tensors)
        self.loop.write(copy.loop)

    def differences(self, copy: StateCopy[Tensors]) -> tuple[str, ...]:
        """The names of what is not the same bits in the present state."""
        return (*self.differing_tensors(copy.tensors), *self._differing_in_loop(copy.loop, self.loop.read()))

    def _differing_in_loop(self, before: LoopState, now: LoopState) -> Iterator[str]:
        for name in sorted(before.values.keys() | now.values.keys()):
            if (
                name not in before.values
                or name not in now.values
                or not _are_same(before.values[name], now.values[name])
            ):
                yield f'run.state["{name}"]'
        yield from (
            f"random state of {kind}" for kind, state in before.generators.items() if now.generators[kind] != state
        )
        measured, measured_now = self.loop.metric_values(before.metrics), self.loop.metric_values(now.metrics)
        yield from (f"metric {name}" for name, value in measured.items() if measured_now.get(name) != value)
        if (before.step, before.position) != (now.step, now.position):
            yield "position in the data"


def _are_same(one: Any, other: Any) -> bool:
    return SavedValue(one).digest() == SavedValue(other).digest()
