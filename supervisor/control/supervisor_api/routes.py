"""The HTTP addresses that Supervisor's clients use: `POST /RPC2`, `GET /logtail/NAME[/CHANNEL]`, `GET /mainlogtail`."""

import asyncio
import codecs
from collections.abc import AsyncGenerator, Awaitable, Callable
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
from supervisor.control.supervisor_api.xmlrpc import MalformedXml, fault_response, parse_call, response, text_size
from supervisor.host.logs.files.positions import LogPosition

FIRST_BYTES = 1024  # of a log, with which Supervisor's stream begins
SMALL_BYTES = 16 * 1024  # larger XML takes milliseconds, so that a thread handles it
TRUNCATED = b"==> File truncated <==\n"

FindCaller = Callable[[web.Request], Caller]
"""Tells who sent a request."""

log = structlog.get_logger()


TakeTurn = Callable[[web.Request], Awaitable[None]]
"""Returns in the turn of the event loop in which something may be done for a request."""


def add_routes(routes: web.Routes, context: CommandContext, find_caller: FindCaller, take_turn: TakeTurn) -> None:
    """Adds Supervisor's addresses to our own."""
    routes.add(None, "/RPC2*", partial(_rpc, context, find_caller, take_turn))
    for path in ("/mainlogtail", "/logtail/{name}", "/logtail/{name}/{channel}"):
        routes.add(None, path, partial(_logtail, context))


async def _rpc(
    context: CommandContext, find_caller: FindCaller, take_turn: TakeTurn, request: web.Request
) -> web.Response:
    if request.method != "POST":
        raise web.RequestRefused(HTTPStatus.BAD_REQUEST)
    if not request.headers.keys() & {"content-length", "transfer-encoding"}:
        raise web.RequestRefused(HTTPStatus.LENGTH_REQUIRED)
    body = request.body
    try:
        is_small = len(body) < SMALL_BYTES
        name, parameters = parse_call(body) if is_small else await asyncio.to_thread(parse_call, body)
    except MalformedXml as error:
        log.warning("rpc.not_understood", error=str(error))
        raise web.RequestRefused(HTTPStatus.BAD_REQUEST) from error
    try:
        caller = find_caller(request)
        calling = methods.call(context, caller, name, parameters, partial(take_turn, request))
        # a command runs to its end even if its client disconnects; of a multicall that can only read, the one call does
        leaves_nothing = name == methods.MULTICALL and caller.refusal is not None
        result = await (calling if leaves_nothing else asyncio.shield(calling))
        answer = response(result) if text_size(result) < SMALL_BYTES else await asyncio.to_thread(response, result)
    except RpcFault as fault:
        answer = fault_response(int(fault.code), str(fault))
    except (
        CommandError
    ) as error:  # not permitted: Supervisor has no fault for it, and its client shows the reason phrase
        return web.Response(
            f"{error}\n".encode(), error.code.http_status, "text/plain; charset=utf-8", reason=str(error)
        )
    except Exception as error:
        log.exception("internal.failed", method=name)
        answer = fault_response(int(FaultCode.FAILED), internal_error(error))
    return web.Response(answer, content_type="text/xml")


async def _logtail(context: CommandContext, request: web.Request) -> web.Response:
    """Streams a log: its end, then what is added, until the client disconnects."""
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
    context: CommandContext, path: Path, end: bytes, position: LogPosition
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
