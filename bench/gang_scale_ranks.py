"""Some ranks of a gang in one process: what `bench.gang_scale` starts. Not to be run by hand.

Each rank is the daemon's own agent (`GangAgent`) with the link below it; only its worker is missing. All write the log
of a daemon, to a file and, as far as the first of them would, to standard error. Orders come as lines on standard
input, a JSON list each, and an answer goes back for each:

["meet", GENERATION]   builds the agents and lets them meet; answers when all know the cluster
["over"]               answers when all agents have ended their generation
["figures"]            what this process has used so far, and what has gone through its connections
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil

from supervisor.host.daemon_log.daemon_log import DaemonLog
from supervisor.host.processes import limits
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import MESSAGES, Alive, GangMessage
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.gang.agent import GangAgent, GangSettings

SECRET = "5" * 64
RENDEZVOUS_S = 120.0
OUTPUT_BYTES = 1 << 30  # of the log: more than ever comes
TCP_INFO_BYTES = 256
ESTABLISHED = 1
ALIVE_BYTES = len(MESSAGES.encode(Alive()))

source: ContextVar[str | None] = ContextVar("source", default=None)
"""The address that this rank connects from, so that each is a host of its own to the chief."""


class ManyHostsLoop(asyncio.SelectorEventLoop):
    """Connects from the address of the rank that asks for it."""

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        address = source.get()
        return await super().create_connection(*arguments, **options, local_addr=address and (address, 0))


def address_of(rank: int) -> str:
    return f"127.{1 + (rank >> 8)}.{rank & 255}.1"


class CountedAgent(GangAgent):
    """Counts the bytes of the signs of life that come and go while it is connected: how many there are until all have
    met depends on how busy the machine is."""

    alive_bytes = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        send = self._link.send

        def count_and_send(message: GangMessage, to: int | None = None) -> None:
            if isinstance(message, Alive):
                self.alive_bytes += ALIVE_BYTES * len(self._link._writers)
            send(message, to)

        self._link.send = count_and_send  # type: ignore[method-assign]

    def on_message(self, rank: int, message: GangMessage) -> None:
        if isinstance(message, Alive):
            self.alive_bytes += ALIVE_BYTES
        super().on_message(rank, message)


class Ranks:
    """The agents of this process, of one generation after the other."""

    def __init__(self, job_id: int, ranks: range, size: int) -> None:
        self._job_id = job_id
        self._ranks = ranks
        self._nodes = ("127.0.0.1", *(f"node-{rank:04}" for rank in range(1, size)))
        self._agents: list[CountedAgent] = []
        self._over_at: dict[int, float] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._all_over = asyncio.Event()

    async def meet(self, generation: int) -> dict[str, float]:
        await asyncio.gather(*self._closing)
        self._agents, self._over_at = [], {}
        self._all_over.clear()
        began_at = time.monotonic()
        clusters = await asyncio.gather(*(self._gather(rank, generation) for rank in self._ranks))
        assert all(clusters), "a rank did not meet the others"
        return {"began_at": began_at, "met_at": time.monotonic()}

    async def _gather(self, rank: int, generation: int) -> str | None:
        source.set(address_of(rank))
        place = Allocation(self._job_id, rank, self._nodes, 0, generation)
        settings = GangSettings(SECRET, RENDEZVOUS_S, place.size)
        agent = CountedAgent(GangPlace(place), settings, {}, lambda: self._leave(agent), lambda: rank in self._over_at)
        self._agents.append(agent)
        return await agent.gather()

    def _leave(self, agent: GangAgent) -> None:
        rank = agent.allocation.rank
        if rank not in self._over_at:
            self._over_at[rank] = time.monotonic()
            self._closing.add(task := asyncio.ensure_future(self._close(agent)))
            task.add_done_callback(self._closing.discard)

    async def _close(self, agent: GangAgent) -> None:
        """What a daemon does once its worker has ended."""
        assert agent.ends_with is not None
        await agent.close(agent.ends_with)
        if len(self._over_at) == len(self._ranks):
            self._all_over.set()

    async def over(self) -> dict[str, float]:
        await self._all_over.wait()
        return {"first_at": min(self._over_at.values()), "last_at": max(self._over_at.values())}

    def figures(self) -> dict[str, float]:
        process = psutil.Process()
        return {
            "at": time.monotonic(), "cpu_s": time.process_time(), "memory_bytes": process.memory_full_info().uss,
            "files": process.num_fds(), "alive_bytes": sum(agent.alive_bytes for agent in self._agents), **_traffic(),
        }  # fmt: skip


def _traffic() -> dict[str, int]:
    """Of all connections that are open: bytes and segments with data, as the kernel counts them (tcp(7), TCP_INFO)."""
    sums = {"received_bytes": 0, "sent_bytes": 0, "received": 0, "sent": 0}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(number))) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            if info[0] == ESTABLISHED:
                acknowledged, received, *_, segments_in, segments_out = struct.unpack_from("QQIIIIII", info, 120)
                sums["sent_bytes"] += acknowledged
                sums["received_bytes"] += received
                sums["received"] += segments_in
                sums["sent"] += segments_out
    return sums


async def serve(ranks: Ranks) -> None:
    """Carries out orders until there are no more."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order, *arguments = json.loads(line)
        match order:
            case "meet":
                answer = await ranks.meet(*arguments)
            case "over":
                answer = await ranks.over()
            case _:
                answer = ranks.figures()
        print(json.dumps(answer), flush=True)


async def main() -> None:
    job_id, first, last, size = map(int, sys.argv[1:5])
    limits.raise_own_nofile()
    level = allocation.output_level({"SLURM_PROCID": str(first)})
    log = DaemonLog(
        "info", Path(sys.argv[5]), OUTPUT_BYTES, 0, foreground=level is not None, foreground_level=level or "debug"
    )
    try:
        await serve(Ranks(job_id, range(first, last), size))
    finally:
        log.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=ManyHostsLoop) as runner:
        runner.run(main())
