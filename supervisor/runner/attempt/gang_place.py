"""Where this node stands in its gang: which rank it has in the present turn, if any, and with whom it trains."""

from dataclasses import dataclass, field, replace

from supervisor.protocol import gang
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import SeenDivergence
from supervisor.runner.attempt.gang_parts import GangParts


@dataclass(slots=True)
class GangPlace:
    """The gang's agent changes it with each turn.

    `allocation`: this node's of this turn, `given`: as it was before the first one, where `rank` is the number of the
    node. `cluster`: TF_CONFIG of this turn, for the worker. `spare_of`: the nodes that train while this one is a spare
    node; None: it has a rank. `left`: to the chief, nodes that have left because their hosts go away. `parts`: what its
    nodes tell each other of checkpoints, if each has a folder of its own. `diverged`: on the chief, what nodes have
    said of divergences before this turn.
    """

    allocation: Allocation
    given: Allocation = field(init=False)
    cluster: str | None = None
    spare_of: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()
    diverged: tuple[SeenDivergence, ...] = ()
    parts: GangParts = field(default_factory=GangParts)

    def __post_init__(self) -> None:
        self.given = self.allocation

    @property
    def nodes(self) -> int:
        """How many there are, with the spare ones."""
        return self.given.size

    def take_rank(
        self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...], diverged: tuple[SeenDivergence, ...]
    ) -> None:
        """This node trains in this turn. `nodes`, `addresses`: of all that do, by rank."""
        self.allocation, self.spare_of = self.given.of_turn(turn, nodes), None
        self.cluster = gang.cluster_text(addresses, self.allocation.rank)
        self.diverged = diverged
        self.parts.begin_turn(self.allocation.generation, [node for node in nodes if node != self.given.rank])

    def become_spare(self, turn: int, nodes: tuple[int, ...]) -> None:
        """Other `nodes` train in this turn."""
        self.allocation = replace(self.given, generation=self.given.generation + turn)
        self.spare_of = tuple(self.given.nodes[node] for node in nodes)

    def note_left(self, node: int) -> None:
        """It has left alone."""
        if (name := self.given.nodes[node]) not in self.left:
            self.left += (name,)

    def note_joined(self, node: int) -> None:
        """It is there, perhaps again."""
        self.left = tuple(name for name in self.left if name != self.given.nodes[node])
