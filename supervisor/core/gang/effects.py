"""What one daemon of a gang is to do: all that `view.py` decides."""

from dataclasses import dataclass

from supervisor.protocol.allocation import StepExit
from supervisor.protocol.gang import Broken, Over, Refused, SeenDivergence, WithoutWorker


@dataclass(frozen=True, slots=True)
class BeginTraining:
    """Start the worker, unless this node is a spare one. `nodes` and `addresses`: of all workers, by rank.

    `diverged`: on the chief, what the nodes know of divergences.
    """

    turn: int
    nodes: tuple[int, ...]
    addresses: tuple[str, ...]
    diverged: tuple[SeenDivergence, ...] = ()


@dataclass(frozen=True, slots=True)
class TellCluster:
    """To a spare node that has come back: who trains at present."""

    node: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """This turn is over: end the worker if there is one, and say `ready` once there is none. `text`: for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Say:
    """To one node, or to all that are connected (None)."""

    message: Broken | Over | Refused | WithoutWorker
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Nothing is heard of that node: end the connection, so that it can join again."""

    node: int


@dataclass(frozen=True, slots=True)
class EndGeneration:
    """This generation is over: end the worker, and leave with `status`. `text`: why, for people."""

    status: StepExit
    text: str


GangEffect = BeginTraining | TellCluster | EndWorker | Say | Disconnect | EndGeneration
