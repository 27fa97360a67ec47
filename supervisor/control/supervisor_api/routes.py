"""What Supervisor's clients ask for over HTTP: `POST /RPC2`, `GET /logtail/NAME[/CHANNEL]`, `GET /mainlogtail`."""

import asyncio
import codecs
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path

import structlog

from supervisor.control.base.audit import Caller
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import CommandError, internal_error
from supervisor.control.commands import groups
from supervisor.control.http import web
from supervisor.control.streams import tail
from supervisor.control.supervisor_api import logs, methods
from supervisor.control.supervisor_api.faults import FaultCode, RpcFault
from supervisor.control.supervisor_api.xmlrpc import (
    MalformedXml,
    fault_response,
    parse_call,
    response,
    text_size,
)

FIRST_BYTES = 1024  # of a stream: what Supervisor's begins with
SMALL_BYTES = 16 * 1024  # to read or write more than that takes milliseconds, which supervision need not wait for
XML = "defusedxml"  # the library is loaded with the first call, which takes as long
TRUNCATED = b"==> File truncated <==\n"

WhoAsks = Callable[[web.Request], Caller]
"""Who sent the request."""

log = structlog.get_logger()


def add_routes(routes: web.Routes, context: CommandContext, who: WhoAsks) -> None:
    """Serves Supervisor's addresses beside our own."""
    routes.add(None, "/RPC2*", partial(_rpc, context, who))
    for path in ("/mainlogtail", "/logtail/{name}", "/logtail/{name}/{channel}"):
        routes.add(None, path, partial(_logtail, context))


async def _rpc(context: CommandContext, who: WhoAsks, request: web.Request) -> web.Response:
    if request.method != "POST":
        raise web.RequestRefused(HTTPStatus.BAD_REQUEST)
    if not request.headers.keys() & {"content-length", "transfer-encoding"}:
        raise web.RequestRefused(HTTPStatus.LENGTH_REQUIRED)
    body = request.body
    try:
        is_quick = len(body) < SMALL_BYTES and XML in sys.modules
        name, parameters = parse_call(body) if is_quick else await asyncio.to_thread(parse_call, body)
    except MalformedXml as error:
        log.warning("rpc.not_understood", error=str(error))
        raise web.RequestRefused(HTTPStatus.BAD_REQUEST) from error
    try:
        # shielded: a client that goes away must not leave a command half done
        result = await asyncio.shield(methods.call(context, who(request), name, parameters))
        answer = response(result) if text_size(result) < SMALL_BYTES else await asyncio.to_thread(response, result)
    except RpcFault as fault:
        answer = fault_response(int(fault.code), str(fault))
    except CommandError as error:  # not allowed: no fault of Supervisor's says so, and its client shows the reason
        return web.Response(
            f"{error}\n".encode(), error.code.http_status, "text/plain; charset=utf-8", reason=str(error)
        )
    except Exception as error:
        log.exception("internal.failed", method=name)
        answer = fault_response(int(FaultCode.FAILED), internal_error(error))
    return web.Response(answer, content_type="text/xml")


async def _logtail(context: CommandContext, request: web.Request) -> web.Response:
    """Streams a log: its end, then what is added, until the client goes away."""
    if request.method != "GET":
        raise web.RequestRefused(HTTPStatus.BAD_REQUEST)
    path = _logfile(context, request.parameters.get("name"), request.parameters.get("channel", "stdout"))
    if path is None:
        raise web.RequestRefused(HTTPStatus.NOT_FOUND)
    try:
        end, position = await context.disks.run(path, tail.read_end, path, FIRST_BYTES)
        modified_at = (await context.disks.run(path, path.stat)).st_mtime
    except OSError as error:
        raise web.RequestRefused(HTTPStatus.NOT_FOUND) from error
    headers = {"Last-Modified": web.http_date(modified_at), "X-Accel-Buffering": "no"}
    return web.Response(
        _followed(context, path, end, position), content_type="text/plain;charset=utf-8", headers=headers
    )


async def _followed(
    context: CommandContext, path: Path, end: bytes, position: tuple[int, int]
) -> AsyncGenerator[bytes, None]:
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may be cut between two pieces
    yield whole.decode(end).encode()
    async for added in tail.follow(context.disks, path, position, TRUNCATED):
        yield whole.decode(added).encode()


def _logfile(context: CommandContext, name: str | None, channel: str) -> Path | None:
    if name is None:
        return context.settings.logfile
    runner = groups.find(context.programs, name)
    return logs.logfile(runner, channel) if runner is not None and channel in ("stdout", "stderr") else None
