"""Daemons of a gang with random histories: workers, daemons and nodes that are lost. Those but the chief come back.

Each daemon is a view; messages arrive in the order in which they were sent over one connection, connections in any
order. A worker is only the turn in which it trains. A notice lets all workers of the turn save and stop; its daemon
leaves.
"""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gang.effects import (
    BeginTraining,
    Disconnect,
    EndGeneration,
    EndWorker,
    GangEffect,
    Say,
    TellCluster,
)
from supervisor.core.gang.roster import Roster
from supervisor.core.gang.view import GangView, TurnPhase
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.gang import Broken, Over, Refused, WithoutWorker
from tests.fuzzing import cases

SIZE, WANTED = 5, 3
NODES = tuple(f"n{node}" for node in range(SIZE))
RENDEZVOUS_S = 60.0
NOTICE = "its host goes away"


@dataclass
class Daemon:
    """`worker`: the turn in which it trains."""

    view: GangView
    worker: int | None = None
    is_connected: bool = False


@dataclass
class World:
    """`queues`: what is under way from and to each node but the chief's."""

    daemons: dict[int, Daemon] = field(default_factory=dict)
    queues: dict[tuple[int, int], deque[object]] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    """Nodes of which nothing is heard."""
    leaving: set[int] = field(default_factory=set)
    """Nodes whose daemons have said that they leave."""
    now: float = 0.0
    over: bool = False

    def start(self, node: int) -> None:
        view = GangView(Allocation(7, node, NODES, 0, 1), self.now, RENDEZVOUS_S, Roster(SIZE, WANTED))
        self.daemons[node] = Daemon(view)
        if node == 0:
            self.do(0, view.ready(self.address(0), self.now))

    def connect(self, node: int) -> None:
        daemon = self.daemons.get(node)
        if 0 in self.daemons and daemon is not None and not daemon.is_connected and node not in self.cut:
            daemon.is_connected = True
            self.queues[node, 0], self.queues[0, node] = deque(), deque()
            view = daemon.view
            chief = self.daemons[0].view
            self.do(0, chief.joined(node, view.turn, self.address(node), self.now))

    def address(self, node: int) -> str:
        return f"{NODES[node]}:{5000 + node}"

    def do(self, node: int, effects: list[GangEffect]) -> None:
        for effect in effects:
            daemon = self.daemons[node]
            match effect:
                case BeginTraining():
                    if node == 0:
                        for other in range(1, SIZE):
                            self.send(0, other, effect)
                    if node in effect.nodes:
                        self.begin(node, effect)
                case TellCluster():
                    view = daemon.view
                    self.send(0, effect.node, BeginTraining(view.turn, view.roster.ranks, view.addresses))
                case EndWorker():
                    daemon.worker = None
                    self.do(node, daemon.view.ready(self.address(node), self.now))
                case Say(node=None):
                    for other in range(1, SIZE) if node == 0 else (0,):
                        self.send(node, other, effect.message)
                case Say():
                    self.send(0, effect.node or 0, effect.message)
                case Disconnect():
                    self.disconnect(effect.node)
                case EndGeneration():
                    daemon.worker = None
                    self.lose(node, with_word=effect.status)

    def begin(self, node: int, begins: BeginTraining) -> None:
        """Nobody whom the chief counts on trains in another turn, and no rank is held twice."""
        assert len(set(begins.nodes)) == len(begins.nodes) == WANTED
        for other in begins.nodes:
            if (daemon := self.daemons.get(other)) is not None and other not in self.cut:
                assert daemon.worker in (None, begins.turn)
        self.daemons[node].worker = begins.turn

    def send(self, source: int, to: int, message: object) -> None:
        if (queue := self.queues.get((source, to))) is not None:
            queue.append(message)

    def deliver(self, source: int, to: int) -> None:
        queue, daemon = self.queues.get((source, to)), self.daemons.get(to)
        if not queue or daemon is None or not {source, to}.isdisjoint(self.cut):
            return
        view, message = daemon.view, queue.popleft()
        match message:
            case BeginTraining():
                self.do(to, view.begun(message.turn, message.nodes, message.addresses, self.now))
            case Over():
                self.do(to, view.on_over(message, self.now))
            case WithoutWorker():
                self.do(to, view.on_ready(source, message, self.now))
            case Broken():
                self.do(to, view.on_broken(source, message, self.now))
            case Refused():
                assert self.daemons[0].view.roster.is_out(to)
                self.do(to, view.refused(message.reason, message.is_out))
            case StepExit():
                self.do(to, view.left(source, message, "x", self.now))
            case str():
                self.do(to, view.left(source, StepExit.NODE_LEAVES, message, self.now, alone=True))

    def disconnect(self, node: int) -> None:
        self.queues.pop((node, 0), None)
        self.queues.pop((0, node), None)
        if node in self.daemons:
            self.daemons[node].is_connected = False

    def lose(self, node: int, with_word: StepExit | None = None) -> None:
        """The daemon is gone."""
        daemon = self.daemons.pop(node)
        others = [other for other in self.daemons if self.daemons[other].is_connected] if node == 0 else [0]
        self.over = self.over or node == 0
        for other in others:
            connected = node == 0 or daemon.is_connected
            self.disconnect(other if node == 0 else node)
            if other not in self.daemons or not connected or not {node, other}.isdisjoint(self.cut):
                continue
            view = self.daemons[other].view
            said = view.left(node, with_word, "x", self.now) if with_word is not None else []
            self.do(other, said)
            if other in self.daemons:
                self.do(other, view.lost(node, "closed", self.now))

    def give_notice(self, node: int) -> None:
        """All workers of its turn save and stop, those that are cut off too; its daemon says that it leaves."""
        turn = self.daemons[node].worker
        self.send(node, 0, NOTICE)
        self.daemons[node].worker = None
        for other, daemon in list(self.daemons.items()):
            if turn is not None and daemon.worker == turn:
                daemon.worker = None
                self.do(other, daemon.view.stopped(self.now))
        self.leaving.add(node)

    def leave(self) -> None:
        """Those that have said that they leave do."""
        for node in self.leaving & self.daemons.keys():
            if not self.queues.get((node, 0)) or node in self.cut:
                self.lose(node)
        self.leaving.clear()

    def settle(self) -> None:
        """All that is under way arrives."""
        while any(self.queues.values()):
            for source, to in list(self.queues):
                self.deliver(source, to)
            if all(not {s, t}.isdisjoint(self.cut) or t not in self.daemons for (s, t), q in self.queues.items() if q):
                return

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for node, daemon in list(self.daemons.items()):
                if node and daemon.is_connected and node not in self.cut and 0 in self.daemons:
                    daemon.view.heard(0, self.now)
                    self.daemons[0].view.heard(node, self.now)
            for node, daemon in list(self.daemons.items()):
                if (due := daemon.view.deadline()) is not None and due <= self.now and node in self.daemons:
                    self.do(node, daemon.view.expire(self.now))
            self.settle()


events = st.lists(
    st.tuples(
        st.sampled_from(["worker", "daemon", "cut", "mend", "start", "connect", "deliver", "settle", "wait", "notice"]),
        st.integers(0, SIZE - 1),
        st.integers(1, 12),
    ),
    max_size=40,
)


@pytest.mark.thorough
@cases(600)
@given(events)
def test_no_two_turns_train_at_once_and_all_ranks_train_while_there_are_nodes(history: list[tuple[str, int, int]]):
    world = World()
    for node in range(SIZE):
        world.start(node)
    for node in range(1, SIZE):
        world.connect(node)
    world.settle()
    assert [world.daemons[node].worker for node in range(WANTED)] == [0] * WANTED
    for event, node, amount in history:
        if world.over:
            return
        daemon = world.daemons.get(node)
        match event:
            case "worker" if daemon is not None and daemon.worker is not None:
                daemon.worker = None
                world.do(node, daemon.view.broken("its worker ended: SIGKILL", world.now))
            case "daemon" if daemon is not None:
                world.lose(node)
            case "cut" if node:
                world.cut.add(node)
            case "mend":
                world.cut.discard(node)
            case "start" if daemon is None:
                world.start(node)
            case "connect":
                world.connect(node or 1)
            case "deliver":
                world.deliver(node, 0)
                world.deliver(0, node)
            case "settle":
                for other in range(1, SIZE):
                    world.connect(other)
                world.settle()
            case "wait":
                world.pass_time(amount)
            case "notice" if node and daemon is not None and node not in world.leaving:
                failures = dict(world.daemons[0].view.roster.failures) if 0 in world.daemons else {}
                world.give_notice(node)
                if not world.cut and 0 in world.daemons and world.daemons[node].is_connected:
                    world.settle()
                    world.leave()
                    world.settle()
                    if 0 in world.daemons:
                        assert world.daemons[0].view.roster.failures == failures, "to leave is no failure"
    world.leave()
    world.cut.clear()
    for node in range(SIZE):
        if node not in world.daemons:
            world.start(node)
    for _ in range(30):
        for node in range(1, SIZE):
            world.connect(node)
        world.settle()
        world.pass_time(1)
        if world.over:
            return
    chief = world.daemons[0].view
    if sum(not chief.roster.is_out(node) for node in world.daemons) >= WANTED:
        assert chief.phase is TurnPhase.TRAINING
        trains = {node for node, daemon in world.daemons.items() if daemon.worker == chief.turn}
        assert trains == set(chief.roster.ranks)
