"""The control server: HTTP on a unix socket and on TCP; JSON for our own clients, XML-RPC for Supervisor's.

`POST /api/v1/COMMAND` with a JSON object gives `{"result": …}` or `{"error": {"code": …, "message": …}}`;
`POST /api/v1/each` does one for many programs, a line each; `GET /api/v1/tail` gives the end of a log,
`GET /api/v1/events` what happens, a line each; `GET /metrics` is for Prometheus, `GET /openapi.json` describes all
this.
What Supervisor's clients ask for is in supervisor_http.py.
Nothing changes by GET, and requests from a browser's page are refused.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus

import structlog

from supervisor.control.base import audit
from supervisor.control.base.context import CommandContext, Result
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import bulk
from supervisor.control.commands.table import TABLE, Command
from supervisor.control.http import access, web
from supervisor.control.http.connections import DEFAULT_TIMEOUTS, ClientTimeouts, Connections
from supervisor.control.metrics import sampling
from supervisor.control.openapi.schema import Schema
from supervisor.control.streams import events, tail
from supervisor.control.supervisor_api import routes

LEAVE_S = 1.0  # for answers on their way when the daemon leaves

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A socket that clients come in by. `owner`: the uid that may change things besides root and the daemon's own.

    With a `login`, whoever has it may do everything, and nobody else may come in. `hosts`: what a TCP client without
    one may call us, so that no web page gets here by a name of its own that leads to this host; None: anything.
    """

    listener: socket.socket
    owner: int
    login: access.Login | None = None
    hosts: frozenset[str] | None = None

    @property
    def is_unix(self) -> bool:
        """Whether the kernel says who is at the other end."""
        return self.listener.family == socket.AF_UNIX


@asynccontextmanager
async def serve(
    endpoints: Sequence[Endpoint], context: CommandContext, timeouts: ClientTimeouts = DEFAULT_TIMEOUTS
) -> AsyncIterator[None]:
    """Answers at every door, each with an application of its own: what it asks of a client no other door decides."""
    clients, servers = Connections(timeouts), list[asyncio.Server]()
    try:
        for endpoint in endpoints:
            servers.append(await clients.listen(endpoint.listener, _Application(endpoint, context)))
        yield
    finally:
        for server in servers:
            server.close()
        await clients.close(LEAVE_S)


class _Application:
    """What is answered at one door."""

    def __init__(self, endpoint: Endpoint, context: CommandContext) -> None:
        self._endpoint = endpoint
        self._context = context
        self._routes = web.Routes()
        for method, path, handler in (
            ("POST", "/api/v1/each", self._each),
            ("POST", "/api/v1/{command}", self._command),
            ("GET", "/api/v1/tail", self._tail),
            ("GET", "/api/v1/events", self._events),
            ("GET", "/metrics", self._metrics),
            ("GET", "/openapi.json", self._openapi),
        ):
            self._routes.add(method, path, handler)
        routes.add_routes(self._routes, context, self._caller)

    async def admit(self, request: web.Request) -> web.Response | None:
        """No web pages, and nobody without the login where there is one."""
        if "origin" in request.headers:
            return _refused(request, Code.FORBIDDEN, "requests from web pages are refused")
        if self._endpoint.hosts is not None and (host := _host_of(request)) not in self._endpoint.hosts:
            return _refused(request, Code.FORBIDDEN, f"this server is not called {host!r:.80}")
        if self._endpoint.login is None:
            return None
        try:
            admitted = await self._endpoint.login.is_valid(request.headers.get("authorization"))
        except access.MalformedCredentials as error:
            return _error(Code.BAD_ARGUMENTS, f"the Authorization header is not understood: {error}")
        if admitted:
            return None
        text = "a user name and a password are needed, and these are not they"
        refused = _refused(request, Code.UNAUTHORIZED, text, reason="wrong or no password")
        return replace(refused, headers={"WWW-Authenticate": 'Basic realm="default"'})  # Supervisor's realm

    async def answer(self, request: web.Request) -> web.Response:
        """Whatever happens, an answer; errors as JSON."""
        try:
            return await self._routes.dispatch(request)
        except CommandError as error:
            return _error(error.code, str(error))
        except web.RequestRefused as error:
            code = Code.UNKNOWN_COMMAND.name if error.status == HTTPStatus.NOT_FOUND else error.status.phrase
            return replace(web.error_response(error.status, code, error.status.phrase), headers=error.headers)
        except Exception as error:
            log.exception("internal.failed", path=request.path)
            text = f"supervisord met an error of its own ({error!r}); its log has the story"
            return web.error_response(HTTPStatus.INTERNAL_SERVER_ERROR, Code.FAILED.name, text)

    # --- the routes ---------------------------------------------------------------------------------------------------

    async def _command(self, request: web.Request) -> web.Response:
        name = request.parameters["command"]
        command = TABLE.get(name)
        if command is None:
            raise CommandError(Code.UNKNOWN_COMMAND, f"there is no command {name!r:.60}")
        # shielded: a client that goes away must not leave a command half done
        if command.changes:
            change = audit.Change(self._caller(request), name)
            return web.json_response({"result": await asyncio.shield(self._change(request, command, change))})
        return web.json_response({"result": await asyncio.shield(command.act(self._context, _arguments(request)))})

    async def _change(self, request: web.Request, command: Command, change: audit.Change) -> Result:
        with audit.audited(change):
            try:
                change.arguments = _arguments(request)
            finally:
                self._require_change(change.caller)  # who may not is told only that, whatever was sent
            return await command.act(self._context, change.arguments)

    async def _each(self, request: web.Request) -> web.Response:
        caller = self._caller(request)
        order = self._order(request, audit.Change(caller, "each"))
        return bulk.respond(self._context, order, audit.Change(caller, order.command, order.arguments))

    def _order(self, request: web.Request, whole: audit.Change) -> bulk.BulkRequest:
        """What is asked of many programs. If that is nothing, there is a line for all of it; else for each later."""
        with audit.audited(whole):
            try:
                asked = _arguments(request)
                whole.arguments = {key: asked[key] for key in ("command", "names") if key in asked}
                order = bulk.parse(asked)
                whole.command, whole.arguments = order.command, {**order.arguments, "names": list(order.names)}
            finally:
                self._require_change(whole.caller)
            whole.has_line_per_program = bool(order.names)
            return order

    async def _tail(self, request: web.Request) -> web.Response:
        return await tail.respond(request, self._context)

    async def _events(self, request: web.Request) -> web.Response:
        return await events.respond(request, self._context)

    async def _metrics(self, request: web.Request) -> web.Response:
        taken, accept = sampling.sample(self._context), request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(_exposition, taken, accept)
        return web.Response(text, content_type=content_type)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(_description))

    # --- who asks -----------------------------------------------------------------------------------------------------

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
            peer, refusal = access.peer_of(request.connection), None
        except OSError as error:
            raise CommandError(Code.FORBIDDEN, "the connection is gone") from error
        if login is None and not access.may_change(peer, self._endpoint.owner):
            refusal = f"uid {peer.uid} may look but not change things; use root or the socket's owner"
        return audit.Caller(peer.uid, peer.pid, user=user, refusal=refusal)


def _arguments(request: web.Request) -> dict[str, object]:
    try:
        arguments = json.loads(request.body) if request.body else {}
    except (ValueError, RecursionError) as error:
        raise CommandError(Code.BAD_ARGUMENTS, f"the body is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise CommandError(Code.BAD_ARGUMENTS, "the body is not a JSON object")
    return arguments


def _exposition(taken: sampling.Sample, accept: str) -> tuple[bytes, str]:
    from supervisor.control.metrics import page  # the library holds 1 MiB, which few daemons need

    return page.exposition(taken, accept)


def _description() -> Schema:
    from supervisor.control.openapi import (
        description,  # made for programmers, and asked for once in a daemon's life if at all
    )

    return description.description()


def _host_of(request: web.Request) -> str:
    """The host a client called, without the port (RFC 9110, 7.2)."""
    host = request.headers.get("host", "")
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()


def _refused(request: web.Request, code: Code, text: str, reason: str | None = None) -> web.Response:
    """Writes down who was turned away, and why (`reason`; else `text` says it)."""
    log.warning("client.refused", path=request.path[: audit.MAX_TEXT], address=request.remote, reason=reason or text)
    return _error(code, text)


def _error(code: Code, message: str) -> web.Response:
    return web.error_response(code.http_status, code.name, message)
