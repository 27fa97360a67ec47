"""All connected clients: how many there may be at each endpoint, and how their connections end."""

import asyncio
import socket
import time
from functools import partial

import structlog

from supervisor.control.http.connection import Application, ClientTimeouts, Connection

ACCEPTED_A_TURN = 16  # of the event loop: strangers may come without end; `LastingListener` sets the kernel's number
REPORTED_EVERY_S = 10.0
FIRST_REQUEST_S = 0.25  # clients of ours send theirs as soon as they are connected

log = structlog.get_logger()

_REMEDY = "close clients that are idle or follow logs, then try again"


class Connections:
    """All connected clients, of all endpoints."""

    def __init__(self, timeouts: ClientTimeouts) -> None:
        self._timeouts = timeouts
        self._connected: dict[asyncio.Task[None], Connection] = {}
        self._logged_at = float("-inf")

    async def listen(self, listener: socket.socket, application: Application) -> asyncio.Server:
        """Serves the clients that connect, up to the limit of connections of this endpoint."""
        on_connect = partial(self._on_connect, application)
        return await asyncio.start_server(on_connect, sock=listener, backlog=ACCEPTED_A_TURN)

    async def close(self, within_s: float) -> None:
        """Closes all connections; responses that are being sent get `within_s` seconds to end.

        Who has just connected may have a request on its way, and gets an answer to that.
        """
        for connection in self._connected.values():
            connection.is_wanted = False
        if new := [task for task, connection in self._connected.items() if connection.is_new]:
            await asyncio.wait(new, timeout=FIRST_REQUEST_S)
        answering = [task for task, connection in self._connected.items() if connection.is_answering]
        if answering:
            await asyncio.wait(answering, timeout=within_s)
        for task in self._connected:
            task.cancel()
        await asyncio.gather(*self._connected, return_exceptions=True)

    def _on_connect(self, application: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, application, self._timeouts)
        refusal = self._find_refusal(connection)
        if refusal is not None:
            connection.is_wanted = False
            self._log_turned_away(refusal)
        task = asyncio.create_task(connection.serve() if refusal is None else connection.turn_away(refusal))
        self._connected[task] = connection
        task.add_done_callback(self._connected.pop)

    def _find_refusal(self, connection: Connection) -> str | None:
        """Why a client gets no connection; None if it does.

        Whoever has as many as are still free gets no more: one gets half of all, two a third each, and so on, and there
        is always some left for those who have none.
        """
        most, client = self._timeouts.connections, connection.client
        others = [
            other.client
            for other in self._connected.values()
            if other.application is connection.application and other.is_wanted
        ]
        if len(others) >= most + (self._timeouts.reserved if client is None else 0):
            return f"supervisord has reached its limit of connections: {most} at a socket; {_REMEDY}"
        own = 0 if client is None else others.count(client)
        if own and own >= most - len(others):
            free = f"of this socket's {most} connections, and only {most - len(others)} are free for all others"
            return f"{client} has {own} {free}; {_REMEDY}"
        return None

    def _log_turned_away(self, refusal: str) -> None:
        """Logs that clients are turned away, at most once in REPORTED_EVERY_S."""
        now = time.monotonic()
        if now - self._logged_at >= REPORTED_EVERY_S:
            self._logged_at = now
            log.warning("client.refused", reason=refusal)
