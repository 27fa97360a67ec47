"""TCP connections between the daemons of a gang: the chief listens, the others connect and stay connected.

Whoever connects to the chief has to prove first that it belongs here (`admission.py`). A daemon that was dropped
before it was let in tries again; how long, the view of the gang decides (rendezvous_timeout).
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from dataclasses import replace
from typing import Protocol

import structlog

from supervisor.host.gang.admission import HANDSHAKE_S, GangAdmission, is_address_of, require_whole
from supervisor.protocol import gang
from supervisor.protocol.allocation import MAX_NODES, Allocation
from supervisor.protocol.gang import (
    MESSAGES,
    Alive,
    Begin,
    Broken,
    Challenge,
    GangMessage,
    Join,
    Over,
    PartCommitted,
    PartUploaded,
    Refused,
    Restore,
    SeenDivergence,
    UploadPart,
    WithoutWorker,
)
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.lines import MAX_LINE_BYTES

ALIVE_EVERY_S = 1.0
CONNECT_S = 3.0
AGAIN_S = 0.5  # between two tries to reach the chief, which may not listen yet
BACKLOG = 2 * MAX_NODES  # all come at once, and whoever finds no room is dropped by the kernel, and waits a second
ACCEPTED_A_TURN = 16  # of the event loop: strangers may come without end, and each takes about half a millisecond
LAST_WORD_S = 1.0  # for what was said last to go out to all
MAX_UNSENT_BYTES = 1 << 20  # the other side reads nothing: it will be silent soon

log = structlog.get_logger()


class LinkListener(Protocol):
    """Who is told what comes in. Called in the event loop."""

    def joins_with(self) -> tuple[int, str, SeenDivergence | None]:
        """The turn that this daemon knows of, the address of its worker, and what that has seen (of the others)."""

    def on_joined(self, rank: int, joins: Join) -> None:
        """A daemon has proved that it belongs here (to the chief)."""

    def on_begin(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...]) -> None:
        """The chief has named the cluster (to the others). `nodes`: those that train, by rank."""

    def on_message(self, rank: int, message: GangMessage) -> None:
        """A daemon that belongs here said something."""

    def on_lost(self, rank: int, text: str) -> None:
        """Its connection ended."""

    def on_refused(self, refused: Refused) -> None:
        """The chief does not take this daemon."""


class GangLink:
    """This daemon's connections. Nothing here decides.

    `allocation`: its `rank` is the number of this node. `port`: where the chief listens. `own_folders`: true if this
    node's configuration says that each has folders of its own.
    """

    def __init__(
        self,
        allocation: Allocation,
        secret: str,
        port: int,
        listener: LinkListener,
        own_folders: bool | None = None,
    ) -> None:
        self._allocation = allocation
        self._secret = secret
        self._port = port
        self._listener = listener
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._joins: dict[int, Join] = {}
        self._own_folders = own_folders
        self._admission = GangAdmission(allocation, secret)
        self._refused = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listens, or begins to connect. Raises OSError if the chief can't listen."""
        if self._allocation.rank == 0:
            self._server = await asyncio.start_server(
                self._on_connection, None, self._port, limit=MAX_LINE_BYTES, backlog=ACCEPTED_A_TURN
            )
            for listener in self._server.sockets:
                with listener.dup() as same:
                    same.listen(BACKLOG)  # asyncio has set the number that it accepts at once
        else:
            self._start(self._reach_chief(self._allocation.nodes[0], self._port))
        self._start(self._say_alive())

    def begin(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...], to: int | None = None) -> None:
        """The chief names the cluster to all, or to one."""
        ports = gang.worker_ports(self._secret, self._allocation, turn)
        others, cluster = gang.begin_of(ports, nodes, addresses), gang.cluster_digest(turn, addresses)
        named = () if nodes == tuple(range(self._allocation.size)) else nodes
        for rank, writer in list(self._writers.items()):
            if to is None or rank == to:
                proof = gang.proof_of_begin(self._secret, self._joins[rank], cluster)
                self._write(writer, MESSAGES.encode(Begin(others, proof, turn, named)))

    def send(self, message: GangMessage, to: int | None = None) -> None:
        """Says something to everybody who is connected, or to one of them."""
        line = MESSAGES.encode(message)
        for rank, writer in list(self._writers.items()):
            if to is None or rank == to:
                self._write(writer, line)

    def drop(self, rank: int) -> None:
        """Ends the connection to one that is silent, so that it can join again."""
        if (writer := self._writers.pop(rank, None)) is not None:
            writer.transport.abort()

    def _write(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        if not writer.is_closing():
            if writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                writer.transport.abort()
            else:
                writer.write(line)

    async def close(self) -> None:
        """Ends all connections, after what was said has gone out."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        drains = [writer.drain() for writer in self._writers.values()]
        with contextlib.suppress(TimeoutError):  # at once for all: those that don't read any more may be many
            async with asyncio.timeout(LAST_WORD_S):
                await asyncio.gather(*drains, return_exceptions=True)
        for writer in self._writers.values():
            writer.close()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _say_alive(self) -> None:
        while True:
            self.send(Alive())
            await asyncio.sleep(ALIVE_EVERY_S)

    # --- the chief ---

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._admission.add(writer)
        try:
            async with asyncio.timeout(HANDSHAKE_S):  # wait_for of Python 3.11 can lose the cancellation by `close`
                joins = await self._admission.prove(reader, writer, self._writers)
            if joins is not None:
                self._let_in(joins, writer)
                await self._listen(joins.rank, reader, writer)
        except (OSError, TimeoutError, ProtocolError, ValueError) as error:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …: strangers may be many
                log.warning("gang.connection_refused", error=str(error) or type(error).__name__, refused=self._refused)
        except asyncio.CancelledError:
            pass  # by `close`; asyncio of Python 3.11 would log it as an error of the server
        finally:
            self._tasks.discard(task)
            self._admission.forget(writer)
            writer.close()

    def _let_in(self, joins: Join, writer: asyncio.StreamWriter) -> None:
        self._writers[joins.rank], self._joins[joins.rank] = writer, joins
        # from now on the end of the connection is a loss
        writer.write(MESSAGES.encode(gang.proven_answer(self._secret, joins, Alive())))
        self._listener.on_joined(joins.rank, joins)

    # --- the others ---

    async def _reach_chief(self, host: str, port: int) -> None:
        """Until it was let in, until the connection ends, and so on: a spare node may be heard of again."""
        is_known = False
        while True:
            try:
                await self._join(host, port)
                is_known = False
            except (OSError, TimeoutError, ProtocolError, ValueError) as error:
                if not is_known and not isinstance(error, ConnectionRefusedError):  # it may not listen yet
                    is_known, text = True, str(error) or type(error).__name__
                    log.warning("gang.not_let_in", chief=f"{host}:{port}", error=text, next="tried again and again")
            await asyncio.sleep(AGAIN_S)

    async def _join(self, host: str, port: int) -> None:
        """Joins, and listens until the connection ends. Raises OSError and the like if it ends before it was let in."""
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                said = MESSAGES.decode(await _line(reader))
            if not isinstance(said, Challenge):
                raise ProtocolError("the chief did not begin with a challenge")
            me = self._allocation
            turn, address, diverged = self._listener.joins_with()
            joins = Join(me.rank, me.generation, address, secrets.token_hex(16), "", turn, diverged, self._own_folders)
            joins = replace(joins, proof=gang.proof_of_join(self._secret, said, joins))
            writer.write(MESSAGES.encode(joins))
            self._joins[0] = joins
            async with asyncio.timeout(HANDSHAKE_S):
                first = MESSAGES.decode(await _line(reader))
            self._require_chief(joins, first)
        except BaseException:
            writer.close()
            raise
        self._writers[0] = writer
        await self._listen(0, reader, writer, first)
        writer.close()

    def _require_chief(self, joins: Join, answer: GangMessage) -> None:
        """Raises ProtocolError unless the answer to a join is that of who knows the secret: before, nothing counts."""
        reason = f": {answer.reason:.200}" if isinstance(answer, Refused) else ""
        if not isinstance(answer, Alive | Refused) or not gang.is_proof(
            answer.proof, gang.proof_of_answer(self._secret, joins, answer)
        ):
            raise ProtocolError(f"one of the two does not know the secret of this allocation{reason}")

    # --- both ---

    async def _listen(
        self,
        rank: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: GangMessage | None = None,
    ) -> None:
        text = "its connection was closed"
        try:
            if first is not None:
                self._on_message(rank, first)
            while line := await reader.readline():
                self._on_message(rank, MESSAGES.decode(line))
        except (OSError, ProtocolError, ValueError) as error:
            text = str(error)
        if self._writers.get(rank) is writer:  # else it was dropped
            del self._writers[rank]
            self._listener.on_lost(rank, text)

    def _on_message(self, rank: int, message: GangMessage) -> None:
        """Raises ProtocolError if it is not for this daemon."""
        if isinstance(message, Begin):
            self._on_begin(rank, message)
        elif isinstance(message, Refused):
            self._listener.on_refused(message)
        elif isinstance(message, Over | Restore | UploadPart | PartCommitted) and rank != 0:
            raise ProtocolError(f"rank {rank} is not the chief, and sends {type(message).__name__}")
        elif isinstance(message, Broken | WithoutWorker | PartUploaded) and self._allocation.rank != 0:
            raise ProtocolError("this is not the chief")
        elif isinstance(message, WithoutWorker) and not is_address_of(self._allocation, rank, message.address):
            raise ProtocolError(f"its address is {message.address:.80}")
        else:
            self._listener.on_message(rank, message)

    def _on_begin(self, rank: int, message: Begin) -> None:
        joins = self._joins.get(0)
        if rank != 0 or joins is None:
            raise ProtocolError(f"rank {rank} is not the chief, and names a cluster")
        names = self._allocation.nodes
        ports = gang.worker_ports(self._secret, self._allocation, message.turn)
        addresses = gang.addresses_of(names, ports, message)
        proof = gang.proof_of_begin(self._secret, joins, gang.cluster_digest(message.turn, addresses))
        if not gang.is_proof(message.proof, proof):
            raise ProtocolError("the chief does not know the secret of this allocation, or has other nodes")
        self._listener.on_begin(message.turn, message.nodes or tuple(range(len(names))), addresses)


async def _line(reader: asyncio.StreamReader) -> bytes:
    return require_whole(await reader.readline())
