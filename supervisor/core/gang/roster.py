"""Which nodes of a gang train, and as which rank, where it has more nodes than it needs.

A rank stays with its node for as long as that is there. A node that fails is left out, and a spare one takes its rank
in the next turn; the node that failed is a spare itself once its daemon has come back. One that has failed MAX_FAILURES
times is not taken again: what is wrong with it is for Slurm, or for people. One that leaves because of a notice has not
failed. Node 0 is the chief, which can't be replaced here: with it the batch script is gone as well.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

CHIEF = 0
MAX_FAILURES = 2
GRACE_S = 15.0  # for a node that has a rank and is slow, before a spare one gets it


@dataclass(slots=True)
class Roster:
    """`size`: nodes that there are; `wanted`: nodes that train. `ranks`: the node of each rank, of the last turn."""

    size: int
    wanted: int
    ranks: tuple[int, ...] = ()
    failures: dict[int, int] = field(default_factory=dict)
    """How often each node has failed."""
    _gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ranks = self.ranks or tuple(range(self.wanted))

    def is_out(self, node: int) -> bool:
        """Whether a node is not taken again."""
        return self.failures.get(node, 0) >= MAX_FAILURES

    def failed(self, node: int) -> None:
        """It is not there any more, and that is not its worker's fault. Counts once until it `came`."""
        if node not in self._gone:
            self._gone.add(node)
            self.failures[node] = self.failures.get(node, 0) + 1

    def left(self, node: int) -> None:
        """It is not there any more, and has said so before: that is no failure."""
        self._gone.add(node)

    def came(self, node: int) -> None:
        """Its daemon is there, perhaps again."""
        self._gone.discard(node)

    def can_go_on(self, present: Collection[int]) -> bool:
        """Whether those nodes are enough."""
        return sum(not self.is_out(node) for node in present) >= self.wanted

    def choose(self, ready: Collection[int], waited_s: float) -> tuple[int, ...] | None:
        """The node of each rank in the next turn; None: wait. `ready`: those without a worker, `waited_s`: for others.

        A node that is left out because it was too slow has failed.
        """
        usable = {node for node in ready if not self.is_out(node)}
        missing = [node for node in self.ranks if node not in usable]
        slow = [node for node in missing if node not in self._gone and not self.is_out(node)]
        if len(usable) < self.wanted or CHIEF not in usable or (slow and waited_s < GRACE_S):
            return None
        spare = sorted(usable - set(self.ranks), key=lambda node: (self.failures.get(node, 0), node))
        for node in slow:
            self.failed(node)
        takers = iter(spare)
        self.ranks = tuple(node if node in usable else next(takers) for node in self.ranks)
        return self.ranks
