"""Connections between daemons, over loopback: who is let in, and what strangers get."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from supervisor.host.gang.free_port import free_port
from supervisor.host.gang.link import ACCEPTED_A_TURN, GangLink
from supervisor.protocol import gang
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import (
    MESSAGES,
    Alive,
    Challenge,
    GangMessage,
    Join,
    Leave,
    Over,
    PartCommitted,
    PartUploaded,
    Refused,
    Restore,
    SeenDivergence,
    UploadPart,
)
from tests.reading import descriptors
from tests.waiting import turn_loop, wait_until_async

pytestmark = pytest.mark.fast_clock

NODES = ("localhost", "127.0.0.1", "127.0.0.2")
SECRET = "s" * 64


class Heard:
    """What a daemon was told."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.diverged: SeenDivergence | None = None
        self.seen: list[SeenDivergence | None] = []
        self.joined: dict[int, str] = {}
        self.cluster: tuple[str, ...] | None = None
        self.messages: list[tuple[int, GangMessage]] = []
        self.lost: list[tuple[int, str]] = []
        self.refused: list[str] = []

    def joins_with(self) -> tuple[int, str, SeenDivergence | None]:
        return 0, self.address, self.diverged

    def on_joined(self, rank: int, joins: Join) -> None:
        self.joined[rank] = joins.address
        self.seen.append(joins.diverged)

    def on_begin(self, turn: int, nodes: tuple[int, ...], addresses: tuple[str, ...]) -> None:
        self.cluster = addresses

    def on_message(self, rank: int, message: GangMessage) -> None:
        self.messages.append((rank, message))

    def on_lost(self, rank: int, text: str) -> None:
        self.lost.append((rank, text))

    def on_refused(self, refused: Refused) -> None:
        self.refused.append(refused.reason)


@pytest.fixture
def port() -> int:
    return free_port()


@asynccontextmanager
async def daemon(
    port: int, rank: int, secret: str = SECRET, generation: int = 1
) -> AsyncIterator[tuple[GangLink, Heard]]:
    heard = Heard(f"{NODES[rank]}:{5000 + rank}")
    link = GangLink(Allocation(7, rank, NODES, 0, generation), secret, port, heard)
    await link.open()
    try:
        yield link, heard
    finally:
        await link.close()


async def test_all_meet_hear_the_cluster_and_the_last_word(port: int):
    async with (
        daemon(port, 0) as (chief, at_chief),
        daemon(port, 1) as (_, at_first),
        daemon(port, 2) as (second, at_second),
    ):
        await wait_until_async(lambda: len(at_chief.joined) == 2)
        cluster = tuple(f"{node}:{number}" for node, number in zip(NODES, (1, 2, 3), strict=True))
        chief.begin(0, (0, 1, 2), cluster)
        await wait_until_async(lambda: at_first.cluster == at_second.cluster == cluster)
        second.send(Leave(60, "its worker ended"))
        await wait_until_async(lambda: (2, Leave(60, "its worker ended")) in at_chief.messages)
        await second.close()
        await wait_until_async(lambda: [rank for rank, _ in at_chief.lost] == [2])
        await wait_until_async(lambda: any(isinstance(message, Alive) for _, message in at_first.messages))


async def test_another_generation_is_refused(port: int):
    async with daemon(port, 0, generation=2) as (_, at_chief), daemon(port, 1, generation=1) as (_, at_stale):
        await wait_until_async(lambda: at_stale.refused)
        assert "generation 1, and this is 2" in at_stale.refused[0]
        assert not at_chief.joined


async def test_a_node_that_only_looks_whether_the_chief_lives_is_no_stranger(port: int):
    async with daemon(port, 0) as (chief, at_chief):
        for words in (b"", b"half a line"):
            reader, writer = await asyncio.open_connection("localhost", port)
            writer.write(words)
            writer.write_eof()
            await reader.read()
            writer.close()
            assert chief._refused == (1 if words else 0)
        assert not at_chief.joined


@pytest.mark.hostile
async def test_whoever_does_not_know_the_secret_is_not_let_in(port: int):
    async with daemon(port, 0) as (chief, at_chief), daemon(port, 1, secret="x" * 64) as (_, at_stranger):
        await wait_until_async(lambda: chief._refused)
        assert not at_chief.joined
        assert not at_stranger.refused


@pytest.mark.hostile
@pytest.mark.parametrize(
    "said",
    [
        Refused("others go on without it", is_out=True),
        Refused("others go on without it", is_out=True, proof="0" * 64),
        Alive(),
        Over(1, "all begin again"),
        Leave(0, "all is done"),
    ],
)
async def test_who_has_only_taken_the_chiefs_port_is_not_believed(port: int, said: GangMessage):
    answered = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        writer.write(MESSAGES.encode(Challenge("x")))
        await reader.readline()
        writer.write(MESSAGES.encode(said))
        answered += 1
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "localhost", port)
    async with daemon(port, 1) as (_, at_first):
        await wait_until_async(lambda: answered >= 2)
        server.close()
        await server.wait_closed()
        assert not (at_first.refused or at_first.messages or at_first.lost)
        async with daemon(port, 0) as (_, at_chief):
            await wait_until_async(lambda: at_chief.joined)


async def test_a_rank_joins_once_and_from_its_own_node(port: int):
    async with daemon(port, 0) as (_, at_chief), daemon(port, 1):
        await wait_until_async(lambda: at_chief.joined)
        async with daemon(port, 1) as (_, at_double):
            await wait_until_async(lambda: at_double.refused)
            assert at_double.refused == ["rank 1 has joined already"]
    async with daemon(port, 0) as (_, at_chief):
        heard = Heard("evil.example:5001")
        other = GangLink(Allocation(7, 1, NODES, 0, 1), SECRET, port, heard)
        await other.open()
        await wait_until_async(lambda: heard.refused)
        await other.close()
        assert "evil.example" in heard.refused[0]
        assert not at_chief.joined


@pytest.mark.hostile
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"type":"alive"}\n',
        b'{"type":"begin","addresses":[],"proof":""}\n',
        b'{"type":"join","rank":-1,"generation":1,"address":"x","nonce":"","proof":""}\n',
        b"[" * 200_000 + b"\n",
        b"x" * 300_000,
    ],
)
async def test_nonsense_costs_its_own_connection(port: int, said: bytes):
    async with daemon(port, 0) as (_, at_chief), daemon(port, 1):
        await wait_until_async(lambda: 1 in at_chief.joined)
        reader, writer = await asyncio.open_connection("localhost", port)
        await reader.readline()
        writer.write(said)
        if said:
            with contextlib.suppress(ConnectionResetError):  # how it ends if not all was read
                await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert list(at_chief.joined) == [1] and not at_chief.lost


async def test_what_a_rank_has_seen_diverge_comes_with_its_proof(port: int):
    async with daemon(port, 0) as (_, at_chief):
        heard = Heard(f"{NODES[1]}:5001")
        heard.diverged = SeenDivergence(21, 3)
        link = GangLink(Allocation(7, 1, NODES, 0, 1), SECRET, port, heard)
        await link.open()
        await wait_until_async(lambda: at_chief.joined)
        await link.close()
        assert at_chief.seen == [SeenDivergence(21, 3)]


@pytest.mark.hostile
async def test_what_a_rank_has_seen_diverge_can_not_be_added_to_its_proof(port: int):
    async with daemon(port, 0) as (_, at_chief):
        reader, writer = await asyncio.open_connection("localhost", port)
        challenge = MESSAGES.decode(await reader.readline())
        assert isinstance(challenge, Challenge)
        joins = Join(1, 1, f"{NODES[1]}:5001", "n", "")
        forged = replace(joins, proof=gang.proof_of_join(SECRET, challenge, joins), diverged=SeenDivergence(1, 9))
        writer.write(MESSAGES.encode(forged))
        assert b"refused" in await asyncio.wait_for(reader.read(), 30)
        assert not at_chief.joined
        writer.close()


@pytest.mark.hostile
async def test_a_proof_holds_for_one_challenge_only(port: int):
    async with daemon(port, 0) as (_, at_chief):
        reader, writer = await asyncio.open_connection("localhost", port)
        first = MESSAGES.decode(await reader.readline())
        assert isinstance(first, Challenge)
        joins = Join(1, 1, f"{NODES[1]}:5001", "n", "")
        recorded = replace(joins, proof=gang.proof_of_join(SECRET, first, joins))
        writer.close()
        reader, writer = await asyncio.open_connection("localhost", port)
        await reader.readline()
        writer.write(MESSAGES.encode(recorded))
        assert b"refused" in await asyncio.wait_for(reader.read(), 30)
        assert not at_chief.joined
        writer.close()


@pytest.mark.hostile
@pytest.mark.parametrize("sources", [["127.0.0.9"], [f"127.0.1.{number}" for number in range(1, 100)]])
async def test_strangers_who_say_nothing_keep_no_rank_out(port: int, sources: list[str]):
    async with daemon(port, 0) as (_, at_chief), contextlib.AsyncExitStack() as strangers:
        for number in range(99):
            source = (sources[number % len(sources)], 0)
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
            strangers.callback(lambda writer=writer: writer.transport.abort())  # which keeps it from being closed
        async with daemon(port, 1) as (_, at_first), daemon(port, 2) as (_, at_second):
            await wait_until_async(lambda: len(at_chief.joined) == 2)
            assert not (at_chief.lost or at_first.lost or at_second.lost)


@pytest.mark.hostile
async def test_few_connections_are_held_that_have_proved_nothing(port: int):
    async with daemon(port, 0), contextlib.AsyncExitStack() as strangers:
        readers = []
        for number in range(200):
            source = (f"127.0.2.{number % 100 + 1}", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
            strangers.callback(lambda writer=writer: writer.transport.abort())  # which keeps it from being closed
            await reader.readline()  # the challenge
            readers.append(reader)
        await wait_until_async(lambda: sum(each.at_eof() or each.exception() is not None for each in readers) >= 181)
        gone = [number for number, each in enumerate(readers) if each.at_eof() or each.exception() is not None]
        assert gone == list(range(181)), "the newest stay"


@pytest.mark.hostile
async def test_a_rank_that_was_dropped_before_it_was_let_in_tries_again(port: int):
    dropped = 0

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dropped
        dropped += 1
        if dropped % 2:
            writer.write(MESSAGES.encode(Challenge("x")))
            await reader.readline()
        writer.transport.abort()

    server = await asyncio.start_server(drop, "localhost", port)
    async with daemon(port, 1) as (_, at_first):
        await wait_until_async(lambda: dropped >= 3)
        server.close()
        await server.wait_closed()
        async with daemon(port, 0) as (_, at_chief):
            await wait_until_async(lambda: at_chief.joined)
        assert not at_first.refused


async def test_the_loss_of_the_chief_after_that_is_a_loss(port: int):
    async with daemon(port, 1) as (_, at_first):
        async with daemon(port, 0) as (_, at_chief):
            await wait_until_async(lambda: at_chief.joined and at_first.messages)
            assert not at_first.lost
        await wait_until_async(lambda: at_first.lost)


async def test_all_ranks_can_come_while_the_chief_does_something_else(port: int):
    async with daemon(port, 0):
        with contextlib.ExitStack() as sockets:
            for _ in range(600):  # the kernel drops what does not fit in the queue, and the other side waits a second
                sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.5))


async def join(port: int, rank: int) -> asyncio.StreamWriter:
    """Joins as a daemon that reads nothing afterwards."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    challenge = MESSAGES.decode(await reader.readline())
    assert isinstance(challenge, Challenge)
    joins = Join(rank, 1, f"{NODES[rank]}:{5000 + rank}", "n", "")
    writer.write(MESSAGES.encode(replace(joins, proof=gang.proof_of_join(SECRET, challenge, joins))))
    return writer


async def test_ranks_that_do_not_read_any_more_are_waited_for_together(port: int):
    async with daemon(port, 0) as (chief, at_chief):
        writers = [await join(port, rank) for rank in (1, 2)]
        await wait_until_async(lambda: len(at_chief.joined) == 2)
        for writer in writers:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            chief.send(Leave(60, "x" * 10_000))

        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await chief.close()

        assert loop.time() - began_at < 1.8
        for writer in writers:
            writer.transport.abort()


async def test_a_chief_with_other_nodes_is_not_believed(port: int):
    async with daemon(port, 0) as (chief, at_chief):
        heard = Heard(f"{NODES[1]}:5001")
        other = GangLink(Allocation(7, 1, (*NODES[:2], "127.0.0.3"), 0, 1), SECRET, port, heard)
        await other.open()
        await wait_until_async(lambda: at_chief.joined)
        chief.begin(0, (0, 1, 2), tuple(f"{node}:1" for node in NODES))
        await wait_until_async(lambda: heard.lost)
        await other.close()
    assert heard.cluster is None and "has other nodes" in heard.lost[0][1]


@pytest.mark.parametrize("turns", range(12))
async def test_a_daemon_can_leave_at_any_moment_of_its_joining(port: int, turns: int):
    is_let_in = asyncio.Event()
    async with daemon(port, 0) as (_, at_chief):
        at_chief.on_joined = lambda rank, joins: is_let_in.set()  # type: ignore[method-assign]
        async with asyncio.timeout(10), daemon(port, 1):
            await is_let_in.wait()
            await turn_loop(turns)


async def test_many_ranks_behind_one_address_all_get_in(port: int):
    nodes = ("localhost", *(f"n{rank}" for rank in range(1, 60)))
    at_chief, *others = (Heard(f"{node}:5001") for node in nodes)
    links = [
        GangLink(Allocation(7, rank, nodes, 0, 1), SECRET, port, heard)
        for rank, heard in enumerate((at_chief, *others))
    ]
    try:
        for link in links:
            await link.open()
        await wait_until_async(lambda: len(at_chief.joined) == 59 or at_chief.lost)
        assert not any(heard.lost for heard in (at_chief, *others))
    finally:
        for link in reversed(links):
            await link.close()


@pytest.mark.hostile
@pytest.mark.parametrize(
    "message", [Restore(1, "step-0000000100.a1", 1, "x"), UploadPart(1, "step-0000000100.a1", 1), PartCommitted("x", 1)]
)
async def test_what_the_chief_alone_says_ends_the_connection_of_another(port: int, message: GangMessage):
    async with daemon(port, 0) as (_, at_chief), daemon(port, 1) as (other, at_other):
        await wait_until_async(lambda: at_other.messages)  # the first is a sign of life, once it was let in
        other.send(message)
        await wait_until_async(lambda: at_chief.lost)

        assert "is not the chief" in at_chief.lost[0][1]
        assert message not in [said for _, said in at_chief.messages]


async def test_part_that_is_uploaded_is_told_to_the_chief_and_to_nobody_else(port: int):
    async with daemon(port, 0) as (chief, at_chief), daemon(port, 1) as (other, at_other):
        await wait_until_async(lambda: at_chief.joined)
        chief.send(UploadPart(7, "step-0000000100.a1", 1, False), 1)
        await wait_until_async(lambda: any(isinstance(message, UploadPart) for _, message in at_other.messages))
        other.send(PartUploaded(7, "gone", True))
        await wait_until_async(lambda: (1, PartUploaded(7, "gone", True)) in at_chief.messages)
        chief.send(PartUploaded(7))
        await wait_until_async(lambda: at_other.lost)
        assert "this is not the chief" in at_other.lost[0][1]


@pytest.mark.hostile
async def test_strangers_who_come_all_at_once_leave_the_event_loop_its_turns(port: int):
    async with daemon(port, 0):
        with contextlib.ExitStack() as connected:
            for _ in range(4 * ACCEPTED_A_TURN):
                stranger = connected.enter_context(socket.socket())
                stranger.setblocking(False)
                stranger.connect_ex(("127.0.0.1", port))
            held = [descriptors()]
            for _ in range(20):
                await asyncio.sleep(0)
                held.append(descriptors())

    assert 0 < max(after - before for before, after in pairwise(held)) <= ACCEPTED_A_TURN
