"""One daemon's view of its gang: who is there, who trains, and when a turn, or the whole generation, is over.

A generation is one start of all daemons, by the batch script. In it the chief (rank 0) begins one *turn* after another:
all that are there and have no worker start one together.

A turn ends when a worker has ended on any node. If all daemons that are needed are there, the chief alone says that it
is over (`Over`); each daemon ends its worker, says that it has none (`WithoutWorker`), and the next turn begins. No
daemon ends, so only workers are started, for which processes wait that have imported everything (docs/standby.md).

A node fails if nothing is heard of it, or its daemon is gone. If there are spare nodes, one takes its rank in the next
turn (`roster.py`). Otherwise the generation is over: whoever learns of that ends its own worker at once and leaves, so
that nobody waits for TensorFlow's own heartbeat, and what follows is the batch script's decision alone (`steps.py`).

A node that goes away because of a notice says so once its worker has saved and stopped, and with it the workers of all
ranks. If a spare node can take its rank, the chief begins the next turn when all have stopped. What else makes a worker
stop in order, such as an operator, ends the generation: the chief waits for the word of whoever was told to.

Two can't decide at the same time: the batch script does nothing while a daemon lives, and of the daemons only the chief
begins turns. A rank that leaves because it is done, or has saved, is no loss; the others have a while to do the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from supervisor.core.gang.effects import (
    BeginTraining,
    Disconnect,
    EndGeneration,
    EndWorker,
    GangEffect,
    Say,
    TellCluster,
)
from supervisor.core.gang.orderly_stop import OrderlyStop
from supervisor.core.gang.presence import SILENCE_S, Presence
from supervisor.core.gang.roster import CHIEF, GRACE_S, MAX_FAILURES, Roster
from supervisor.protocol.allocation import MAX_TURNS, Allocation, StepExit
from supervisor.protocol.gang import Broken, Over, Refused, SeenDivergence, WithoutWorker
from supervisor.protocol.plurals import listed

LEAVE_S = 60.0  # from the first rank that is done or has saved to the last
LISTED_RANKS = 8  # in a text that goes to all of them
_IN_ORDER = frozenset({StepExit.DONE, StepExit.SAVED, StepExit.NODE_LEAVES})
_TOLD_TO = frozenset({StepExit.SAVED, StepExit.NODE_LEAVES})


class TurnPhase(Enum):
    """Where a daemon stands in the present turn."""

    GATHERING = "gathering"  # it has not begun: workers of the turn before are to end
    TRAINING = "training"  # it has begun; a spare node waits
    BROKEN = "broken"  # this daemon has told the chief that its worker has ended


@dataclass(slots=True)
class GangView:
    """What one daemon knows. All times are monotonic seconds; `rendezvous_s`: how long it waits until all are there.

    `allocation`: its `rank` is this node's number here.
    """

    allocation: Allocation
    began_at: float
    rendezvous_s: float
    roster: Roster
    turn: int = 0
    phase: TurnPhase = TurnPhase.GATHERING
    addresses: tuple[str, ...] = ()
    """Of the workers of this turn, by rank, while it is TRAINING."""
    end: EndGeneration | None = None
    is_done: bool = False
    """The worker here has trained to the end, and so have all: whoever is lost now takes nothing with it, and no other
    turn follows."""
    _diverged: dict[int, SeenDivergence] = field(default_factory=dict)
    """To the chief: what nodes without a worker know of divergences."""
    _presence: Presence = field(default_factory=Presence)
    _leave_by: float | None = None
    _stop: OrderlyStop = field(default_factory=OrderlyStop)
    """Of this turn; of the others than the chief, what their own worker has done."""

    @property
    def is_chief(self) -> bool:
        """Whether this daemon begins turns."""
        return self.allocation.rank == CHIEF

    @property
    def trains(self) -> bool:
        """Whether this node has a rank in the present turn."""
        return self.phase is not TurnPhase.GATHERING and self.allocation.rank in self.roster.ranks

    # --- what other daemons say ---

    def joined(
        self, node: int, turn: int, address: str, now: float, diverged: SeenDivergence | None = None
    ) -> list[GangEffect]:
        """To the chief: a daemon has proved that it belongs to this generation."""
        if self.roster.is_out(node):
            text = f"{self.allocation.describe(node)} has failed {MAX_FAILURES} times and is not taken again"
            return [Say(Refused(text, is_out=True), node)]
        self._presence.came(node, now)
        self.roster.came(node)
        if self.end is not None:
            return []
        if self.phase is TurnPhase.TRAINING and node in self.roster.ranks:
            return self._again(f"the worker of {self.allocation.describe(node)} ended with its daemon", now)
        if turn != self.turn:
            return [Say(Over(self.turn, "another node has its rank"), node)]
        return self._is_ready(node, address, now, diverged)

    def on_ready(self, node: int, message: WithoutWorker, now: float) -> list[GangEffect]:
        """To the chief: no worker runs there. One that has left says so, too, until it is gone."""
        self.heard(node, now)
        if self.end is not None or message.turn != self.turn or self._presence.has_left(node):
            return []
        return self._is_ready(node, message.address, now, message.diverged)

    def on_broken(self, node: int, message: Broken, now: float) -> list[GangEffect]:
        """To the chief: the worker there has ended."""
        self.heard(node, now)
        is_now = self.phase is TurnPhase.TRAINING and message.turn == self.turn and node in self.roster.ranks
        if self.end is not None or not is_now:
            return []
        if message.saved:
            return self._on_stopped(node, now)
        return self._again(f"{self.allocation.describe(node)}: {message.text}", now)

    def on_over(self, message: Over, now: float) -> list[GangEffect]:
        """To the others: the turn before `message.turn` is over."""
        self.heard(CHIEF, now)
        if self.end is not None or not self.turn <= message.turn:
            return []
        self.turn, self.phase, self.began_at = message.turn, TurnPhase.GATHERING, now
        self._stop = OrderlyStop()
        return [EndWorker(message.text)]

    def begun(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...], now: float) -> list[GangEffect]:
        """To the others: the chief has named the cluster."""
        self.heard(CHIEF, now)
        if self.end is not None or (self.phase is not TurnPhase.GATHERING and turn == self.turn):
            return []
        if self.phase is not TurnPhase.GATHERING or turn != self.turn:
            return self._over(StepExit.AGAIN, "the chief named a turn that is none")
        return self._begin(nodes, addresses)

    def heard(self, node: int, now: float) -> None:
        """It said something."""
        self._presence.heard(node, now)

    def left(self, node: int, status: int, text: str, now: float, alone: bool = False) -> list[GangEffect]:
        """It said that it leaves, and why. `alone`: only because of its own node."""
        if self._presence.has_left(node):
            return []
        reason = f"{self.allocation.describe(node)} left: {text}"
        if alone and self.is_chief:
            return self._on_left_alone(node, reason, now)
        if self._is_spare(node):
            self._presence.forget(node)
            return []
        if status in _IN_ORDER and self.phase is not TurnPhase.GATHERING:
            return self._on_left_in_order(node, reason, now)
        if status in _TOLD_TO:
            return self._on_left_between_turns(node, StepExit(status), reason)
        if status == StepExit.FAILED or self._leave_by is not None:
            return self._over(StepExit.AGAIN, reason)
        self._presence.forget(node)
        return self._failed([node], reason, now)

    def lost(self, node: int, text: str, now: float) -> list[GangEffect]:
        """Its connection ended without a word."""
        if self._presence.has_left(node):
            return []
        self._presence.forget(node)
        return self._failed([node], f"{self.allocation.describe(node)} was lost: {text}", now)

    def refused(self, reason: str, is_out: bool) -> list[GangEffect]:
        """To the others: the chief does not take this daemon."""
        if is_out:
            return self._over(StepExit.DONE, reason)
        return self._over(StepExit.AGAIN, f"the chief refused this daemon: {reason}")

    # --- what happens here ---

    def broken(self, text: str, now: float) -> list[GangEffect]:
        """The worker here has ended, and nobody asked for it."""
        if self.end is not None or self.phase is not TurnPhase.TRAINING or not self.trains:
            return []
        if self.is_chief:
            return self._again(f"{self.allocation.describe(CHIEF)}: {text}", now)
        self.phase = TurnPhase.BROKEN
        return [Say(Broken(self.turn, text))]

    def stopped(self, now: float) -> list[GangEffect]:
        """The worker here has saved and stopped, as that of another rank was told to; the chief learns why."""
        here = self.allocation.rank
        if (
            self.end is not None
            or self.phase is not TurnPhase.TRAINING
            or not self.trains
            or here in self._stop.stopped
        ):
            return []
        if self.is_chief:
            return self._on_stopped(here, now)
        if self._leave_by is not None:
            return self._over(StepExit.SAVED, "saved and stopped")
        self._stop.stopped.add(here)
        self.phase = TurnPhase.BROKEN
        return [Say(Broken(self.turn, "saved and stopped", saved=True))]

    def ready(self, address: str, now: float, diverged: SeenDivergence | None = None) -> list[GangEffect]:
        """No worker runs here; the next one will listen at `address`. `diverged`: what its worker has seen."""
        if self.end is not None or self.phase is not TurnPhase.GATHERING:
            return []
        if self.is_chief:
            return self._is_ready(CHIEF, address, now, diverged)
        return [Say(WithoutWorker(self.turn, address, diverged))]

    # --- time ---

    def deadline(self) -> float | None:
        """When to call `expire`."""
        if self.end is not None:
            return None
        limits = [self._presence.silent_at()]
        if self.phase is TurnPhase.GATHERING:
            limits.append(self.began_at + self.rendezvous_s)
            if CHIEF in self._presence.ready and self.roster.can_go_on(self._presence.ready):
                limits.append(self.began_at + GRACE_S)
        limits += [self._leave_by, self._stop.due_at]
        return min((at for at in limits if at is not None), default=None)

    def expire(self, now: float) -> list[GangEffect]:
        """The time of `deadline` has come."""
        if self.end is not None:
            return []
        if silent := self._presence.pop_silent(now):
            text = f"nothing was heard of {self._names(silent)} for {SILENCE_S:g} s"
            return [*map(Disconnect, silent), *self._failed(silent, text, now)]
        if self.phase is TurnPhase.GATHERING:
            if now >= self.began_at + self.rendezvous_s:
                return self._over(StepExit.NODE_MISSING, self._describe_missing())
            return self._begin_if_complete(now) if self.is_chief else []
        if self._leave_by is not None and now >= self._leave_by:
            text = f"other ranks ended {LEAVE_S:g} s ago, and the worker here has not"
            return self._over(StepExit.AGAIN, text)
        if self._stop.due_at is not None and now >= self._stop.due_at:
            if self._stop.departed is not None:
                return self._again(self._stop.departed, now)
            return self._over(StepExit.SAVED, "saved and stopped, and no node said why")
        return []

    # --- what follows ---

    def _is_ready(self, node: int, address: str, now: float, diverged: SeenDivergence | None) -> list[GangEffect]:
        if self.phase is TurnPhase.TRAINING:
            return [TellCluster(node)] if self._is_spare(node) else []
        self._presence.ready[node] = address
        if diverged is not None:
            self._diverged[node] = diverged
        return self._begin_if_complete(now)

    def _begin_if_complete(self, now: float) -> list[GangEffect]:
        if (nodes := self.roster.choose(self._presence.ready, now - self.began_at)) is None:
            return []
        return self._begin(nodes, tuple(self._presence.ready[node] for node in nodes))

    def _begin(self, nodes: tuple[int, ...], addresses: tuple[str, ...]) -> list[GangEffect]:
        self.phase, self.roster.ranks, self.addresses = TurnPhase.TRAINING, nodes, addresses
        self._presence.ready.clear()
        diverged = tuple(self._diverged.values())  # also of a node that has left since
        self._diverged.clear()
        return [BeginTraining(self.turn, nodes, addresses, diverged)]

    def _again(self, text: str, now: float) -> list[GangEffect]:
        """The chief ends this turn, for the next one."""
        if self.is_done:
            return []
        if self._leave_by is not None or self.turn + 1 >= MAX_TURNS:
            return self._over(StepExit.AGAIN, text)
        self.turn += 1
        self.phase, self.began_at = TurnPhase.GATHERING, now
        self._presence.ready.clear()
        self._stop = OrderlyStop()
        return [Say(Over(self.turn, text)), EndWorker(text)]

    def _failed(self, nodes: Sequence[int], text: str, now: float) -> list[GangEffect]:
        """Those are gone: a spare node takes over, or the generation is over."""
        if self.end is not None or self.is_done:
            return []
        if not self.is_chief:
            return self._over(StepExit.AGAIN, text)
        had_ranks = any(node in self.roster.ranks for node in nodes)
        for node in nodes:
            self.roster.failed(node)
        if not had_ranks:
            return []
        if not self.roster.can_go_on(self._presence.nodes):
            return self._over(StepExit.AGAIN, text)
        return self._again(text, now) if self.phase is TurnPhase.TRAINING else self._begin_if_complete(now)

    def _on_left_in_order(self, node: int, reason: str, now: float) -> list[GangEffect]:
        """It is done, or has saved, and so are the others soon."""
        self._presence.left(node)
        self._leave_by = self._leave_by or now + LEAVE_S
        self._stop.due_at = None
        if self._is_spare(self.allocation.rank):
            return self._over(StepExit.DONE, reason)
        return self._over(StepExit.SAVED, reason) if self.allocation.rank in self._stop.stopped else []

    def _on_left_between_turns(self, node: int, status: StepExit, reason: str) -> list[GangEffect]:
        """It was told to stop while no worker ran: as while all train, the others stop with it, and nobody failed."""
        if node in self.roster.ranks:
            return self._over(status, reason)
        self._presence.forget(node)
        self.roster.left(node)
        return []

    def _on_left_alone(self, node: int, reason: str, now: float) -> list[GangEffect]:
        """To the chief: a spare node takes its rank, or all leave with it."""
        had_rank = node in self.roster.ranks
        self._presence.forget(node)
        self.roster.left(node)
        is_last = not self.roster.can_go_on(self._presence.nodes)
        if had_rank and self.end is None and (is_last or self._leave_by is not None):
            reason = f"{reason}; no spare node can take its rank" if is_last else reason
            if self.phase is TurnPhase.TRAINING:
                return self._on_left_in_order(node, reason, now)
            return self._over(StepExit.NODE_LEAVES, reason)
        self._presence.left(node)
        if not had_rank or self.end is not None:
            return []
        if self.phase is not TurnPhase.TRAINING:
            return self._begin_if_complete(now)
        self._stop.note_departed(f"{reason}; a spare node takes its rank", now)
        return self._again_if_stopped(now)

    def _on_stopped(self, node: int, now: float) -> list[GangEffect]:
        """To the chief: the worker of a rank has saved and stopped."""
        if self._leave_by is not None:
            return self._over(StepExit.SAVED, "saved and stopped") if node == CHIEF else []
        self._stop.note_stopped(node, node == CHIEF, now)
        return self._again_if_stopped(now)

    def _again_if_stopped(self, now: float) -> list[GangEffect]:
        if self._stop.departed is None or not self._stop.is_over(set(self.roster.ranks) - self._presence.gone):
            return []
        return self._again(self._stop.departed, now)

    def _is_spare(self, node: int) -> bool:
        return self.phase is not TurnPhase.GATHERING and node not in self.roster.ranks

    def has_left(self, node: int) -> bool:
        """Whether it has said that it leaves, and is not back."""
        return self._presence.has_left(node)

    def _describe_missing(self) -> str:
        within = f"within {self.rendezvous_s:g} s (rendezvous_timeout)"
        if not self.is_chief:
            if self._presence.knows(CHIEF):
                chief = self.allocation.describe(CHIEF)
                return f"the gang was not complete {within}; the log of {chief} names who is missing"
            return f"{self.allocation.describe(CHIEF)}, the chief, could not be reached {within}"
        missing = [node for node in range(self.allocation.size) if node not in self._presence.ready]
        need = f"; {self.roster.wanted} are needed" if self.roster.wanted < self.allocation.size else ""
        return f"{self._names(missing)} did not join {within}{need}"

    def _names(self, nodes: Sequence[int]) -> str:
        """The first of them: the text goes to every rank, and may be about as many."""
        return listed([self.allocation.describe(node) for node in nodes], ", ", LISTED_RANKS)

    def _over(self, status: StepExit, text: str) -> list[GangEffect]:
        if self.end is not None:
            return []
        self.end = EndGeneration(status, text)
        return [self.end]
