"""The control server: HTTP on unix sockets and TCP; JSON for our own clients, XML-RPC for Supervisor's.

`POST /api/v1/COMMAND` with a JSON object gives `{"result": …}` or `{"error": {"code": …, "message": …}}`;
`POST /api/v1/each` runs a command for many programs and gives a line for each; `GET /api/v1/tail` gives the end of a
log, `GET /api/v1/events` streams events as lines; `GET /metrics` is for Prometheus, and `GET /openapi.json` describes
all this. `GET /` is a page for browsers. The folder supervisor_api serves Supervisor's own clients.

A GET never changes anything, and requests from any other page in a browser are refused.

Which of many requests is answered next: `http/turns.py`. Root and the daemon's user have turns of their own.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import structlog

from supervisor.control import openapi
from supervisor.control.base import audit
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError, internal_error
from supervisor.control.commands import bulk
from supervisor.control.commands.table import Command, find_command
from supervisor.control.endpoints import Endpoint, LastingListener
from supervisor.control.http import access, web
from supervisor.control.http.connection import DEFAULT_TIMEOUTS, ClientTimeouts
from supervisor.control.http.connections import Connections
from supervisor.control.http.turns import Turns
from supervisor.control.metrics import page, sampling
from supervisor.control.page import files
from supervisor.control.page.live import LivePages
from supervisor.control.streams import events, tail
from supervisor.control.supervisor_api import routes
from supervisor.host.peers import peer_of

CLOSE_TIMEOUT_S = 1.0  # for responses that are still being sent when the daemon exits
ACCEPT_TURNS = 4  # of the loop, until a client that asyncio has accepted is among the connections

log = structlog.get_logger()


@asynccontextmanager
async def serve(
    endpoints: Sequence[Endpoint],
    context: CommandContext,
    timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
    until_adopted: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[None]:
    """Answers at every endpoint; each has an application of its own, as each demands another login or none.

    `until_adopted`: what every answer waits for.
    """
    clients, listeners, pages = Connections(timeouts), list[LastingListener](), LivePages(context)
    lanes = Lanes(Turns(), Turns())
    try:
        for endpoint in endpoints:
            application = _Application(endpoint, context, pages, lanes, until_adopted)
            listeners.append(LastingListener(endpoint, partial(clients.listen, application=application)))
            await listeners[-1].begin()
        yield
    finally:
        for listener in listeners:
            listener.stop_accepting()
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for listener in listeners:
            listener.close()
        await clients.close(CLOSE_TIMEOUT_S)


class Lanes(NamedTuple):
    """Turns of clients that only wait for each other."""

    privileged: Turns
    others: Turns


class _Application:
    """Decides who may come in at one endpoint, and answers them."""

    def __init__(
        self,
        endpoint: Endpoint,
        context: CommandContext,
        pages: LivePages,
        lanes: Lanes,
        until_adopted: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._until_adopted = until_adopted
        self._lanes = lanes
        self._endpoint = endpoint
        self._context = context
        self._routes = web.Routes()
        for method, path, handler in (
            ("POST", "/api/v1/each", self._each),
            ("POST", "/api/v1/{command}", self._command),
            ("GET", "/api/v1/tail", partial(tail.respond, context=context)),
            ("GET", "/api/v1/events", partial(events.respond, context=context)),
            ("GET", "/metrics", self._metrics),
            ("GET", "/openapi.json", self._openapi),
        ):
            self._routes.add(method, path, handler)
        self._routes.add("GET", "/page/live", pages.respond)
        files.add_routes(self._routes)
        routes.add_routes(self._routes, context, self._caller, self._take_turn)

    async def admit(self, request: web.Request) -> web.Response | None:
        """Refuses web pages, and clients without the login where there is one; None: the client may come in."""
        if not _is_of_own_page(request):
            return _refuse(request, Code.FORBIDDEN, "requests from web pages of other servers are refused")
        if self._endpoint.hosts is not None and (host := _host_of(request)) not in self._endpoint.hosts:
            return _refuse(request, Code.FORBIDDEN, f"this server is not called {host!r:.80}")
        if self._endpoint.login is None:
            return None
        try:
            client = access.client_of(request.connection, request.remote)
            is_admitted = await self._endpoint.login.is_valid(request.headers.get("authorization"), client)
        except access.MalformedCredentials as error:
            return _error(Code.BAD_ARGUMENTS, f"cannot read the Authorization header: {error}")
        except access.TooManyGuesses:
            text = "too many wrong passwords came from this client; wait a minute, then give the right one"
            _log_refused(request, "too many wrong passwords")
            refused = web.error_response(HTTPStatus.TOO_MANY_REQUESTS, Code.UNAUTHORIZED.name, text)
            return replace(refused, headers={"Retry-After": str(math.ceil(access.GUESS_EVERY_S))})
        if is_admitted:
            return None
        text = "authentication failed: user name and password are missing or wrong"
        refused = _refuse(request, Code.UNAUTHORIZED, text, reason="wrong or no password")
        return replace(refused, headers={"WWW-Authenticate": 'Basic realm="default"'})  # Supervisor's realm

    async def answer(self, request: web.Request) -> web.Response:
        """The response to an admitted request; errors become JSON."""
        try:
            if self._until_adopted is not None:
                await self._until_adopted()
            await self._take_turn(request)
            return await self._routes.dispatch(request)
        except CommandError as error:
            return _error(error.code, str(error))
        except web.RequestRefused as error:
            code = Code.UNKNOWN_COMMAND.name if error.status == HTTPStatus.NOT_FOUND else error.status.phrase
            remedy = f"; use {error.headers['Allow']}" if "Allow" in error.headers else ""
            return replace(web.error_response(error.status, code, error.status.phrase + remedy), headers=error.headers)
        except Exception as error:
            log.exception("internal.failed", path=request.path)
            return web.error_response(HTTPStatus.INTERNAL_SERVER_ERROR, Code.FAILED.name, internal_error(error))

    # --- the routes ---------------------------------------------------------------------------------------------------

    async def _command(self, request: web.Request) -> web.Response:
        name = request.parameters["command"]
        command = find_command(name)
        if command is None:
            raise CommandError(Code.UNKNOWN_COMMAND, f"there is no command {name!r:.60}")
        # shielded: a command runs to its end even if its client disconnects
        if command.changes:
            change = audit.Change(self._caller(request), name)
            return web.json_response({"result": await asyncio.shield(self._change(request, command, change))})
        return web.json_response({"result": await asyncio.shield(command.run(self._context, _arguments(request)))})

    async def _change(self, request: web.Request, command: Command, change: audit.Change) -> object:
        with audit.audited(change):
            try:
                change.arguments = _arguments(request)
            finally:
                self._require_change(change.caller)  # without the right, that is the error, whatever was sent
            return await command.run(self._context, change.arguments)

    async def _each(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        bulk_request = self._read_bulk_request(request, audit.Change(caller, "each"))
        change = audit.Change(caller, bulk_request.command, bulk_request.arguments)
        return bulk.run_for_each(self._context, bulk_request, change)

    def _read_bulk_request(self, request: web.Request, change: audit.Change) -> bulk.BulkRequest:
        """The request; the audit log gets a line for each of its programs later, or one now if there are none."""
        with audit.audited(change):
            try:
                arguments = _arguments(request)
                change.arguments = {key: arguments[key] for key in ("command", "names") if key in arguments}
                bulk_request = bulk.read_bulk_request(arguments)
                change.command, change.arguments = (
                    bulk_request.command,
                    {**bulk_request.arguments, "names": list(bulk_request.names)},
                )
            finally:
                self._require_change(change.caller)
            change.has_line_per_program = bool(bulk_request.names)
            return bulk_request

    async def _metrics(self, request: web.Request) -> web.Response:
        sample, accept = sampling.take_sample(self._context), request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(page.exposition, sample, accept)
        return web.Response(text, content_type=content_type)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(openapi.description))

    # --- who asks -----------------------------------------------------------------------------------------------------

    async def _take_turn(self, request: web.Request) -> None:
        """Returns in a turn of the event loop in which something may be done for the request."""
        is_privileged = False
        if self._endpoint.is_unix:
            with suppress(OSError):
                is_privileged = peer_of(request.connection).is_trusted
        lane = self._lanes.privileged if is_privileged else self._lanes.others
        await lane.take(access.client_of(request.connection, request.remote), request.path)

    def _require_change(self, caller: audit.Caller) -> None:
        caller.require_change_rights()
        if self._context.programs.closing:
            raise CommandError(Code.SHUTDOWN_STATE, "supervisord is shutting down")

    def _caller(self, request: web.Request) -> audit.Caller:
        login = self._endpoint.login
        user = login.username if login is not None else None
        if not self._endpoint.is_unix:
            return audit.Caller(address=request.remote, user=user)
        try:
            peer, refusal = peer_of(request.connection), None
        except OSError as error:
            raise CommandError(Code.FORBIDDEN, "the connection was closed") from error
        if login is None and not access.may_change(peer, self._endpoint.owner):
            refusal = f"uid {peer.uid} may read but not change anything; run the command as root or the socket's owner"
        return audit.Caller(peer.uid, peer.pid, user=user, refusal=refusal)


def _arguments(request: web.Request) -> dict[str, object]:
    """The JSON object in the request's body. Raises CommandError."""
    try:
        arguments = json.loads(request.body.decode()) if request.body else {}
    except (ValueError, RecursionError) as error:
        raise CommandError(Code.BAD_ARGUMENTS, f"the body is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise CommandError(Code.BAD_ARGUMENTS, "the body is not a JSON object")
    return arguments


def _is_of_own_page(request: web.Request) -> bool:
    """Whether a request comes from our own page, or from no page at all (Fetch, 3.1; Fetch Metadata, 2).

    Browsers name the origin with everything that could change something. A link from another site may lead to the page.
    """
    origin = request.headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and host != "" and host == request.headers.get("host")
    site, mode = request.headers.get("sec-fetch-site"), request.headers.get("sec-fetch-mode")
    return site in (None, "same-origin", "none") or (mode == "navigate" and request.path in ("/", "/index.html"))


def _host_of(request: web.Request) -> str:
    """The host a client called, without the port (RFC 9110, 7.2)."""
    host = request.headers.get("host", "")
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()


def _refuse(request: web.Request, code: Code, text: str, reason: str | None = None) -> web.Response:
    """The error, after a line in the log. `reason`: for the log, where it is not `text`."""
    _log_refused(request, reason or text)
    return _error(code, text)


def _log_refused(request: web.Request, reason: str) -> None:
    log.warning("client.refused", path=request.path[: audit.MAX_TEXT], address=request.remote, reason=reason)


def _error(code: Code, message: str) -> web.Response:
    return web.error_response(code.http_status, code.name, message)
