"""One daemon's view of its gang: who has joined, who is alive, and when this generation is over.

The chief watches all others, the others watch the chief. The first loss ends the generation: whoever learns of it ends
its own worker at once and leaves, so that nobody waits for TensorFlow's own heartbeat, and what follows is the batch
script's decision alone (`core.fleet.steps`). A rank that leaves because it is done, or has saved, is no loss; the
others have a while to do the same.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.plurals import listed

SILENCE_S = 10.0  # without a word: its node is gone, or the link; words come every second
LEAVE_S = 60.0  # from the first rank that is done or has saved to the last
LISTED_RANKS = 8  # in a text that goes to all of them
_IN_ORDER = frozenset({StepExit.DONE, StepExit.SAVED, StepExit.NODE_LEAVES})


@dataclass(frozen=True, slots=True)
class BeginTraining:
    """All have joined: start the workers, which listen at these addresses, by rank."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndGeneration:
    """This generation is over: end the worker, and leave with `status`. `text`: why, for people."""

    status: StepExit
    text: str


GangEffect = BeginTraining | EndGeneration


@dataclass(slots=True)
class GangView:
    """What one daemon knows. All times are monotonic seconds; `rendezvous_s`: how long it waits until all are there."""

    allocation: Allocation
    address: str
    began_at: float
    rendezvous_s: float
    has_begun: bool = False
    end: EndGeneration | None = None
    _addresses: dict[int, str] = field(default_factory=dict)
    _heard_at: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Of those that have joined and not left; first the one from which nothing was heard for longest: a chief asks for
    it whenever a rank joins."""
    _left: set[int] = field(default_factory=set)
    _leave_by: float | None = None

    @property
    def _peers(self) -> range:
        return range(1, self.allocation.size) if self.allocation.rank == 0 else range(1)

    def joined(self, rank: int, address: str, now: float) -> list[GangEffect]:
        """To the chief: a daemon has proved that it belongs to this generation."""
        self._addresses[rank] = address
        self.heard(rank, now)
        if self.has_begun or self.end is not None or len(self._addresses) < self.allocation.size - 1:
            return []
        self.has_begun = True
        return [BeginTraining((self.address, *(self._addresses[peer] for peer in self._peers)))]

    def begun(self, addresses: tuple[str, ...], now: float) -> list[GangEffect]:
        """To the others: the chief has named the cluster."""
        self.heard(0, now)
        if self.end is not None or self.has_begun:
            return []
        if len(addresses) != self.allocation.size or addresses[self.allocation.rank] != self.address:
            return self._over(StepExit.AGAIN, "the chief named another cluster than this one")
        self.has_begun = True
        return [BeginTraining(addresses)]

    def heard(self, rank: int, now: float) -> None:
        """It said something."""
        if rank not in self._left:
            self._heard_at[rank] = now
            self._heard_at.move_to_end(rank)

    def left(self, rank: int, status: int, text: str, now: float) -> list[GangEffect]:
        """It said that it leaves, and why."""
        if status in _IN_ORDER and self.has_begun:
            self._left.add(rank)
            self._heard_at.pop(rank, None)
            self._leave_by = self._leave_by or now + LEAVE_S
            return []
        return self._over(StepExit.AGAIN, f"{self.allocation.describe(rank)} left: {text}")

    def lost(self, rank: int, text: str) -> list[GangEffect]:
        """Its connection ended without a word."""
        if rank in self._left:
            return []
        return self._over(StepExit.AGAIN, f"{self.allocation.describe(rank)} was lost: {text}")

    def deadline(self) -> float | None:
        """When to call `expire`."""
        if self.end is not None:
            return None
        limits = [at + SILENCE_S for at in islice(self._heard_at.values(), 1)]
        if not self.has_begun:
            limits.append(self.began_at + self.rendezvous_s)
        if self._leave_by is not None:
            limits.append(self._leave_by)
        return min(limits, default=None)

    def expire(self, now: float) -> list[GangEffect]:
        """The time of `deadline` has come."""
        if silent := sorted(rank for rank, at in self._heard_at.items() if now >= at + SILENCE_S):
            text = f"nothing was heard of {self._names(silent)} for {SILENCE_S:g} s"
            return self._over(StepExit.AGAIN, text)
        if not self.has_begun and now >= self.began_at + self.rendezvous_s:
            return self._over(StepExit.NODE_MISSING, self._describe_missing())
        if self._leave_by is not None and now >= self._leave_by:
            text = f"other ranks ended {LEAVE_S:g} s ago, and the worker here has not"
            return self._over(StepExit.AGAIN, text)
        return []

    def _describe_missing(self) -> str:
        within = f"within {self.rendezvous_s:g} s (rendezvous_timeout)"
        if self.allocation.rank != 0:
            if 0 in self._heard_at:
                return (
                    f"the gang was not complete {within}; the log of {self.allocation.describe(0)} names who is missing"
                )
            return f"{self.allocation.describe(0)}, the chief, could not be reached {within}"
        missing = [peer for peer in self._peers if peer not in self._addresses]
        return f"{self._names(missing)} did not join {within}"

    def _names(self, ranks: Sequence[int]) -> str:
        """The first of them: the text goes to every rank, and may be about as many."""
        return listed([self.allocation.describe(rank) for rank in ranks], ", ", LISTED_RANKS)

    def _over(self, status: StepExit, text: str) -> list[GangEffect]:
        if self.end is not None:
            return []
        self.end = EndGeneration(status, text)
        return [self.end]
