"""How many clients may be connected at a time: each holds a descriptor, and the daemon needs its own."""

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field

import structlog
from aiohttp import web

MOST_CONNECTIONS = (
    400  # far more than people and monitors have; with their logs followed, under the usual 1024 descriptors
)
REPORTED_EVERY_S = 10.0

log = structlog.get_logger()

_MESSAGE = "supervisord has as many connections as it takes; end clients that idle or follow logs, then try again"
_BODY = json.dumps({"error": {"code": "FAILED", "message": _MESSAGE}}).encode()
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


@dataclass(slots=True)
class Bound:
    """How many clients several servers may have together."""

    most: int
    _servers: list[web.Server] = field(default_factory=list)
    _told_at: float = float("-inf")

    def holds(self, server: web.Server) -> None:
        """Counts the clients of this one too."""
        self._servers.append(server)

    def is_reached(self) -> bool:
        """Whether there is no room for one more."""
        return sum(len(each.connections) for each in self._servers) >= self.most

    def tell(self) -> None:
        """Writes into the log that somebody was turned away, but not each time."""
        now = time.monotonic()
        if now - self._told_at >= REPORTED_EVERY_S:
            self._told_at = now
            log.warning("client.refused", reason=f"there are {self.most} connections")


class BoundedSite(web.SockSite):
    """A listening socket whose clients are turned away while there are as many as there may be."""

    def __init__(self, runner: web.AppRunner, listener: socket.socket, bound: Bound) -> None:
        super().__init__(runner, listener)
        assert runner.server is not None
        self._bound = bound
        bound.holds(runner.server)

    async def start(self) -> None:
        """Listens."""
        await web.BaseSite.start(self)
        server = await asyncio.get_running_loop().create_server(self._protocol, sock=self._sock, backlog=self._backlog)
        self._server = server

    def _protocol(self) -> asyncio.BaseProtocol:
        if self._bound.is_reached():
            self._bound.tell()
            return _Refusal()
        server = self._runner.server
        assert server is not None
        handler: asyncio.BaseProtocol = server()
        return handler


class _Refusal(asyncio.Protocol):
    """Says so, and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(_ANSWER)
        transport.close()
