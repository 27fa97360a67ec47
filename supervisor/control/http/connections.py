"""Clients' connections: bytes to requests and answers to bytes, with a limit on everything that a client may take.

HTTP/1.1 itself (heads, lengths, chunks, what may follow what) is h11's, which is given bytes and gives events. A client
that has hung up ends what is done for it alone.
"""

import asyncio
import socket
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Protocol

import h11
import structlog

from supervisor.control.base.errors import Code
from supervisor.control.http import web

MOST_CONNECTIONS = (
    400  # far more than people and monitors have; with their logs followed, under the usual 1024 descriptors
)
MAX_BODY_BYTES = 1 << 20  # commands are short; a client that sends more is not one of ours
BLOCK_BYTES = 64 * 1024
LINGER_S = 1.0  # for the rest of a request that was answered before its end
HALF_CLOSED_S = 1.0  # who has no more to say may have hung up, or only wait for an answer that comes at once
REPORTED_EVERY_S = 10.0

log = structlog.get_logger()

_TOO_MANY = "supervisord has as many connections as it takes; end clients that idle or follow logs, then try again"


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """What clients may take. `head_s`: seconds until a request's headers are there; `body_s`: for the rest of it.

    `answer_s`: for taking each 64 KiB of an answer that is held in memory; who reads it with a pager is no miscreant.
    `connections`: how many at a time, all doors together. Ours send a request in one go.
    """

    head_s: float = 30.0
    body_s: float = 30.0
    answer_s: float = 600.0
    connections: int = MOST_CONNECTIONS


DEFAULT_TIMEOUTS = ClientTimeouts()


class Application(Protocol):
    """Who answers. Neither method raises, but for what ends the connection."""

    async def admit(self, request: web.Request) -> web.Response | None:
        """Before the request's body is read: None, or why it will not be."""

    async def answer(self, request: web.Request) -> web.Response:
        """To the whole of a request."""


class Connections:
    """All that are connected, at whichever door."""

    def __init__(self, timeouts: ClientTimeouts) -> None:
        self._timeouts = timeouts
        self._connected: dict[asyncio.Task[None], _Connection] = {}
        self._told_at = float("-inf")

    async def listen(self, listener: socket.socket, application: Application) -> asyncio.Server:
        """Serves who comes, one too many excepted."""
        return await asyncio.start_server(partial(self._on_connect, application), sock=listener, backlog=128)

    async def close(self, within_s: float) -> None:
        """Hangs up on all; answers on their way may take so long."""
        answering = [task for task, each in self._connected.items() if each.is_answering]
        for each in self._connected.values():
            each.is_wanted = False
        if answering:
            await asyncio.wait(answering, timeout=within_s)
        for task in self._connected:
            task.cancel()
        await asyncio.gather(*self._connected, return_exceptions=True)

    def _on_connect(self, application: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, application, self._timeouts)
        is_one_too_many = len(self._connected) >= self._timeouts.connections
        if is_one_too_many:
            self._log_turned_away()
        task = asyncio.create_task(connection.turn_away() if is_one_too_many else connection.serve())
        self._connected[task] = connection
        task.add_done_callback(self._connected.pop)

    def _log_turned_away(self) -> None:
        """Writes into the log that somebody was turned away, but not each time."""
        now = time.monotonic()
        if now - self._told_at >= REPORTED_EVERY_S:
            self._told_at = now
            log.warning("client.refused", reason=f"there are {self._timeouts.connections} connections")


class _ClientGone(Exception):
    """The client is, or is as good as that."""


class _Connection:
    """One client's."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        application: Application,
        timeouts: ClientTimeouts,
    ) -> None:
        self.is_answering = False
        self.is_wanted = True
        """Whether it may ask again."""
        self._reader = reader
        self._writer = writer
        self._application = application
        self._timeouts = timeouts
        self._http = h11.Connection(h11.SERVER)
        self._socket: socket.socket = writer.get_extra_info("socket")
        peer = writer.get_extra_info("peername")  # from when it was accepted: after a reset the kernel knows it no more
        self._remote = str(peer[0]) if isinstance(peer, tuple) else None
        if self._socket.family != socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def turn_away(self) -> None:
        """Hangs up on one too many, and says so."""
        await self._write_last_response(web.error_response(HTTPStatus.SERVICE_UNAVAILABLE, Code.FAILED.name, _TOO_MANY))
        self._writer.close()

    async def serve(self) -> None:
        """Answers one request after the other, until one side has enough."""
        try:
            while await self._serve_one_request():
                self._http.start_next_cycle()
            await self._linger()
        except (_ClientGone, OSError):
            self._writer.transport.abort()
        except Exception:
            log.exception("internal.failed", on="an answer")
            self._writer.transport.abort()  # so that half an answer can't be taken for the whole
        finally:
            self._writer.close()

    async def _serve_one_request(self) -> bool:
        """One request and its answer; whether there may be another."""
        self.is_answering = False
        try:
            async with asyncio.timeout(self._timeouts.head_s):
                head = await self._next_event()
            if not isinstance(head, h11.Request):
                return False
            request = web.request_of(head.method, head.target, head.headers, self._socket, self._remote)
        except TimeoutError:
            return False
        except (h11.RemoteProtocolError, ValueError) as error:
            await self._write_last_response(_malformed_request(error))
            return False
        self.is_answering = True
        body = await self._application.admit(request) or await self._read_body(request)
        if isinstance(body, web.Response):
            await self._write_last_response(body, request.method)
            return False
        await self._respond_unless_gone(self._respond(replace(request, body=body)))
        async with asyncio.timeout(self._timeouts.answer_s):
            await self._writer.drain()  # who takes no answers gets no more of them: they would pile up in memory
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and self.is_wanted

    # --- what comes ---------------------------------------------------------------------------------------------------

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request. Raises RemoteProtocolError if what comes is none."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(BLOCK_BYTES))
        return event

    async def _read_body(self, request: web.Request) -> bytes | web.Response:
        """The whole body, or what is to be said instead of waiting for more of it."""
        try:
            if int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
                return _too_large()
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
            body = bytearray()
            async with asyncio.timeout(self._timeouts.body_s):
                while isinstance(event := await self._next_event(), h11.Data):
                    body += event.data
                    if len(body) > MAX_BODY_BYTES:
                        return _too_large()
                    await asyncio.sleep(0)  # others' turn: a block may hold thousands of chunks
            return bytes(body)
        except TimeoutError:
            text = "the request did not come to its end in time"
            return web.error_response(HTTPStatus.REQUEST_TIMEOUT, Code.BAD_ARGUMENTS.name, text)
        except h11.RemoteProtocolError as error:
            return _malformed_request(error)

    async def _respond_unless_gone(self, answering: Coroutine[object, object, None]) -> None:
        """Answers, unless the client hangs up first. Raises _Gone then."""
        tasks = asyncio.create_task(answering), asyncio.create_task(self._wait_until_gone())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise _ClientGone
            tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_until_gone(self) -> None:
        """Returns when the client has hung up, or sends on and on. What it sends is kept for the next cycle."""
        while data := await self._reader.read(BLOCK_BYTES):
            self._http.receive_data(data)
            if len(self._http.trailing_data[0]) > MAX_BODY_BYTES:
                return
        await asyncio.sleep(HALF_CLOSED_S)

    async def _linger(self) -> None:
        """Hangs up as a client can bear that still sends, or has not read all: a reset would take the answer away."""
        if self._http.their_state not in (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    self._writer.write_eof()
                    while await self._reader.read(BLOCK_BYTES):
                        pass
        self._writer.close()
        async with asyncio.timeout(self._timeouts.answer_s):
            await self._writer.wait_closed()

    # --- what goes ----------------------------------------------------------------------------------------------------

    async def _respond(self, request: web.Request) -> None:
        await self._write_response(await self._application.answer(request), request.method)

    async def _write_last_response(self, answer: web.Response, method: str = "") -> None:
        """What is left of the request will not be looked at."""
        await self._write_response(replace(answer, headers={**answer.headers, "Connection": "close"}), method)

    async def _write_response(self, answer: web.Response, method: str) -> None:
        """Writes it. Raises TimeoutError if a part of one that has an end is not taken in time."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise _ClientGone
        if method == "HEAD":
            self._send(_head(answer))
        elif isinstance(answer.body, bytes):
            await self._write_body(_head(answer), answer.body)
        else:
            self._send(_head(answer))
            async with aclosing(answer.body) as pieces:
                async for piece in pieces:
                    self._send(h11.Data(data=piece))
                    await self._writer.drain()
        self._send(h11.EndOfMessage())

    async def _write_body(self, head: h11.Response, body: bytes) -> None:
        self._send(head, h11.Data(data=body[:BLOCK_BYTES]))
        for start in range(BLOCK_BYTES, len(body), BLOCK_BYTES):
            async with asyncio.timeout(self._timeouts.answer_s):
                await self._writer.drain()
            self._send(h11.Data(data=body[start : start + BLOCK_BYTES]))

    def _send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._http.send(each) or b"" for each in events))


def _head(answer: web.Response) -> h11.Response:
    headers = [
        ("Server", "stepkeeper"),
        ("Date", web.http_date(time.time())),
        ("Content-Type", answer.content_type),
        *answer.headers.items(),
    ]
    if isinstance(answer.body, bytes):
        headers.append(("Content-Length", str(len(answer.body))))
    words = answer.reason or HTTPStatus(answer.status).phrase
    reason = "".join(each if each.isprintable() else " " for each in words)
    return h11.Response(status_code=answer.status, headers=headers, reason=reason.encode("ascii", "replace"))


def _malformed_request(error: Exception) -> web.Response:
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
    return web.error_response(status, Code.BAD_ARGUMENTS.name, f"the request is not HTTP as it should be: {error}")


def _too_large() -> web.Response:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return web.error_response(status, status.phrase, f"the request is longer than {MAX_BODY_BYTES} bytes")
