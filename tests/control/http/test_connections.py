"""Clients that connect and then do not what a client does: nothing, half a request, or too many at once."""

import asyncio
import contextlib
import json
import os
import re
import select
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.config.schema.secret import Secret
from supervisor.control.endpoints import Endpoint
from supervisor.control.http import web
from supervisor.control.http.access import Login
from supervisor.control.http.connection import BLOCK_BYTES, MAX_BODY_BYTES, ClientTimeouts
from supervisor.control.http.connections import ACCEPTED_A_TURN, Connections
from supervisor.control.server import serve
from tests.fuzzing import cases
from tests.reading import descriptors
from tests.system.harness import let_others_in
from tests.waiting import turn_loop, wait_until_async

pytestmark = pytest.mark.fast_clock

DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"  # needs no daemon
TIME_S = 10.0


@asynccontextmanager
async def serving(*paths: Path, login: Login | None = None, **limits: Any) -> AsyncIterator[None]:
    endpoints = [Endpoint(socket.socket(socket.AF_UNIX), os.geteuid(), login) for _ in paths]
    for endpoint, path in zip(endpoints, paths, strict=True):
        endpoint.listener.bind(str(path))
    no_daemon = cast(Any, None)
    async with serve(endpoints, no_daemon, ClientTimeouts(**limits)):
        yield


async def until_closed(path: Path, *pieces: bytes) -> bytes:
    """Sends the pieces, each when the server has read the one before, and gives what came until it hung up."""
    reader, writer = await asyncio.open_unix_connection(path)
    for piece in pieces:
        try:
            writer.write(piece)
            await writer.drain()
        except ConnectionError:
            break
        await turn_loop()
    try:
        return await asyncio.wait_for(reader.read(), TIME_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"POST /api/v1/st",),
        (b"POST /RPC2 HTTP/1.1\r\nHost: x\r\n",),
        (DOCUMENT, b"GET /openapi.json HTTP/1.1\r\n"),  # after a request that was whole
        (b"GET / HTTP/1.1\r\n", *(b"X-%d: slow\r\n" % number for number in range(60))),  # a header every tenth second
    ],
    ids=["nothing", "half-a-line", "half-the-headers", "the-second-request", "one-header-at-a-time"],
)
async def test_a_request_that_does_not_come_is_not_waited_for(tmp_path: Path, pieces: tuple[bytes, ...]):
    loop = asyncio.get_running_loop()
    began_at = loop.time()

    async with serving(tmp_path / "s", head_s=0.2):
        await until_closed(tmp_path / "s", *pieces)

    assert loop.time() - began_at < 0.2 + 0.1 * len(pieces) + 4.0


@pytest.mark.parametrize("path", [b"/api/v1/start", b"/RPC2", b"/openapi.json"])
async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, path: bytes):
    async with serving(tmp_path / "s", body_s=0.3):
        answer = await until_closed(
            tmp_path / "s", b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{", b"x", b"x"
        )

    assert answer.startswith(b"HTTP/1.1 408")


async def test_connection_over_the_limit_gets_503_and_the_others_are_served(tmp_path: Path):
    async with serving(tmp_path / "s", connections=3, reserved=0):
        idle = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(3)]
        refused = await until_closed(tmp_path / "s")
        reader, writer = idle[0]
        writer.write(DOCUMENT)
        served = await asyncio.wait_for(reader.readline(), TIME_S)
        for _, idle_writer in idle:
            idle_writer.close()
            await idle_writer.wait_closed()
        await turn_loop()
        again = await until_closed(tmp_path / "s", DOCUMENT.replace(b"Host: x", b"Host: x\r\nConnection: close"))

    assert refused.startswith(b"HTTP/1.1 503") and b"reached its limit of connections" in refused
    assert served.startswith(b"HTTP/1.1 200")
    assert again.startswith(b"HTTP/1.1 200")


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as other users")
async def test_a_user_leaves_connections_to_others_and_is_told_so(tmp_path: Path):
    let_others_in(tmp_path)
    closing = DOCUMENT.replace(b"Host: x", b"Host: x\r\nConnection: close")

    async with serving(tmp_path / "s", connections=8, reserved=2):
        (tmp_path / "s").chmod(0o777)
        greedy = [await connected_as(4001, tmp_path / "s") for _ in range(5)]
        refused = await asyncio.wait_for(greedy[-1][0].read(), TIME_S)
        other = [await connected_as(4002, tmp_path / "s") for _ in range(2)]
        third, third_writer = await connected_as(4003, tmp_path / "s")
        third_writer.write(closing)
        of_third = await asyncio.wait_for(third.read(), TIME_S)
        ours = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(3)]
        of_root = await until_closed(tmp_path / "s", closing)
        for _, writer in (*greedy, *other, *ours, (third, third_writer)):
            writer.close()

    assert refused.startswith(b"HTTP/1.1 503")
    assert b"uid 4001 has 4 of this socket's 8 connections" in refused and b"close clients that are idle" in refused
    assert [answer[:12] for answer in (of_third, of_root)] == [b"HTTP/1.1 200"] * 2


async def connected_as(uid: int, path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of that user: the kernel notes who it is at connect(2)."""
    client = socket.socket(socket.AF_UNIX)
    os.seteuid(uid)
    try:
        client.connect(str(path))
    finally:
        os.seteuid(0)
    return await asyncio.open_unix_connection(sock=client)


@pytest.mark.hostile
async def test_an_address_leaves_connections_to_others():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    endpoint = Endpoint(listener, os.geteuid())

    async with serve([endpoint], cast(Any, None), ClientTimeouts(connections=4)):
        greedy = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(3)]
        refused = await asyncio.wait_for(greedy[2][0].readline(), TIME_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0))
        writer.write(DOCUMENT)
        answer = await asyncio.wait_for(reader.readline(), TIME_S)
        for _, each in (*greedy, (reader, writer)):
            each.close()

    assert (refused[:12], answer[:12]) == (b"HTTP/1.1 503", b"HTTP/1.1 200")


async def test_clients_of_one_endpoint_keep_nobody_from_another(tmp_path: Path):
    closing = DOCUMENT.replace(b"Host: x", b"Host: x\r\nConnection: close")

    async with serving(tmp_path / "a", tmp_path / "b", connections=2, reserved=0):
        idle = [await asyncio.open_unix_connection(tmp_path / "a") for _ in range(2)]
        answers = [await until_closed(tmp_path / "a"), await until_closed(tmp_path / "b", closing)]
        for _, writer in idle:
            writer.close()

    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 503", b"HTTP/1.1 200"]


async def test_first_request_of_a_client_has_little_time_and_the_next_has_more(tmp_path: Path):
    loop = asyncio.get_running_loop()

    async with serving(tmp_path / "s", first_s=0.2):
        began_at = loop.time()
        await until_closed(tmp_path / "s", b"GET / HTTP/1.1\r\n")
        waited_s = loop.time() - began_at
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        answers = []
        for _ in range(2):
            writer.write(DOCUMENT)
            answers.append(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIME_S))
            length = int(re.findall(rb"(?i)content-length: (\d+)", answers[-1])[0])
            await asyncio.wait_for(reader.readexactly(length), TIME_S)
            await asyncio.sleep(0.5)  # longer than the first request may take
        writer.close()

    assert waited_s < 4.0
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 2


# --- one client, and an application that does as the test says --------------------------------------------------------


class Told:
    """Answers with what was asked, unless a test has it do something else."""

    def __init__(self, answer: Callable[[web.Request], Awaitable[web.Response]] | None = None) -> None:
        self.asked: list[web.Request] = []
        self._answer = answer

    async def admit(self, request: web.Request) -> web.Response | None:
        return web.error_response(403, "FORBIDDEN", "no") if "x-stranger" in request.headers else None

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if self._answer is not None:
            return await self._answer(request)
        return web.json_response(
            [request.method, request.path, dict(request.query), request.body.decode(errors="replace")]
        )


@asynccontextmanager
async def answering(path: Path, application: Told, **limits: Any) -> AsyncIterator[Connections]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        clients = Connections(ClientTimeouts(**limits))
        server = await clients.listen(listener, application)
        try:
            yield clients
        finally:
            server.close()
            await clients.close(0.1)


def asking(target: str = "/", method: str = "GET", body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def bodies(content: bytes) -> list[bytes]:
    """Of several answers, one after the other, all with a length."""
    contents = []
    while content:
        head, _, content = content.partition(b"\r\n\r\n")
        length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
        contents.append(content[:length])
        content = content[length:]
    return contents


async def test_requests_on_one_connection_are_answered_in_their_order(tmp_path: Path):
    together = asking("/a?x=1&x=2&y") + asking("/b", "POST", b"{}") + asking("/c", "GET", b"", "Connection: close")

    async with answering(tmp_path / "s", Told()):
        answer = await until_closed(tmp_path / "s", together)

    assert [json.loads(body) for body in bodies(answer)] == [
        ["GET", "/a", {"x": "1", "y": ""}, ""],
        ["POST", "/b", {}, "{}"],
        ["GET", "/c", {}, ""],
    ]


async def test_a_body_may_come_in_chunks_and_after_it_was_asked_for(tmp_path: Path):
    head = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )

    async with answering(tmp_path / "s", Told()):
        answer = await until_closed(tmp_path / "s", head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")

    interim, _, rest = answer.partition(b"\r\n\r\n")
    assert interim.startswith(b"HTTP/1.1 100 ")
    assert json.loads(bodies(rest)[0])[-1] == "abcde"


async def test_a_body_in_a_great_many_chunks_holds_nobody_up(tmp_path: Path):
    head = b"POST /many HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    application = Told()

    async with answering(tmp_path / "s", application):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
        await until_closed(tmp_path / "s", asking("/one", "GET", b"", "Connection: close"))
        await asyncio.wait_for(reader.read(), TIME_S)
        writer.close()

    assert [request.path for request in application.asked] == ["/one", "/many"]


async def test_head_request_gets_no_body(tmp_path: Path):
    async with answering(tmp_path / "s", Told()):
        answer = await until_closed(tmp_path / "s", asking("/", "HEAD", b"", "Connection: close"))

    assert answer.startswith(b"HTTP/1.1 200 ") and b"content-length: 21" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"\x16\x03\x01 hello TLS\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET http:///status HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET http://x@y/ HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (asking("/", "POST", b"x" * (MAX_BODY_BYTES + 1)), b"413"),
        (asking("/", "POST", b"x" * 500_000, "X-Stranger: yes"), b"403"),
    ],
    ids=[
        "no-host",
        "tls",
        "long-head",
        "long-body",
        "odd-length",
        "coding",
        "chunks",
        "two-lengths",
        "no-host-in-target",
        "user-in-target",
        "target",
        "too-much",
        "stranger",
    ],
)
async def test_invalid_request_is_answered_and_closed(tmp_path: Path, request_: bytes, status: bytes):
    application = Told()

    async with answering(tmp_path / "s", application):
        answer = await until_closed(tmp_path / "s", request_)

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == status and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["message"]
    assert not application.asked


async def test_a_client_that_has_no_more_to_say_still_gets_its_answer(tmp_path: Path):
    async def soon(_: web.Request) -> web.Response:
        await turn_loop()
        return web.json_response("done")

    async with answering(tmp_path / "s", Told(soon)):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(asking())
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), TIME_S)
        writer.close()

    assert bodies(answer) == [b'"done"']


async def test_pipelined_requests_get_all_answers(tmp_path: Path):
    async with answering(tmp_path / "s", Told()):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(asking("/a") + asking("/b"))
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), TIME_S)
        writer.close()

    assert [json.loads(body)[1] for body in bodies(answer)] == ["/a", "/b"]


async def endless(ended: asyncio.Event) -> AsyncGenerator[bytes, None]:
    try:
        yield b"first"
        await asyncio.Event().wait()
    finally:
        ended.set()


async def test_a_client_that_hangs_up_ends_what_is_done_for_it(tmp_path: Path):
    ended = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(endless(ended))

    async with answering(tmp_path / "s", Told(answer)):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(asking())
        await asyncio.wait_for(reader.readuntil(b"first"), TIME_S)
        writer.close()

        await asyncio.wait_for(ended.wait(), TIME_S)


async def test_an_answer_that_breaks_off_cant_be_taken_for_whole(tmp_path: Path):
    async def half() -> AsyncGenerator[bytes, None]:
        yield b"half"
        raise RuntimeError("a defect")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(half())

    async with answering(tmp_path / "s", Told(answer)):
        content = await until_closed(tmp_path / "s", asking())

    assert b"half" in content and not content.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("bytes_", [BLOCK_BYTES, 40 * BLOCK_BYTES], ids=["as-it-hangs-up", "in-the-middle"])
async def test_client_that_does_not_read_is_dropped(tmp_path: Path, bytes_: int):
    once = asking("/", "GET", b"", "Connection: close")

    async def answer(request: web.Request) -> web.Response:
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return web.Response(b"x" * bytes_)

    async with answering(tmp_path / "s", Told(answer), answer_s=0.3, connections=1, reserved=0):
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(tmp_path / "s"))
            slow.sendall(once)
            await turn_loop()
            refused = await until_closed(tmp_path / "s")
            async with asyncio.timeout(TIME_S):
                while not (await until_closed(tmp_path / "s", once)).startswith(b"HTTP/1.1 200"):
                    pass

    assert refused.startswith(b"HTTP/1.1 503")


async def test_client_that_only_sends_is_not_served_further(tmp_path: Path):
    async def answer(request: web.Request) -> web.Response:
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return web.Response(b"x" * BLOCK_BYTES)

    application = Told(answer)
    async with answering(tmp_path / "s", application, answer_s=0.3):
        with socket.socket(socket.AF_UNIX) as greedy:
            greedy.connect(str(tmp_path / "s"))
            greedy.sendall(asking() * 100)
            hung_up = select.poll()
            hung_up.register(greedy, 0)
            await wait_until_async(lambda: hung_up.poll(0), "the server hangs up")

    assert len(application.asked) < 10


async def test_an_answer_on_its_way_is_finished_when_the_daemon_leaves(tmp_path: Path):
    begun = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        begun.set()
        await turn_loop()
        return web.json_response("bye")

    async with answering(tmp_path / "s", Told(answer)) as clients:
        asked = asyncio.create_task(until_closed(tmp_path / "s", asking()))
        idle, writer = await asyncio.open_unix_connection(tmp_path / "s")
        await asyncio.wait_for(begun.wait(), TIME_S)
        await asyncio.wait_for(clients.close(1000 * TIME_S), TIME_S)
        assert bodies(await asked) == [b'"bye"']
        assert await asyncio.wait_for(idle.read(), TIME_S) == b""
        writer.close()


@pytest.mark.fuzz
@cases(500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from(
            [asking(), asking("/", "POST", b"{}"), b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n", b"\r\n\r\n"]
        )
        | st.sampled_from([b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n"])
        | st.sampled_from([b"POST / HTTP/1.1\r\n", b"POST /%ff?%ff=%00 HTTP/1.0\r\n", b"Expect: 100-continue\r\n"]),
        max_size=8,
    ).map(b"".join)
)
def test_any_bytes_are_answered_or_not_and_the_next_client_is_served(tmp_path: Path, junk: bytes):
    async def both() -> bytes:
        path = tmp_path / "s"
        path.unlink(missing_ok=True)
        answers = []
        async with answering(path, Told()):
            for sent in (junk, asking("/", "GET", b"", "Connection: close")):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(sent)
                writer.write_eof()
                answers.append(await asyncio.wait_for(reader.read(), TIME_S))
                writer.close()
        return answers[-1]

    with structlog.testing.capture_logs() as logged:
        assert asyncio.run(both()).startswith(b"HTTP/1.1 200")
    assert not logged


async def test_client_that_hung_up_early_is_refused_quietly(tmp_path: Path):
    came, may_go_on = asyncio.Event(), asyncio.Event()

    class Slow(Login):
        async def is_valid(self, header: str | None, client: str) -> bool:
            if header is not None:
                came.set()
                await may_go_on.wait()
            return True

    asked = asking("/openapi.json") + asking("/api/v1/stop", "POST", b"{}", "Authorization: something")
    with structlog.testing.capture_logs() as logged:
        async with serving(tmp_path / "s", login=Slow("", Secret(""))):
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(str(tmp_path / "s"))
                hasty.sendall(asked)
                await asyncio.wait_for(came.wait(), TIME_S)
            await turn_loop()  # the first answer was not read, so this resets the connection
            may_go_on.set()

    assert not logged


# --- who answers what -------------------------------------------------------------------------------------------------


async def test_routes_lead_by_path_and_method(tmp_path: Path):
    routes = web.Routes()

    def leads_to(name: str) -> web.Handler:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response([name, dict(request.parameters)])

        return handler

    for method, pattern in (("POST", "/v/each"), ("POST", "/v/{command}"), ("GET", "/v/tail"), (None, "/RPC2*")):
        routes.add(method, pattern, leads_to(pattern))

    async def led(method: str, target: str) -> Any:
        asked = web.request_of(method.encode(), target.encode(), [], cast(Any, None), None)
        answer = await routes.dispatch(asked)
        assert isinstance(answer.body, bytes)
        return json.loads(answer.body)

    assert await led("POST", "/v/each") == ["/v/each", {}]
    assert await led("POST", "/v/a%3Ab%2Fc") == ["/v/{command}", {"command": "a:b/c"}]
    assert await led("HEAD", "/v/tail?x=1") == ["/v/tail", {}]
    assert await led("GET", "http://host/v/tail") == ["/v/tail", {}]
    assert await led("PUT", "/RPC2/more") == ["/RPC2*", {}]
    for method, target, status, allowed in (
        ("GET", "/v/each", 405, "POST"),
        ("PUT", "/v/tail", 405, "GET, POST"),
        ("POST", "/v/", 404, None),
        ("POST", "/v/a/b", 404, None),
        ("GET", "/", 404, None),
        ("OPTIONS", "*", 404, None),
    ):
        with pytest.raises(web.RequestRefused) as refused:
            await led(method, target)
        assert (refused.value.status, refused.value.headers.get("Allow")) == (status, allowed)


@pytest.mark.hostile
async def test_clients_who_come_all_at_once_leave_the_event_loop_its_turns(tmp_path: Path):
    async with serving(tmp_path / "s"):
        with contextlib.ExitStack() as connected:
            for _ in range(4 * ACCEPTED_A_TURN):
                stranger = connected.enter_context(socket.socket(socket.AF_UNIX))
                stranger.setblocking(False)
                stranger.connect(str(tmp_path / "s"))
            held = [descriptors()]
            for _ in range(20):
                await asyncio.sleep(0)
                held.append(descriptors())

    assert 0 < max(after - before for before, after in pairwise(held)) <= ACCEPTED_A_TURN


def listener_of(kind: str, folder: Path) -> socket.socket:
    """Where root, or the daemon's user, comes in, or where anybody does."""
    if kind == "anybody":
        listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "s"))
        listener.listen(100)
    listener.setblocking(False)
    return listener


def ask(connected: contextlib.ExitStack, listener: socket.socket, path: str) -> socket.socket:
    client = connected.enter_context(socket.socket(listener.family))
    client.connect(listener.getsockname())
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["anybody", "root"])
async def test_many_who_ask_at_once_are_answered_in_turns_of_the_event_loop(kind: str, tmp_path: Path):
    listener = listener_of(kind, tmp_path)
    no_daemon, poll, answered = cast(Any, None), select.poll(), [0]
    async with serve([Endpoint(listener, os.geteuid())], no_daemon):
        with contextlib.ExitStack() as connected:
            for _ in range(30):
                poll.register(ask(connected, listener, "/index.html"), select.POLLIN)
            while answered[-1] < 30:
                await asyncio.sleep(0)
                answered.append(len(poll.poll(0)))

    assert max(after - before for before, after in pairwise(answered)) == 1


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["anybody", "root"])
async def test_a_question_waits_for_no_more_than_a_few_of_many_others(kind: str, tmp_path: Path):
    listener = listener_of(kind, tmp_path)
    no_daemon, others, own = cast(Any, None), select.poll(), select.poll()
    async with serve([Endpoint(listener, os.geteuid())], no_daemon):
        with contextlib.ExitStack() as connected:
            for _ in range(60):
                others.register(ask(connected, listener, "/index.html"), select.POLLIN)
            while not others.poll(0):
                await turn_loop(1)
            before = len(others.poll(0))
            own.register(ask(connected, listener, "/page.js"), select.POLLIN)
            while not own.poll(0):
                await turn_loop(1)
            answered_before = len(others.poll(0)) - before

    assert answered_before <= 6


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("at", "said"),
    [
        (9.2e18, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (-9.2e18, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784111777.0, "Sun, 06 Nov 1994 08:49:37 GMT"),
    ],
)
def test_any_time_that_a_file_may_have_is_a_date(at: float, said: str):
    """As the Last-Modified of a log in memory, to which its owner gave it (touch -d @9223372036854775807)."""
    assert web.http_date(at) == said
