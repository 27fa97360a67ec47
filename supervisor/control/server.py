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
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from aiohttp import hdrs, web

from supervisor.control import access, audit, events, many, sampling, supervisor_http, tail
from supervisor.control.asked import Daemon, Result
from supervisor.control.commands import TABLE, Command
from supervisor.control.connections import MOST_CONNECTIONS, Bound, BoundedSite
from supervisor.control.errors import Code, CommandError
from supervisor.control.schema import Schema

LINGER_S = 1.0  # for the rest of a request that was answered before its end
MAX_BODY_BYTES = 1 << 20  # commands are short; a client that sends more is not one of ours

log = structlog.get_logger()

DAEMON = web.AppKey("daemon", Daemon)
BODY_S = web.AppKey("body_s", float)


@dataclass(frozen=True, slots=True)
class Door:
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


DOOR = web.AppKey("door", Door)


@dataclass(frozen=True, slots=True)
class Patience:
    """What clients may take. `head_s`: seconds until a request's headers are there; `body_s`: for the rest of it.

    `connections`: how many at a time, all doors together. Ours send a request in one go.
    """

    head_s: float = 30.0
    body_s: float = 30.0
    connections: int = MOST_CONNECTIONS


@asynccontextmanager
async def serve(doors: Sequence[Door], daemon: Daemon, patience: Patience = Patience()) -> AsyncIterator[None]:
    """Answers at every door, each with a server of its own: what it asks of a client no other door decides."""
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # tracebacks for what a client sends are no news
    bound, runners = Bound(patience.connections), list[web.AppRunner]()
    try:
        for door in doors:
            runner = web.AppRunner(
                _application(door, daemon, patience),
                access_log=None,
                handle_signals=False,
                keepalive_timeout=patience.head_s,
                lingering_time=LINGER_S,
                shutdown_timeout=1.0,
                handler_cancellation=True,
            )
            runners.append(runner)
            await runner.setup()
            await BoundedSite(runner, door.listener, bound).start()
        yield
    finally:
        await asyncio.gather(*(each.cleanup() for each in runners))


def _application(door: Door, daemon: Daemon, patience: Patience) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json, _admit, _whole])
    app[DAEMON], app[DOOR], app[BODY_S] = daemon, door, patience.body_s
    app.router.add_post("/api/v1/each", _each)
    app.router.add_post("/api/v1/{command}", _command)
    app.router.add_get("/api/v1/tail", _tail)
    app.router.add_get("/api/v1/events", _events)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/openapi.json", _openapi)
    supervisor_http.add_routes(app, daemon, _caller)
    return app


async def _command(request: web.Request) -> web.Response:
    name = request.match_info["command"]
    command = TABLE.get(name)
    if command is None:
        raise CommandError(Code.UNKNOWN_COMMAND, f"there is no command {name!r:.60}")
    # shielded: a client that goes away must not leave a command half done
    if command.changes:
        change = audit.Change(_caller(request), name)
        return web.json_response({"result": await asyncio.shield(_change(request, command, change))})
    arguments = await _arguments(request)
    return web.json_response({"result": await asyncio.shield(command.act(request.app[DAEMON], arguments))})


async def _change(request: web.Request, command: Command, change: audit.Change) -> Result:
    daemon = request.app[DAEMON]
    with audit.written(change):
        try:
            change.arguments = await _arguments(request)
        finally:
            _require_change(daemon, change.caller)  # who may not is told only that, whatever was sent
        return await command.act(daemon, change.arguments)


async def _each(request: web.Request) -> web.StreamResponse:
    daemon, caller = request.app[DAEMON], _caller(request)
    order = await _order(request, daemon, audit.Change(caller, "each"))
    return await many.respond(request, daemon, order, audit.Change(caller, order.command, order.arguments))


async def _order(request: web.Request, daemon: Daemon, whole: audit.Change) -> many.Order:
    """What is asked of many programs. If that is nothing, there is a line for the whole of it; else for each later."""
    with audit.written(whole):
        try:
            asked = await _arguments(request)
            whole.arguments = {key: asked[key] for key in ("command", "names") if key in asked}
            order = many.parse(asked)
            whole.command, whole.arguments = order.command, {**order.arguments, "names": list(order.names)}
        finally:
            _require_change(daemon, whole.caller)
        whole.is_told = bool(order.names)
        return order


def _require_change(daemon: Daemon, caller: audit.Caller) -> None:
    caller.require()
    if daemon.programs.closing:
        raise CommandError(Code.SHUTDOWN_STATE, "supervisord is shutting down")


def _caller(request: web.Request) -> audit.Caller:
    door = request.app[DOOR]
    user = door.login.username if door.login is not None else None
    if not door.is_unix:
        return audit.Caller(address=request.remote, user=user)
    peer, refusal = access.peer_of(_connection(request)), None
    if door.login is None and not access.may_change(peer, door.owner):
        refusal = f"uid {peer.uid} may look but not change things; use root or the socket's owner"
    return audit.Caller(peer.uid, peer.pid, user=user, refusal=refusal)


def _connection(request: web.Request) -> socket.socket:
    connection: socket.socket | None = request.transport.get_extra_info("socket") if request.transport else None
    if connection is None:
        raise CommandError(Code.FORBIDDEN, "the connection is gone")
    return connection


async def _arguments(request: web.Request) -> dict[str, object]:
    body = await request.read()
    try:
        arguments = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise CommandError(Code.BAD_ARGUMENTS, f"the body is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise CommandError(Code.BAD_ARGUMENTS, "the body is not a JSON object")
    return arguments


async def _tail(request: web.Request) -> web.StreamResponse:
    return await tail.respond(request, request.app[DAEMON])


async def _events(request: web.Request) -> web.StreamResponse:
    return await events.respond(request, request.app[DAEMON])


async def _metrics(request: web.Request) -> web.Response:
    taken, accept = sampling.sample(request.app[DAEMON]), request.headers.get("Accept", "")
    text, content_type = await asyncio.to_thread(_exposition, taken, accept)
    return web.Response(body=text, headers={"Content-Type": content_type})


def _exposition(taken: sampling.Sample, accept: str) -> tuple[bytes, str]:
    from supervisor.control import metrics  # the library holds 1 MiB, which few daemons need

    return metrics.exposition(taken, accept)


async def _openapi(request: web.Request) -> web.Response:
    return web.json_response(await asyncio.to_thread(_description))


def _description() -> Schema:
    from supervisor.control import openapi  # made for programmers, and asked for once in a daemon's life if at all

    return openapi.description()


@web.middleware
async def _admit(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """No web pages, and nobody without the login where there is one."""
    if "Origin" in request.headers:
        raise _refused(request, "requests from web pages are refused")
    door = request.app[DOOR]
    if door.hosts is not None and _host_of(request) not in door.hosts:
        raise _refused(request, f"this server is not called {_host_of(request)!r:.80}")
    if door.login is None:
        return await handler(request)
    try:
        admitted = await door.login.admits(request.headers.get(hdrs.AUTHORIZATION))
    except access.Malformed as error:
        raise CommandError(Code.BAD_ARGUMENTS, f"the Authorization header is not understood: {error}") from error
    if not admitted:
        raise CommandError(Code.UNAUTHORIZED, "a user name and a password are needed, and these are not they")
    return await handler(request)


def _refused(request: web.Request, reason: str) -> CommandError:
    log.warning("client.refused", path=request.path[: audit.MAX_TEXT], address=request.remote, reason=reason)
    return CommandError(Code.FORBIDDEN, reason)


@web.middleware
async def _whole(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Nothing is done before the request is there, all of it; one that stops in the middle is dropped."""
    try:
        async with asyncio.timeout(request.app[BODY_S]):
            await request.read()  # kept, for whoever reads it again
    except TimeoutError:
        refused = _error(408, Code.BAD_ARGUMENTS.name, "the request did not come to its end in time")
        refused.force_close()
        return refused
    return await handler(request)


def _host_of(request: web.Request) -> str:
    """The host a client called, without the port (RFC 9110, 7.2)."""
    host = request.headers.get(hdrs.HOST, "")
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except CommandError as error:
        refused = _error(error.code.http_status, error.code.name, str(error))
        if error.code is Code.UNAUTHORIZED:
            log.warning(
                "client.refused",
                path=request.path[: audit.MAX_TEXT],
                address=request.remote,
                reason="wrong or no password",
            )
            refused.headers[hdrs.WWW_AUTHENTICATE] = 'Basic realm="default"'  # Supervisor's realm
            refused.force_close()
        return refused
    except ConnectionResetError:  # the client went away while it was answered
        raise
    except web.HTTPException as error:
        return _error(error.status, Code.UNKNOWN_COMMAND.name if error.status == 404 else error.reason, error.reason)
    except Exception as error:
        log.exception("internal.failed", path=request.path)
        return _error(500, Code.FAILED.name, f"supervisord met an error of its own ({error!r}); its log has the story")


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
