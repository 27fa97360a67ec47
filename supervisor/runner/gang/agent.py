"""This daemon as one of a gang: meets the others before anything starts, begins with them, again if need be, and ends
with them.

The decisions are in `core/gang/view.py`; the connections in `host/gang/link.py`. While workers train, whatever goes
wrong on any node ends this turn everywhere, and nothing is started again by this daemon alone.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

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
from supervisor.core.program.facts import State
from supervisor.host.gang.free_port import free_port
from supervisor.host.gang.link import GangLink
from supervisor.protocol import allocation, gang
from supervisor.protocol.allocation import StepExit
from supervisor.protocol.gang import (
    Broken,
    GangMessage,
    Join,
    Leave,
    Over,
    PartMessage,
    Refused,
    SeenDivergence,
    WithoutWorker,
)
from supervisor.protocol.plurals import listed
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.gang.node_departure import NodeDeparture
from supervisor.runner.gang.node_end import NodeEnd
from supervisor.runner.gang.program import ENDED_BY_GANG, GangProgram, WorkerEnd
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


def cluster_of_one(runners: Iterable[Runner]) -> dict[str, str]:
    """The variables for a job that can train on several nodes and got one; none for other programs."""
    jobs = [runner.config.job for runner in runners if runner.config.job is not None]
    if any(job.strategy == "multiworker" and job.workers is None for job in jobs):
        return {allocation.CLUSTER: gang.cluster_text([f"localhost:{free_port()}"], 0)}
    return {}


@dataclass(frozen=True, slots=True)
class GangSettings:
    """`secret`: of the allocation. `rendezvous_s`: how long it is waited until all are there. `wanted`: nodes that
    train; the others are spare. `has_own_folders`: whether the file says that each node has a checkpoint_dir of its
    own. `verdict`: where the chief writes for the batch script how the generation has ended. `stops_alone`: a daemon
    that is told to exit is told so because of its own node, which is replaced.
    """

    secret: str
    rendezvous_s: float
    wanted: int
    has_own_folders: bool = False
    verdict: Path | None = None
    stops_alone: bool = False


class GangAgent:
    """`place`: of this node in the gang, which this changes with each turn. `runners`: the one program, by name, once
    it is made. `leave`: asks the daemon to exit; `is_leaving`: whether it was asked, for whatever reason.
    """

    def __init__(
        self,
        place: GangPlace,
        settings: GangSettings,
        runners: Mapping[str, Runner],
        leave: Callable[[], None],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.allocation = place.given
        """`rank` is the number of this node, whatever its rank in a turn."""
        self._place = place
        self._settings = settings
        self._leave = leave
        self._is_leaving = is_leaving
        roster = Roster(self.allocation.size, settings.wanted)
        self._view = GangView(self.allocation, self._loop.time(), settings.rendezvous_s, roster)
        port = gang.link_port(self.allocation)
        self._link = GangLink(self.allocation, settings.secret, port, self, settings.has_own_folders or None)
        place.parts.connect(self._link.send)
        self._address = self._free_address()
        self._joined = 0
        self._leaves_for_node = False
        self._departure = NodeDeparture(self.allocation, settings.wanted, self._link)
        self._program = GangProgram(
            runners,
            has_spares=settings.wanted < self.allocation.size,
            can_leave_alone=self._departure.is_possible,
        )
        self._end_of_node = NodeEnd(self.allocation, self._link, self._program, settings.verdict)
        self._reported_turn = 0
        """The one for which this daemon has said that it has no worker; of the first one, it says so as it joins."""
        self._over_text = ""
        self._cluster: asyncio.Future[str | None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends_with(self) -> StepExit | None:
        """What the batch script is told; None: the daemon's own end decides."""
        return self._end_of_node.status

    # --- the beginning ---

    async def gather(self) -> str | None:
        """Waits until all daemons are there; returns TF_CONFIG, or None if this generation is over before that."""
        me = self.allocation
        log.info("gang.gathering", rank=me.rank, nodes=me.size, chief=me.nodes[0], generation=me.generation)
        self._program.expect_start()
        await self._program.recall_divergence()
        await self._open()
        self._execute(self._view.ready(self._address, self._loop.time()) if self._view.is_chief else [])
        return await self._cluster

    async def _open(self) -> None:
        try:
            await self._link.open()
        except OSError as error:
            self._execute([EndGeneration(StepExit.AGAIN, f"cannot listen for the gang: {error}")])
        self._arm_timer()

    def _free_address(self) -> str:
        me, turn = self.allocation, self._view.turn
        return f"{me.nodes[me.rank]}:{free_port(gang.worker_ports(self._settings.secret, me, turn)[me.rank])}"

    # --- what happens here ---

    def on_change(self) -> None:
        """The program's state has changed: once its worker has ended, so has this turn.

        Not if the daemon was told to exit before: then that decides what the batch script is told.
        """
        self._end_of_node.tell_failure()
        self._view.is_done = self._program.is_in(State.SUCCEEDED)
        if self._is_leaving():
            if self._settings.stops_alone and self.ends_with is None and self._program.is_in(State.STOPPED):
                self._departure.say_for_eviction()
            return
        runner = self._program.runner
        if runner is None:
            return
        if self._view.phase is not TurnPhase.TRAINING and runner.state in ENDED_BY_GANG:
            self._program.end_turn(self._over_text)  # it was just starting when its turn ended
        elif (end := self._program.find_end()) is not None:
            self._on_ended(runner, end)

    def _on_ended(self, runner: Runner, end: WorkerEnd) -> None:
        """No worker runs here."""
        match end:
            case WorkerEnd.STORAGE_AWAY:
                self._end(StepExit.STORAGE_AWAY, f"storage can't be used: {runner.reason or 'see its log'}")
            case WorkerEnd.HOST_LEAVES if self._departure.is_possible:
                self._leave_alone(runner)
            case WorkerEnd.HOST_LEAVES:
                self._end(StepExit.NODE_LEAVES, "saved, because this node leaves")
            case WorkerEnd.STOPPED_WITH_OTHERS:
                self._execute(self._view.stopped(self._loop.time()))
            case WorkerEnd.STOPPED:
                self._end(StepExit.SAVED, "saved and stopped")
            case WorkerEnd.FAILED:
                now = self._loop.time()
                self._execute(self._view.broken(f"its worker ended: {runner.reason or 'see its log'}", now))
                if runner.state is State.STOPPED:  # in BACKOFF it pauses, and so do all others
                    self._say_ready()

    def _leave_alone(self, runner: Runner) -> None:
        """This node goes away, and the others go on if a spare one can take its rank; its own status says nothing."""
        self._departure.say_for_notice(runner)
        self._end(StepExit.DONE, "this node has left the gang")

    def _leave_as_spare(self, runner: Runner) -> None:
        if not self._is_leaving():
            self._leave_alone(runner)

    def _say_ready(self) -> None:
        """Once for each turn, unless this daemon exits, or no worker could start here any more because of a notice."""
        if self._is_leaving() or self.ends_with is not None:
            return
        if self._view.phase is TurnPhase.GATHERING and self._reported_turn != self._view.turn:
            runner = self._program.runner
            if runner is not None and self._departure.is_due(runner):
                self._leave_alone(runner)
                return
            self._reported_turn = self._view.turn
            self._address = self._free_address()
            self._execute(self._view.ready(self._address, self._loop.time(), self._program.divergence))

    async def close(self, status: int) -> None:
        """The daemon exits with `status`."""
        if self._timer is not None:
            self._timer.cancel()
        self._departure.stop_watching()
        if self._settings.stops_alone and self.ends_with is None and status in (StepExit.SAVED, StepExit.NODE_LEAVES):
            self._departure.say_for_eviction()
        await self._end_of_node.tell_exit(status)
        await self._link.close()

    # --- what comes in ---

    def joins_with(self) -> tuple[int, str, SeenDivergence | None]:
        return self._view.turn, self._address, self._program.divergence

    def on_joined(self, rank: int, joins: Join) -> None:
        self._joined += 1
        if self._joined & (self._joined - 1) == 0:  # the 1st, 2nd, 4th, 8th …: they may be many
            node, others = self.allocation.describe(rank), self.allocation.size - 1
            log.info("gang.joined", node=node, address=joins.address, joined=self._joined, of=others)
        self._place.note_joined(rank)
        if bool(joins.own_folders) is not self._settings.has_own_folders:
            self._execute([EndGeneration(StepExit.FAILED, self._describe_other_file(rank, bool(joins.own_folders)))])
        now = self._loop.time()
        self._execute(self._view.joined(rank, joins.turn, joins.address, now, joins.diverged))

    def _describe_other_file(self, rank: int, has_own_folders: bool) -> str:
        """One of both would wait for what the other never says."""
        its, mine = ("is false", "is not") if has_own_folders else ("is not false", "it is")
        node = self.allocation.describe(rank)
        return (
            f"cannot train: checkpoint_dir_shared {its} in the configuration of {node}, and {mine} in that of "
            f"{self.allocation.describe(0)}; give all nodes the same file"
        )

    def on_begin(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...]) -> None:
        self._execute(self._view.begun(turn, nodes, addresses, self._loop.time()))

    def on_message(self, rank: int, message: GangMessage) -> None:
        now = self._loop.time()
        self._view.heard(rank, now)
        if isinstance(message, PartMessage):
            self._place.parts.on_message(rank, message)
            return
        match message:
            case Broken():
                self._execute(self._view.on_broken(rank, message, now))
            case Over():
                self._execute(self._view.on_over(message, now))
            case WithoutWorker():
                self._execute(self._view.on_ready(rank, message, now))
            case Leave():
                if message.status == StepExit.NODE_LEAVES and not self._leaves_for_node:  # one, as all follow it
                    self._leaves_for_node = True
                    log.info("gang.node_leaves", node=self.allocation.describe(rank), why=message.text[:500])
                if rank in self._view.roster.ranks:
                    self._end_of_node.note_left(rank, message.status)
                if message.alone:
                    self._place.note_left(rank)
                is_alone = message.alone and not self._is_leaving()  # no other turn follows then
                self._execute(self._view.left(rank, message.status, message.text[:500], now, is_alone))

    def on_lost(self, rank: int, text: str) -> None:
        if self._view.end is None and not self._view.has_left(rank):
            log.warning("gang.daemon_lost", node=self.allocation.describe(rank), why=text[:500])
        self._execute(self._view.lost(rank, text, self._loop.time()))

    def on_refused(self, refused: Refused) -> None:
        self._execute(self._view.refused(refused.reason, refused.is_out))

    def _on_timer(self) -> None:
        self._timer = None
        self._execute(self._view.expire(self._loop.time()))

    # --- what follows ---

    def _execute(self, decided: list[GangEffect]) -> None:
        for effect in decided:
            match effect:
                case BeginTraining():
                    self._begin(effect)
                case TellCluster():
                    view = self._view
                    self._link.begin(view.turn, view.roster.ranks, view.addresses, effect.node)
                case EndWorker():
                    self._end_worker(effect.text)
                case Say():
                    self._link.send(effect.message, effect.node)
                case Disconnect():
                    self._link.drop(effect.node)
                case EndGeneration():
                    log.warning("gang.over", why=effect.text, status=int(effect.status))
                    self._place.parts.end_turn(effect.text)
                    self._program.end_turn(effect.text)
                    self._end(effect.status, effect.text)
                case _:
                    assert_never(effect)
        self._arm_timer()

    def _begin(self, effect: BeginTraining) -> None:
        """All are ready: starts the worker of this node, if it has a rank in this turn."""
        if self._view.is_chief:
            self._link.begin(effect.turn, effect.nodes, effect.addresses)
        self._end_of_node.begin_turn()
        took_s = round(self._loop.time() - self._view.began_at, 3)
        me = self.allocation
        generation, names = me.generation + effect.turn, tuple(me.nodes[node] for node in effect.nodes)
        spare = [name for name in me.nodes if name not in names]
        spared = {"spare": listed(spare, ", ", 8)} if spare else {}
        log.info("gang.complete", nodes=len(names), took_s=took_s, generation=generation, **spared)
        if me.rank not in effect.nodes:
            log.info("gang.spare", node=me.nodes[me.rank], next="it waits until a node that trains is lost")
            self._place.become_spare(effect.turn, effect.nodes)
            if self._program.runner is not None:
                self._departure.watch_notice(self._program.runner, self._leave_as_spare)
            return
        self._departure.stop_watching()
        self._place.take_rank(effect.turn, effect.nodes, effect.addresses, effect.diverged)
        if not self._program.has_started:
            self._program.has_started = True
            self._cluster.set_result(self._place.cluster)
            return
        if self._program.runner is not None and not self._program.runner.wanted:
            self._end(StepExit.SAVED, "saved and stopped")
        self._program.begin_turn()

    def _end_worker(self, text: str) -> None:
        """This turn is over, and the next one follows."""
        log.warning("gang.again", why=text, turn=self._view.turn)
        self._over_text = text
        self._place.parts.end_turn(text)
        self._program.end_turn(text)
        self._program.expect_start()
        if self._program.waits_for_turn:
            self._say_ready()

    def _end(self, status: StepExit, text: str) -> None:
        """Tells all others at once, and asks the daemon to exit."""
        self._end_of_node.decide(status, text)
        if not self._cluster.done():
            self._cluster.set_result(None)
        self._leave()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_at = self._view.deadline()
        self._timer = None if due_at is None else self._loop.call_at(max(due_at, self._loop.time()), self._on_timer)
