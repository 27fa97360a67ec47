"""A proxy in front of an object store that fails, holds back or falsifies what a test chooses, and forwards the rest.

It listens on 127.0.0.1 in a thread of its own, so tests with and without an event loop can use it:

    with FaultyProxy(s3_store.endpoint) as proxy:
        store = s3_store.behind(proxy.endpoint)
        proxy.fault = Fault(number=3, moment=Moment.BEFORE, action=lambda: os.kill(pid, signal.SIGKILL))

A first run without a fault tells how many requests there are; then each of them can be made to fail.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

_START_TIMEOUT_S = 60.0  # it takes milliseconds; the machine may be busy
_OF_ONE_CONNECTION = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})
_NOT_ADDED = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)


class Moment(StrEnum):
    """When a request meets its fault."""

    BEFORE = "the store never sees the request"
    AFTER = "the store has done it, and the client gets no answer"
    MIDWAY = "the client gets half of the answer's body, or no answer if there is no body"


@dataclass(frozen=True, slots=True)
class Fault:
    """What one request meets: `action` is called, in a thread that may wait, and then the connection is cut.

    `number`: which request, the first is 1, of those where the regular expression `matching` finds something in
    `GET /path?query`. `is_lasting`: all such requests after it too. `status`: instead of a cut, the request is answered
    with it and `content`. `goes_on`: after `action` the request goes its usual way, so that an action can hold it up.
    """

    number: int
    moment: Moment
    matching: str = ""
    is_lasting: bool = False
    status: int | None = None
    content: bytes = b""
    action: Callable[[], object] = lambda: None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    content: bytes


class FaultyProxy:
    """Forwards to `target` (`http://host:port`).

    `requests`: what came, as `GET /path?query`, in order. `rewrite`: gets such a line and the body of its answer, and
    gives the body that the client gets. `bytes_per_s`: how fast all requests' bodies together go on to the store.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.endpoint = ""
        self.requests: list[str] = []
        self.fault: Fault | None = None
        self.rewrite: Callable[[str, bytes], bytes] = lambda line, content: content
        self.bytes_per_s: float | None = None
        self._seen_of_fault: tuple[Fault | None, int] = (None, 0)
        self._link = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faulty-proxy", daemon=True)

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        assert self._listening.wait(_START_TIMEOUT_S), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_START_TIMEOUT_S)
        assert not self._thread.is_alive(), "an action of a fault never ended"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application(client_max_size=0, handler_args={"access_log": None, "auto_decompress": False})
        session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=_NOT_ADDED)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handle(request, session)

        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.endpoint = "http://{}:{}".format(*runner.addresses[0])
        self._listening.set()
        await self._closing.wait()
        await runner.cleanup()
        await session.close()

    async def _handle(self, request: web.Request, session: aiohttp.ClientSession) -> web.StreamResponse:
        line = f"{request.method} {request.raw_path}"
        self.requests.append(line)
        fault = self._fault_of(line)
        content = await request.read()
        if fault is not None and fault.moment is Moment.BEFORE:
            await asyncio.to_thread(fault.action)
            if not fault.goes_on:
                return self._fail(request, fault)
        answer = await self._forward(request, content, line, session)
        if fault is not None and fault.moment is not Moment.BEFORE:
            await asyncio.to_thread(fault.action)
            if not fault.goes_on:
                return await self._fail_midway(request, fault, answer)
        response = web.Response(status=answer.status, headers=answer.headers, body=answer.content)
        if request.method == hdrs.METH_HEAD:
            response = web.Response(status=answer.status, headers=answer.headers)
        return response

    def _fault_of(self, line: str) -> Fault | None:
        """The fault that this request meets."""
        fault = self.fault
        if fault is None or re.search(fault.matching, line) is None:
            return None
        known, seen = self._seen_of_fault
        seen = seen + 1 if known is fault else 1
        self._seen_of_fault = (fault, seen)
        return fault if seen == fault.number or (fault.is_lasting and seen > fault.number) else None

    async def _forward(
        self, request: web.Request, content: bytes, line: str, session: aiohttp.ClientSession
    ) -> _Answer:
        if self.bytes_per_s is not None:
            async with self._link:
                await asyncio.sleep(len(content) / self.bytes_per_s)
        async with session.request(
            request.method,
            URL(self.target + request.raw_path, encoded=True),
            headers=_without(request.headers, _OF_ONE_CONNECTION),
            data=content or None,
            allow_redirects=False,
        ) as response:
            found = self.rewrite(line, await response.read())
            unsent = _OF_ONE_CONNECTION if request.method == hdrs.METH_HEAD else _OF_ONE_CONNECTION | {"content-length"}
            return _Answer(response.status, _without(response.headers, unsent), found)

    async def _fail_midway(self, request: web.Request, fault: Fault, answer: _Answer) -> web.StreamResponse:
        if fault.moment is Moment.MIDWAY and fault.status is None and answer.content:
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            response.content_length = len(answer.content)
            await response.prepare(request)
            await response.write(answer.content[: len(answer.content) // 2])
            if request.transport is not None:
                request.transport.close()
            return response
        return self._fail(request, fault)

    def _fail(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.status is not None:
            return web.Response(status=fault.status, body=fault.content)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


def _without(headers: Mapping[str, str], unsent: frozenset[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in unsent]
