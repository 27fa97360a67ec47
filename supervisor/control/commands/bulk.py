"""One command for many programs in one request: side by side, each outcome a line of the answer as soon as it comes.

`POST /api/v1/each` with `{"command": "start", "names": ["a", "b"], "arguments": {}}`. What starts does so in the order
of the names, and what stops is told to in that order. A client that goes away leaves nothing half done.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from supervisor.control.base import audit
from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    text_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import start_stop
from supervisor.control.commands.table import TABLE
from supervisor.control.http import web
from supervisor.runner.fleet.ordering import StartTurn, StartTurns

COMMANDS = ("checkpoint", "clear", "drill", "export", "signal", "start", "stop")
"""Those that many programs may be asked at once."""

log = structlog.get_logger()

_under_way: set[asyncio.Task[None]] = set()  # the loop keeps weak references only


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """What is asked of whom."""

    command: str
    names: tuple[str, ...]
    arguments: Mapping[str, Any]


def parse(asked: Arguments) -> BulkRequest:
    """Raises CommandError."""
    command, names, arguments = text_in(asked, "command"), asked.get("names"), asked.get("arguments", {})
    if command not in COMMANDS:
        raise CommandError(Code.UNKNOWN_COMMAND, f"{command!r:.60} is none of {', '.join(COMMANDS)}")
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CommandError(Code.BAD_ARGUMENTS, "names is not a list of names of programs")
    if not isinstance(arguments, dict) or "name" in arguments:
        raise CommandError(Code.BAD_ARGUMENTS, "arguments is not an object with what the command takes besides a name")
    return BulkRequest(command, tuple(dict.fromkeys(names)), arguments)


def respond(context: CommandContext, order: BulkRequest, change: audit.Change) -> web.Response:
    """Begins all of it; the answer tells how each ended."""
    return web.Response(_lines(run_each(context, order, change)), content_type="application/x-ndjson")


async def _lines(outcomes: AsyncGenerator[Result, None]) -> AsyncGenerator[bytes, None]:
    async for outcome in outcomes:
        yield json.dumps(outcome).encode() + b"\n"


def run_each(context: CommandContext, order: BulkRequest, change: audit.Change) -> AsyncGenerator[Result, None]:
    """Begins all of it at once; outcomes in the order they come: `name`, and `result` or `error`, the other null."""
    came: asyncio.Queue[Result] = asyncio.Queue()
    turns = StartTurns(len(order.names))
    for name, turn in zip(order.names, turns, strict=True):
        _keep_running(asyncio.create_task(_run_one(context, order, name, turn, change, came)))
    _keep_running(asyncio.create_task(turns.release_in_order()))
    return _outcomes(came, len(order.names))


async def _outcomes(came: "asyncio.Queue[Result]", count: int) -> AsyncGenerator[Result, None]:
    for _ in range(count):
        yield await came.get()


async def _run_one(
    context: CommandContext,
    order: BulkRequest,
    name: str,
    turn: StartTurn,
    change: audit.Change,
    came: "asyncio.Queue[Result]",
) -> None:
    arguments = {**order.arguments, "name": name}
    result, code, text = None, audit.UNFINISHED, None
    try:
        if order.command == "start":
            result = await start_stop.start_in_turn(context, arguments, turn)
        else:
            turn.give_up()
            result = await TABLE[order.command].act(context, arguments)
        code = audit.OK
    except CommandError as error:
        code, text = error.code.name, str(error)
    except Exception as error:
        log.exception("internal.failed", command=order.command, program=name)
        code = Code.FAILED.name
        text = f"supervisord met an error of its own ({error!r}); its log has the story"
    finally:
        change.record(code, text, name)
    came.put_nowait(
        {"name": name, "result": result, "error": None if code == audit.OK else {"code": code, "message": text}}
    )


def _keep_running(task: asyncio.Task[None]) -> None:
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
