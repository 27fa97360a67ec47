"""This daemon as one of a gang: meets the others before anything starts, and ends with them.

The decisions are in `core/fleet/gang.py`; the connections in `host/gang_link.py`. While workers train, whatever goes
wrong on any node ends this generation everywhere, and nothing is started again by this daemon.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

import structlog

from supervisor.core.fleet.gang import BeginTraining, EndGeneration, GangEffect, GangView
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.gang_link import GangLink, free_port
from supervisor.protocol import allocation, gang
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.gang import GangMessage, Leave
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


def cluster_of_one(runners: Iterable[Runner]) -> dict[str, str]:
    """The variables for a job that can train on several nodes and got one; none for other programs."""
    jobs = [runner.config.job for runner in runners if runner.config.job is not None]
    if any(job.strategy == "multiworker" and job.workers is None for job in jobs):
        return {allocation.CLUSTER: gang.cluster_text([f"localhost:{free_port()}"], 0)}
    return {}


class GangAgent:
    """`place`: of this node in the gang. `runners`: the one program, by name. `leave`: asks the daemon to exit;
    `is_leaving`: whether it was asked, for whatever reason.
    """

    def __init__(
        self,
        place: Allocation,
        secret: str,
        rendezvous_s: float,
        runners: Mapping[str, Runner],
        leave: Callable[[], None],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.allocation = place
        self.ends_with: StepExit | None = None
        """What the batch script is told; None: the daemon's own end decides."""
        self._runners = runners
        self._leave = leave
        self._is_leaving = is_leaving
        address = f"{place.nodes[place.rank]}:{free_port(gang.worker_ports(secret, place)[place.rank])}"
        self._view = GangView(place, address, self._loop.time(), rendezvous_s)
        self._link = GangLink(place, secret, address, gang.link_port(place), self)
        self._joined = 0
        self._leaves_for_node = False
        self._has_told_failure = False
        self._cluster: asyncio.Future[str | None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def gather(self) -> str | None:
        """Waits until all daemons are there; returns TF_CONFIG, or None if this generation is over before that."""
        me = self.allocation
        log.info("gang.gathering", rank=me.rank, nodes=me.size, chief=me.nodes[0], generation=me.generation)
        try:
            await self._link.open()
        except OSError as error:
            self._execute([EndGeneration(StepExit.AGAIN, f"cannot listen for the gang: {error}")])
        self._arm_timer()
        return await self._cluster

    def on_change(self) -> None:
        """The program's state has changed: once its worker has ended, so has this generation.

        Not if the daemon was told to exit before: then that decides what the batch script is told.
        """
        is_failed = any(runner.state is State.FAILED for runner in self._runners.values())
        if is_failed and not self._has_told_failure:  # at once, as the chief, which writes why, may soon be gone
            self._has_told_failure = True
            self._link.send_all(Leave(StepExit.FAILED, self._describe_exit(StepExit.FAILED)))
        if self._is_leaving():
            return
        for runner in self._runners.values():
            if not runner.facts.launched or runner.state not in (State.BACKOFF, State.STOPPED):
                continue
            last = runner.records.process.last_exit
            if runner.facts.waits_for_storage:
                self._end(StepExit.STORAGE_AWAY, f"storage can't be used: {runner.reason or 'see its log'}")
            elif runner.facts.waits_for_host:
                self._end(StepExit.NODE_LEAVES, "saved, because this node leaves")
            elif not runner.wanted or (last is not None and last.code == WorkerExit.STOPPED):
                self._end(StepExit.SAVED, "saved and stopped")
            else:
                self._end(StepExit.AGAIN, f"its worker ended: {runner.reason or 'see its log'}")

    async def close(self, status: int) -> None:
        """The daemon exits with `status`."""
        if self._timer is not None:
            self._timer.cancel()
        self._link.send_all(Leave(status, self._describe_exit(status)))
        await self._link.close()

    def _describe_exit(self, status: int) -> str:
        """For the others: the chief alone writes it where people look."""
        if status == StepExit.DONE:
            return "done"
        for runner in self._runners.values():
            if status == StepExit.FAILED and runner.state is State.FAILED:
                return f"{runner.name} was given up: {runner.reason or 'see its log'}"
        return f"it exits with status {status}"

    # --- what comes in ---

    def on_joined(self, rank: int, address: str) -> None:
        self._joined += 1
        if self._joined & (self._joined - 1) == 0:  # the 1st, 2nd, 4th, 8th …: they may be many
            node, others = self.allocation.describe(rank), self.allocation.size - 1
            log.info("gang.joined", node=node, address=address, joined=self._joined, of=others)
        self._execute(self._view.joined(rank, address, self._loop.time()))

    def on_begin(self, addresses: tuple[str, ...]) -> None:
        self._execute(self._view.begun(addresses, self._loop.time()))

    def on_message(self, rank: int, message: GangMessage) -> None:
        self._view.heard(rank, self._loop.time())
        if isinstance(message, Leave):
            if message.status == StepExit.NODE_LEAVES and not self._leaves_for_node:  # one, as all follow it
                self._leaves_for_node = True
                log.info("gang.node_leaves", node=self.allocation.describe(rank), why=message.text[:500])
            self._execute(self._view.left(rank, message.status, message.text[:500], self._loop.time()))

    def on_lost(self, rank: int, text: str) -> None:
        self._execute(self._view.lost(rank, text))

    def on_refused(self, reason: str) -> None:
        self._execute([EndGeneration(StepExit.AGAIN, f"the chief refused this daemon: {reason}")])

    def _on_timer(self) -> None:
        self._timer = None
        self._execute(self._view.expire(self._loop.time()))

    # --- what follows ---

    def _execute(self, decided: list[GangEffect]) -> None:
        for effect in decided:
            match effect:
                case BeginTraining():
                    if self.allocation.rank == 0:
                        self._link.begin(effect.addresses)
                    took_s = round(self._loop.time() - self._view.began_at, 3)
                    log.info("gang.complete", nodes=len(effect.addresses), took_s=took_s)
                    if not self._cluster.done():
                        self._cluster.set_result(gang.cluster_text(effect.addresses, self.allocation.rank))
                case EndGeneration():
                    log.warning("gang.over", why=effect.text, status=int(effect.status))
                    for runner in self._runners.values():
                        runner.post(events.GangBroken(effect.text))
                    self._end(effect.status, effect.text)
                case _:
                    assert_never(effect)
        self._arm_timer()

    def _end(self, status: StepExit, text: str) -> None:
        """Tells all others at once, and asks the daemon to exit; the first reason counts."""
        if self.ends_with is None:
            self.ends_with = status
            self._link.send_all(Leave(status, text))
        if not self._cluster.done():
            self._cluster.set_result(None)
        self._leave()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_at = self._view.deadline()
        self._timer = None if due_at is None else self._loop.call_at(max(due_at, self._loop.time()), self._on_timer)
