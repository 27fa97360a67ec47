"""The control socket: HTTP on a unix socket; JSON for our own clients, XML-RPC for Supervisor's.

`POST /api/v1/COMMAND` with a JSON object gives `{"result": …}` or `{"error": {"code": …, "message": …}}`;
`GET /api/v1/tail` gives the end of a log; `GET /metrics` is for Prometheus, `GET /openapi.json` describes all this.
What Supervisor's clients ask for is in supervisor_http.py.
Nothing changes by GET, and requests from a browser's page are refused.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import web

from supervisor.control import access, metrics, openapi, sampling, supervisor_http, tail
from supervisor.control.asked import Daemon
from supervisor.control.commands import TABLE
from supervisor.control.errors import Code, CommandError

MAX_BODY_BYTES = 1 << 20  # commands are short; a client that sends more is not one of ours
KEEP_ALIVE_S = 30.0  # how long a client may sit on an idle connection

log = structlog.get_logger()

DAEMON = web.AppKey("daemon", Daemon)
OWNER = web.AppKey("owner", int)


class ListenError(Exception):
    """The control socket can't be opened; the text says why and what to do."""


async def serve(path: Path, mode: int, owner: tuple[int, int] | None, daemon: Daemon) -> web.AppRunner:
    """Opens the socket with its mode and owner and answers on it until the runner's `cleanup`. Raises ListenError."""
    listener = _listen(path, mode, owner)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json, _refuse_web_pages])
    app[DAEMON], app[OWNER] = daemon, owner[0] if owner else os.geteuid()
    app.router.add_post("/api/v1/{command}", _command)
    app.router.add_get("/api/v1/tail", _tail)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/openapi.json", _openapi)
    supervisor_http.add_routes(app, daemon, _require_right)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # tracebacks for what a client sends are no news
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=KEEP_ALIVE_S,
        shutdown_timeout=1.0,
        handler_cancellation=True,
    )
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


def _listen(path: Path, mode: int, owner: tuple[int, int] | None) -> socket.socket:
    """Binds beside the final name, sets mode and owner, then renames: nobody can connect under a looser mode."""
    if _answers(path):
        raise ListenError(f"cannot listen on {path}: another program listens there; stop it, or use another file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        listener.bind(str(temporary))
        temporary.chmod(mode)
        if owner is not None:
            os.chown(temporary, *owner)
        listener.listen(128)
        listener.setblocking(False)
        temporary.rename(path)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {path}: {error.strerror or error}; "
            f"[unix_http_server] file must be in a folder this user can write, and shorter than 100 bytes"
        ) from error
    return listener


def _answers(path: Path) -> bool:
    """Whether somebody listens on a socket file; one that a dead daemon left behind is nobody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return path.is_socket()
        return True


async def _command(request: web.Request) -> web.Response:
    name = request.match_info["command"]
    command = TABLE.get(name)
    if command is None:
        raise CommandError(Code.UNKNOWN_COMMAND, f"there is no command {name!r:.60}")
    daemon = request.app[DAEMON]
    arguments = await _arguments(request)
    if command.changes:
        _require_right(request, name)
        if daemon.programs.closing:
            raise CommandError(Code.SHUTDOWN_STATE, "supervisord is shutting down")
    # shielded: a client that goes away must not leave a command half done
    return web.json_response({"result": await asyncio.shield(command.act(daemon, arguments))})


def _require_right(request: web.Request, command: str) -> None:
    peer = _peer(request)
    if not access.may_change(peer, request.app[OWNER]):
        raise CommandError(
            Code.FORBIDDEN, f"uid {peer.uid} may look but not change things; use root or the socket's owner"
        )
    log.info("command.received", command=command, uid=peer.uid, peer_pid=peer.pid)


def _peer(request: web.Request) -> access.Peer:
    connection = request.transport.get_extra_info("socket") if request.transport else None
    if connection is None:
        raise CommandError(Code.FORBIDDEN, "the connection is gone")
    return access.peer_of(connection)


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


async def _metrics(request: web.Request) -> web.Response:
    taken, accept = sampling.sample(request.app[DAEMON]), request.headers.get("Accept", "")
    text, content_type = await asyncio.to_thread(metrics.exposition, taken, accept)
    return web.Response(body=text, headers={"Content-Type": content_type})


async def _openapi(request: web.Request) -> web.Response:
    return web.json_response(openapi.description())


@web.middleware
async def _refuse_web_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if "Origin" in request.headers:
        raise CommandError(Code.FORBIDDEN, "requests from web pages are refused")
    return await handler(request)


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except CommandError as error:
        return _error(error.code.http_status, error.code.name, str(error))
    except ConnectionResetError:  # the client went away while it was answered
        raise
    except web.HTTPException as error:
        return _error(error.status, Code.UNKNOWN_COMMAND.name if error.status == 404 else error.reason, error.reason)
    except Exception as error:
        log.exception("internal.failed", path=request.path)
        return _error(500, Code.FAILED.name, f"supervisord met an error of its own ({error!r}); its log has the story")


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
