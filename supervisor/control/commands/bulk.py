"""One command for many programs in one request: side by side, each outcome a line of the answer as soon as it is known.

`POST /api/v1/each` with `{"command": "start", "names": ["a", "b"], "arguments": {}}`. Programs start in the order of
the names, and are told to stop in that order. If the client disconnects, the commands run to their end nevertheless.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from supervisor.control.base import audit
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError, internal_error
from supervisor.control.base.json_types import read_request, to_json
from supervisor.control.commands import start_stop
from supervisor.control.commands.table import COMMANDS
from supervisor.control.http import web
from supervisor.runner.fleet.ordering import StartTurn, StartTurns

BULK_COMMANDS = ("checkpoint", "clear", "drill", "export", "rotate", "signal", "start", "stop")
"""The commands that can be given to many programs at once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """A command for many programs. `arguments`: what it takes besides a name."""

    command: str
    names: tuple[str, ...]
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutcomeError:
    """Why a command failed for one program."""

    code: str
    message: str | None


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """How the command ended for one program: with a result or an error."""

    name: str
    result: object
    error: OutcomeError | None


def read_bulk_request(arguments: Mapping[str, Any]) -> BulkRequest:
    """The request in the body of a client's request. Raises CommandError."""
    command, names, extra = arguments.get("command"), arguments.get("names"), arguments.get("arguments", {})
    if not isinstance(command, str):
        raise CommandError(Code.BAD_ARGUMENTS, f"command is {command!r:.80}; it has to be a string")
    if command not in BULK_COMMANDS:
        text = f"{command!r:.60} is not a command for many programs; those are {', '.join(BULK_COMMANDS)}"
        raise CommandError(Code.UNKNOWN_COMMAND, text)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise CommandError(Code.BAD_ARGUMENTS, "names has to be a list of program names")
    if not isinstance(extra, dict) or "name" in extra:
        text = "arguments has to be an object with what the command takes besides a name"
        raise CommandError(Code.BAD_ARGUMENTS, text)
    return BulkRequest(command, tuple(dict.fromkeys(names)), extra)


def run_for_each(context: CommandContext, request: BulkRequest, change: audit.Change) -> web.Response:
    """Begins the command for every program at once; the response streams the outcomes as they come."""
    outcomes = asyncio.Queue[BulkOutcome]()
    turns = StartTurns(len(request.names))
    begin = context.background.start
    tasks = [
        begin(_run_one(context, request, name, turn, change, outcomes))
        for name, turn in zip(request.names, turns, strict=True)
    ]
    begin(_await_all(context, request, tasks))
    begin(turns.release_in_order())
    return web.Response(_lines(outcomes, len(request.names)), content_type="application/x-ndjson")


async def _lines(outcomes: "asyncio.Queue[BulkOutcome]", count: int) -> AsyncGenerator[bytes, None]:
    for _ in range(count):
        yield to_json(await outcomes.get()) + b"\n"


async def _await_all(context: CommandContext, request: BulkRequest, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Of programs that are restarted, all have to have stopped before the first is started again."""
    await asyncio.gather(*tasks)
    if request.command == "stop":
        start_stop.start_if_client_gone(context, request.names)


async def _run_one(
    context: CommandContext,
    request: BulkRequest,
    name: str,
    turn: StartTurn,
    change: audit.Change,
    outcomes: "asyncio.Queue[BulkOutcome]",
) -> None:
    arguments = {**request.arguments, "name": name}
    result: object = None
    code, text = audit.UNFINISHED, None
    try:
        if request.command == "start":
            result = await start_stop.start(context, read_request(start_stop.StartRequest, arguments), turn)
        elif request.command == "stop":
            turn.give_up()
            result = await start_stop.stop(context, read_request(start_stop.StopRequest, arguments))
        else:
            turn.give_up()
            result = await COMMANDS[request.command].run(context, arguments)
        code = audit.OK
    except CommandError as error:
        code, text = error.code.name, str(error)
    except Exception as error:
        log.exception("internal.failed", command=request.command, program=name)
        code, text = Code.FAILED.name, internal_error(error)
    finally:
        turn.give_up()
        change.record(code, text, name)
    outcomes.put_nowait(BulkOutcome(name, result, None if code == audit.OK else OutcomeError(code, text)))
