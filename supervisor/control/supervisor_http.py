"""What Supervisor's clients ask for over HTTP: `POST /RPC2`, `GET /logtail/NAME[/CHANNEL]`, `GET /mainlogtail`."""

import asyncio
import codecs
import sys
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from pathlib import Path

import structlog
from aiohttp import hdrs, web

from supervisor.control import groups, rpc, rpc_logs, tail
from supervisor.control.asked import Daemon
from supervisor.control.audit import Caller
from supervisor.control.errors import CommandError
from supervisor.control.faults import FaultCode, RpcFault
from supervisor.control.xmlrpc import Malformed, fault_response, parse_call, response, weight

FIRST_BYTES = 1024  # of a stream: what Supervisor's begins with
SMALL_BYTES = 16 * 1024  # to read or write more than that takes milliseconds, which supervision need not wait for
XML = "defusedxml"  # the library is loaded with the first call, which takes as long
TRUNCATED = b"==> File truncated <==\n"

WhoAsks = Callable[[web.Request], Caller]
"""Who sent the request."""

log = structlog.get_logger()


def add_routes(app: web.Application, daemon: Daemon, who: WhoAsks) -> None:
    """Serves Supervisor's addresses beside our own."""
    app.router.add_route("*", "/RPC2{rest:.*}", partial(_rpc, daemon, who))
    for path in ("/mainlogtail", "/logtail/{name}", "/logtail/{name}/{channel}"):
        app.router.add_route("*", path, partial(_logtail, daemon))


async def _rpc(daemon: Daemon, who: WhoAsks, request: web.Request) -> web.Response:
    if request.method != hdrs.METH_POST:
        raise web.HTTPBadRequest
    if request.content_length is None and hdrs.TRANSFER_ENCODING not in request.headers:
        raise web.HTTPLengthRequired
    body = await request.read()
    try:
        is_quick = len(body) < SMALL_BYTES and XML in sys.modules
        name, parameters = parse_call(body) if is_quick else await asyncio.to_thread(parse_call, body)
    except Malformed as error:
        log.warning("rpc.not_understood", error=str(error))
        raise web.HTTPBadRequest from error
    try:
        # shielded: a client that goes away must not leave a command half done
        result = await asyncio.shield(rpc.call(daemon, who(request), name, parameters))
        answer = response(result) if weight(result) < SMALL_BYTES else await asyncio.to_thread(response, result)
    except RpcFault as fault:
        answer = fault_response(int(fault.code), str(fault))
    except CommandError as error:  # not allowed: no fault of Supervisor's says so, and its client shows the reason
        return web.Response(status=error.code.http_status, reason=str(error), text=f"{error}\n")
    except Exception as error:
        log.exception("internal.failed", method=name)
        text = f"supervisord met an error of its own ({error!r}); its log has the story"
        answer = fault_response(int(FaultCode.FAILED), text)
    return web.Response(body=answer, content_type="text/xml")


async def _logtail(daemon: Daemon, request: web.Request) -> web.StreamResponse:
    """Streams a log: its end, then what is added, until the client goes away."""
    if request.method != hdrs.METH_GET:
        raise web.HTTPBadRequest
    path = _logfile(daemon, request.match_info.get("name"), request.match_info.get("channel", "stdout"))
    if path is None:
        raise web.HTTPNotFound
    try:
        end, position = await daemon.disks.run(path, tail.last, path, FIRST_BYTES)
        modified_at = (await daemon.disks.run(path, path.stat)).st_mtime
    except OSError as error:
        raise web.HTTPNotFound from error
    headers = {
        hdrs.CONTENT_TYPE: "text/plain;charset=utf-8",
        hdrs.LAST_MODIFIED: formatdate(modified_at, usegmt=True),
        "X-Accel-Buffering": "no",
    }
    stream = web.StreamResponse(headers=headers)
    await stream.prepare(request)
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may be cut between two pieces
    await stream.write(whole.decode(end).encode())
    async for added in tail.additions(daemon.disks, path, position, request, TRUNCATED):
        await stream.write(whole.decode(added).encode())
    return stream


def _logfile(daemon: Daemon, name: str | None, channel: str) -> Path | None:
    if name is None:
        return daemon.settings.logfile
    runner = groups.find(daemon.programs, name)
    return rpc_logs.logfile(runner, channel) if runner is not None and channel in ("stdout", "stderr") else None
