"""Random histories of a gang whose nodes have folders of their own: all begin from the same checkpoint, none behind the
newest that was reported on its node, or is in the store, unless the reason is said.
"""

import shutil
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE, State
from supervisor.protocol import layout
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.directory import committed_checkpoints
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest, record_files
from supervisor.protocol.gang import GangMessage, PartMessage
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire import messages as worker_messages
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.attempt.gang_place import GangPlace
from tests.fuzzing import cases
from tests.runner.checkpoints.histories import Host
from tests.runner.checkpoints.world import World, WorldHistories, config

NAMES = ("a", "b", "c")
NODES = st.sampled_from(range(len(NAMES)))


class Node(Host):
    """One node. `has_begun`: its daemon has trained in a turn."""

    def __init__(self, gang: "Gang", rank: int) -> None:
        self.gang, self.rank, self.is_chief = gang, rank, rank == 0
        super().__init__(gang.world, NAMES[rank])

    def begin_daemon(self) -> None:
        self.place = GangPlace(Allocation(0, self.rank, NAMES, 1, self.gang.generation))
        self.place.parts.connect(self._send)
        self.has_begun = False
        super().begin_daemon()

    def _send(self, message: GangMessage, to: int | None) -> None:
        assert isinstance(message, PartMessage)
        self.note(f"   says {message}")
        for node in self.gang.nodes:
            if node is not self and to in (None, node.rank) and node.place is not None:
                self.world.loop.call_soon(node.place.parts.on_message, self.rank, message)

    def end_worker(self, exited: events.WorkerExited) -> None:
        super().end_worker(exited)
        for node in self.gang.nodes:
            if node is not self and node.job.state in ALIVE:
                self.world.loop.call_soon(node.post, events.GangBroken("another rank has ended"))

    def on_mirrored(self, message: worker_messages.Mirrored) -> None:
        if message.error is None and self.trains:
            self.gang.tell_committed(message.checkpoint)


class Gang:
    """All nodes, and the worker of each."""

    def __init__(self, world: World) -> None:
        self.world, self.generation, self.turn = world, 1, 0
        self.nodes: list[Node] = []
        for rank in range(len(NAMES)):
            self.nodes.append(Node(self, rank))

    @property
    def chief(self) -> Node:
        return self.nodes[0]

    @property
    def is_down(self) -> bool:
        return not any(node.job.state in ALIVE for node in self.nodes)

    def begin_turn(self) -> None:
        """All are there and have no worker."""
        diverged = tuple(node.job.facts.divergence for node in self.nodes if node.job.facts.divergence is not None)
        self.turn += 1
        ranks, addresses = tuple(range(len(NAMES))), tuple(f"{name}:1" for name in NAMES)
        for node in self.nodes:
            assert node.place is not None
            node.place.take_rank(self.turn, ranks, addresses, diverged)
        for node in self.nodes:
            node.job.facts.wanted = True
            if node.has_begun:
                node.post(events.GangBegins())
            else:
                node.has_begun = True
                node.post(events.StartRequested(resumes=True))

    def train(self, steps: int, commits: bool) -> None:
        if not all(node.has_go for node in self.nodes):
            return
        begun = {node.begun for node in self.nodes}
        self.world.claim(len(begun) == 1, "they begin from", begun)
        for node in self.nodes:
            node.train(steps, commits=False)
        if commits:
            self.write_parts(CheckpointName(self.chief.step, self.chief.job.facts.attempt))

    def write_parts(self, name: CheckpointName) -> None:
        if (self.chief.folder / name.part).exists():
            return
        records: list[FileRecord] = []
        for node in self.nodes:
            part, files = (
                node.folder / name.part,
                (f"share-{node.rank}", *(["state.json"] if node is self.chief else [])),
            )
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            for file in files:
                (part / file).write_bytes(f"{name} {file} ".encode() * 20)
            records += record_files(part, files)
        manifest = Manifest("j", name.attempt, name.step, 1.0, tuple(records))
        (self.chief.folder / name.part / layout.MANIFEST).write_bytes(manifest.to_bytes())
        self.chief.say(worker_messages.PartsWritten(name.attempt, name.step, str(name), True))

    def tell_committed(self, name: str) -> None:
        for node in self.nodes:
            number = node.job.facts.attempt
            if node.trains:
                node.say(worker_messages.Committed(number, node.step, name, 1, 0.1, 0.0))


class GangHistories(WorldHistories):
    @initialize()
    def begin(self) -> None:
        own = config()
        assert own.job is not None
        self.begin_world(replace(own, job=replace(own.job, checkpoint_dir_shared=False, strategy="multiworker")))
        self.gang = Gang(self.world)

    def teardown(self) -> None:
        for node in self.gang.nodes:
            self.loop.do(node.end_daemon)
        self.end_world()

    def gang_comes_to_train(self) -> None:
        for _ in range(4):
            if all(node.has_go for node in self.gang.nodes):
                self.loop.do(self.gang.train, 5, True)
                return
            for node in self.gang.nodes:
                if node.job.state is State.BACKOFF:
                    self.loop.do(node.expire)
            if self.gang.is_down:
                self.loop.do(self.gang.begin_turn)

    comes_1 = rule()(gang_comes_to_train)
    comes_2 = rule()(gang_comes_to_train)
    comes_3 = rule()(gang_comes_to_train)

    @rule(steps=st.integers(1, 20), commits=st.booleans())
    def train(self, steps: int, commits: bool) -> None:
        self.loop.do(self.gang.train, steps, commits)

    @rule(number=NODES)
    def worker_is_killed(self, number: int) -> None:
        node = self.gang.nodes[number]
        self.loop.do(node.end_worker, events.WorkerExited(node.job.facts.attempt, signal=9))

    @rule()
    def workers_keep_dying(self) -> None:
        for _ in range(8):
            for node in self.gang.nodes:
                if node.job.state is State.BACKOFF:
                    self.loop.do(node.expire)
            if all(node.has_go for node in self.gang.nodes):
                self.loop.do(self.gang.train, 1, False)
                self.worker_is_killed(0)
            elif self.gang.is_down:
                self.loop.do(self.gang.begin_turn)

    def training_diverges(self, number: int) -> None:
        node, chief = self.gang.nodes[number], self.gang.chief.job.facts.attempt
        if node.trains:
            attempt = node.job.facts.attempt
            failed = events.FailureReported(attempt, "nan", node.step, go_back=True, gang_attempt=chief)
            self.loop.do(node.post, failed)
            self.loop.do(node.end_worker, events.WorkerExited(attempt, WorkerExit.DIVERGED))

    diverges_1 = rule(number=NODES)(training_diverges)
    diverges_2 = rule(number=NODES)(training_diverges)

    @rule(is_anew=st.booleans(), choice=st.integers(0, 3))
    def operator_chooses(self, is_anew: bool, choice: int) -> None:
        """On the chief's node, while nothing runs."""
        chief = self.gang.chief
        if self.gang.is_down:
            assert chief.mirror is not None
            names = chief.mirror.names
            step = 0 if is_anew or not names else int(names[choice % len(names)][5:15])
            self.loop.do(chief.post, events.BeginAtRequested(step))
            self.gang_comes_to_train()

    @rule(is_order=st.booleans(), choice=st.integers(0, 3), number=NODES)
    def choice_that_the_store_learns_of_late(self, is_order: bool, choice: int, number: int) -> None:
        """It goes away just then, and comes back once other daemons are there."""
        self.world.leaves_at_go = not self.world.is_away
        if is_order:
            self.worker_is_killed(number)
            self.operator_chooses(False, choice)
        else:
            self.training_diverges(number)
            self.gang_comes_to_train()
        self.train(1, False)
        self.daemon_is_lost(number, False, True)
        self.store_comes()
        self.gang_comes_to_train()

    @rule()
    def store_goes_or_comes(self) -> None:
        self.world.is_away = not self.world.is_away
        assert self.gang.chief.mirror is not None
        self.loop.do(self.gang.chief.mirror.retry_now)

    @rule()
    def store_comes(self) -> None:
        if self.world.is_away:
            self.store_goes_or_comes()

    @rule(seconds=st.sampled_from([1.0, 9.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        self.loop.do(lambda: None)

    @rule(number=NODES, loses_disk=st.booleans(), all_begin=st.booleans())
    def daemon_is_lost(self, number: int, loses_disk: bool, all_begin: bool) -> None:
        """And its worker; the others too if `all_begin` in a new step of the allocation."""
        self.worker_is_killed(number)
        self.gang.generation += 100
        for node in self.gang.nodes:
            if node.rank == number or all_begin:
                self.loop.do(node.end_daemon)
                if loses_disk and node.rank == number:
                    node.lose_all()
                else:
                    node.begin_daemon()

    @rule(number=NODES, is_deleted=st.booleans())
    def fetched_is_damaged_or_deleted(self, number: int, is_deleted: bool) -> None:
        node = self.gang.nodes[number]
        for name in committed_checkpoints(node.folder)[:1]:
            path = node.folder / str(name)
            if is_deleted:
                shutil.rmtree(path)
            else:
                (path / "share-0").write_bytes(b"damaged")

    @rule()
    def store_damages_the_newest(self) -> None:
        for path in sorted((self.world.folder / "store" / "j").glob("e*/*/state.json"))[-1:]:
            path.write_bytes(b"damaged")

    @rule(home=st.sampled_from(["j", "k"]))
    def section_is_changed(self, home: str) -> None:
        """Another checkpoint_dir on all nodes, which begin in a new step."""
        self.worker_is_killed(0)
        self.gang.generation += 100
        for node in self.gang.nodes:
            self.loop.do(node.end_daemon)
            node.home = home
            node.begin_daemon()


GangHistories.TestCase.settings = cases(40, stateful_step_count=40, deadline=None)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(900)  # shrinking alone may take five minutes
class TestNoNodeBeginsBehindWithoutAReason(GangHistories.TestCase):
    """Run as hypothesis runs a state machine."""
