"""The connection of one client: bytes to requests and responses to bytes, with a limit on everything that it may use.

The library h11 implements HTTP/1.1 itself (heads, lengths, chunks, which state may follow which): it is given bytes and
gives events. When a client disconnects, the response to it is cancelled, and nothing else.
"""

import asyncio
import socket
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol

import h11
import structlog

from supervisor.control.base.errors import Code
from supervisor.control.http import web
from supervisor.control.http.access import client_of
from supervisor.host.peers import peer_of

MAX_CONNECTIONS = 400  # at each endpoint; far more than people and monitors need, also with logs followed
MAX_BODY_BYTES = 1 << 20  # commands are short; no client of ours sends more
BLOCK_BYTES = 64 * 1024
LINGER_S = 1.0  # for the rest of a request that was answered before its end
HALF_CLOSED_S = 1.0  # after that, a client that has shut down its sending side counts as disconnected

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long clients may take. `head_s`: until a request's headers have arrived; `body_s`: for the rest of it.

    `answer_s`: for reading each 64 KiB of a response that is held in memory; long, as people read with a pager.
    `first_s`: for the headers of a connection's first request, before anybody knows whose it is.
    `connections`: how many there may be at a time at each endpoint, so that clients of one can't keep others from
    another; of one user or address as many as are free for all others. `reserved`: how many more on a unix socket for
    root and the daemon's user, when others have taken all.
    """

    head_s: float = 30.0
    first_s: float = 5.0
    body_s: float = 30.0
    answer_s: float = 600.0
    connections: int = MAX_CONNECTIONS
    reserved: int = 20


DEFAULT_TIMEOUTS = ClientTimeouts()


class Application(Protocol):
    """Answers requests. An exception from either method ends the connection."""

    async def admit(self, request: web.Request) -> web.Response | None:
        """Called before the body is read: None, or the response that refuses the request."""

    async def answer(self, request: web.Request) -> web.Response:
        """The response to a complete request."""


class _ClientGone(Exception):
    """The client has disconnected, or can't be answered any more."""


class Connection:
    """The connection of one client."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        application: Application,
        timeouts: ClientTimeouts,
    ) -> None:
        self.is_answering = False
        self.is_new = True
        """Whether it has sent no request yet."""
        self.is_wanted = True
        """Whether it may send another request."""
        self._reader = reader
        self._writer = writer
        self.application = application
        self._is_admitted = False
        """Whether a request of it was."""
        self._timeouts = timeouts
        self._http = h11.Connection(h11.SERVER)
        self._socket: socket.socket = writer.get_extra_info("socket")
        peer = writer.get_extra_info("peername")  # from when it was accepted: after a reset the kernel knows it no more
        self._remote = str(peer[0]) if isinstance(peer, tuple) else None
        self.client = self._find_client()
        """Whose connections count together (`client_of`); None: root or the daemon's user, on a unix socket."""
        if self._socket.family != socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def turn_away(self, why: str) -> None:
        """Refuses a client beyond the limit of connections, and closes."""
        await self._write_last_response(web.error_response(HTTPStatus.SERVICE_UNAVAILABLE, Code.FAILED.name, why))
        self._writer.close()

    def _find_client(self) -> str | None:
        if self._remote is None:
            with suppress(OSError):
                if peer_of(self._socket).is_trusted:
                    return None
        return client_of(self._socket, self._remote)

    async def serve(self) -> None:
        """Answers one request after the other, until one side closes."""
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
        """Answers one request; gives whether another may follow."""
        self.is_answering = False
        try:
            timeouts = self._timeouts
            async with asyncio.timeout(
                timeouts.head_s if self._is_admitted else min(timeouts.first_s, timeouts.head_s)
            ):
                head = await self._next_event()
            if not isinstance(head, h11.Request):
                return False
            request = web.request_of(head.method, head.target, head.headers, self._socket, self._remote)
        except TimeoutError:
            return False
        except (h11.RemoteProtocolError, ValueError) as error:
            await self._write_last_response(_malformed_request(error))
            return False
        self.is_answering, self.is_new = True, False
        refused = await self.application.admit(request)
        self._is_admitted = refused is None
        body = refused or await self._read_body(request)
        if isinstance(body, web.Response):
            await self._write_last_response(body, request.method)
            return False
        await self._respond_unless_gone(self._respond(replace(request, body=body)))
        async with asyncio.timeout(self._timeouts.answer_s):
            await self._writer.drain()  # without this, responses that the client does not read would pile up in memory
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and self.is_wanted

    # --- what comes ---------------------------------------------------------------------------------------------------

    async def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request. Raises RemoteProtocolError if the bytes are not HTTP."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(BLOCK_BYTES))
        return event

    async def _read_body(self, request: web.Request) -> bytes | web.Response:
        """The whole body, or the response that refuses it."""
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
                    await asyncio.sleep(0)  # yields to others: a block may hold thousands of chunks
            return bytes(body)
        except TimeoutError:
            text = "the request did not arrive completely in time"
            return web.error_response(HTTPStatus.REQUEST_TIMEOUT, Code.BAD_ARGUMENTS.name, text)
        except h11.RemoteProtocolError as error:
            return _malformed_request(error)

    async def _respond_unless_gone(self, answering: Coroutine[object, object, None]) -> None:
        """Sends the response. Raises _ClientGone if the client disconnects first."""
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
        """Returns when the client has disconnected, or sends without end; the data is kept for its next request."""
        while data := await self._reader.read(BLOCK_BYTES):
            self._http.receive_data(data)
            if len(self._http.trailing_data[0]) > MAX_BODY_BYTES:
                return
        await asyncio.sleep(HALF_CLOSED_S)

    async def _linger(self) -> None:
        """Closes gently if the client still sends or has not read everything: a reset would discard the response."""
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
        await self._write_response(await self.application.answer(request), request.method)

    async def _write_last_response(self, answer: web.Response, method: str = "") -> None:
        """Writes a response after which the connection is closed, without reading the rest of the request."""
        await self._write_response(replace(answer, headers={**answer.headers, "Connection": "close"}), method)

    async def _write_response(self, answer: web.Response, method: str) -> None:
        """Writes a response. Raises TimeoutError if the client does not read a part of a complete body in time."""
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
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))


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
    reason = "".join(word if word.isprintable() else " " for word in words)
    return h11.Response(status_code=answer.status, headers=headers, reason=reason.encode("ascii", "replace"))


def _malformed_request(error: Exception) -> web.Response:
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
    return web.error_response(status, Code.BAD_ARGUMENTS.name, f"the request is not valid HTTP: {error}")


def _too_large() -> web.Response:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return web.error_response(status, status.phrase, f"the request is longer than {MAX_BODY_BYTES} bytes")
