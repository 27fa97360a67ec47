"""The description of the control API: OpenAPI 3.1, made from the command table and the types of requests and answers.

`python -m supervisor.control.openapi` prints it; docs/openapi.json is its copy, and a test compares them. The tests
check every answer of a running daemon against it.
"""

import inspect
import json
import sys
from functools import cache

from supervisor.control.base.errors import Code
from supervisor.control.base.json_types import TEXT, Schema, object_, request_schema, schema_of
from supervisor.control.commands import bulk
from supervisor.control.commands.table import ALIASES, COMMANDS, Command
from supervisor.control.streams import events, tail
from supervisor.core.listeners.event_types import OURS

API_VERSION = "1"  # the one in /api/v1; new keys and commands do not raise it


@cache
def description() -> Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "stepkeeper control API",
            "version": API_VERSION,
            "description": "HTTP on the daemon's unix socket. Whoever may connect may read; what changes things is for "
            "root, the daemon's user and the socket's owner. Unknown keys of an answer are to be ignored; null is not "
            "known; times are Unix time where a name has `wall` in it, durations seconds, sizes bytes.",
        },
        "servers": [{"url": "http://localhost", "description": "over the socket of [unix_http_server]"}],
        "paths": {
            **{f"/api/v1/{name}": {"post": _operation(name, command)} for name, command in _by_name().items()},
            "/api/v1/each": {"post": _EACH},
            "/api/v1/tail": {"get": _TAIL},
            "/api/v1/events": {"get": _EVENTS},
            "/metrics": {"get": _plain_text("metrics", "The daemon and its programs, for Prometheus.")},
            "/openapi.json": {"get": _DOCUMENT},
        },
        "components": {"schemas": {"Error": _ERROR}},
    }


def _by_name() -> dict[str, Command]:
    aliases = {alias: COMMANDS[name] for alias, name in ALIASES.items()}
    return dict(sorted({**COMMANDS, **aliases}.items()))


def _operation(name: str, command: Command) -> Schema:
    summary = " ".join((inspect.getdoc(command.act) or "").partition("\n\n")[0].split())
    rights = (
        "Changes something: for root, the daemon's user and the socket's owner." if command.changes else "Only reads."
    )
    arguments = request_schema(command.request_type)
    return {
        "operationId": name,
        "summary": summary,
        "description": rights if name in COMMANDS else f"An earlier name of {ALIASES[name]}. {rights}",
        "requestBody": {"required": "required" in arguments, "content": {"application/json": {"schema": arguments}}},
        "responses": {"200": _json("Done.", object_(result=schema_of(command.answer_type))), **_REFUSED},
    }


def _json(text: str, schema: Schema) -> Schema:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _plain_text(name: str, summary: str) -> Schema:
    content = {"text/plain": {"schema": TEXT}}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": "The text.", "content": content}, **_REFUSED},
    }


_ERROR = object_(
    error=object_(
        code={**TEXT, "description": "One word, such as " + ", ".join(code.name for code in Code) + "."},
        message={**TEXT, "description": "What, why, and what to do."},
    )
)
_REFUSED = {"default": _json("Refused, or failed.", {"$ref": "#/components/schemas/Error"})}
OUTCOME = object_(
    name=TEXT,
    result={"anyOf": [{**object_(), "description": "What the command gives."}, {"type": "null"}]},
    error=schema_of(bulk.OutcomeError | None),
)
_EVENT = object_(
    cursor={**TEXT, "description": "For `since`, to get what followed this event."},
    serial=schema_of(int | None),
    wall_at=schema_of(float | None),
    event={
        **TEXT,
        "description": f"Its type. {events.MISSED}: `count` events are no longer kept; null: the number is unknown.",
    },
)
_DOCUMENT = {
    "operationId": "openapi",
    "summary": "This document.",
    "responses": {"200": _json("OpenAPI 3.1.", {"type": "object"})},
}
_TAIL = {
    **_plain_text("tail", "The last bytes of a program's log, or with the name supervisord of the daemon's own log."),
    "parameters": [
        {"name": name, "in": "query", "required": name == "name", "schema": schema}
        for name, schema in {
            "name": TEXT,
            "channel": {"type": "string", "enum": ["stdout", "stderr"], "default": "stdout"},
            "bytes": {"type": "integer", "minimum": 0, "maximum": tail.MAX_BYTES, "default": tail.DEFAULT_BYTES},
            "follow": {
                "type": "string",
                "enum": ["0", "1"],
                "default": "0",
                "description": "1: goes on as the log grows.",
            },
            "attempt": {
                "type": "integer",
                "minimum": 0,
                "description": "Only what this attempt printed; not together with follow.",
            },
        }.items()
    ],
}


_EACH = {
    "operationId": "each",
    "summary": "Runs a command for many programs, side by side: one JSON object a line for each outcome.",
    "description": "Changes something: for root, the daemon's user and the socket's owner. Programs start in the "
    "order of the names, and are told to stop in that order.",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "command": {"type": "string", "enum": list(bulk.BULK_COMMANDS)},
                        "names": {"type": "array", "items": TEXT},
                        "arguments": {"type": "object", "description": "What the command takes besides a name."},
                    },
                    "required": ["command", "names"],
                }
            }
        },
    },
    "responses": {
        "200": {"description": "The outcomes.", "content": {"application/x-ndjson": {"schema": OUTCOME}}},
        **_REFUSED,
    },
}


_EVENTS = {
    "operationId": "events",
    "summary": "Events as they happen: one JSON object a line.",
    "description": "A client that reads too slowly misses the oldest events, and is told how many.",
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": {**TEXT, "description": text}}
        for name, text in {
            "since": f"The cursor of an event: gives what followed it; {events.START}: all that is kept. Left out: "
            "only new events.",
            "program": "Names of programs or groups, separated by commas.",
            "kind": "Event types, separated by commas: Supervisor's, as PROCESS_STATE, "
            + ", ".join(sorted(set(OURS.values()))),
            "follow": "0: the answer ends with the newest event.",
        }.items()
    ],
    "responses": {
        "200": {"description": "The events.", "content": {"application/x-ndjson": {"schema": _EVENT}}},
        **_REFUSED,
    },
}


def main() -> int:
    """Prints the document."""
    json.dump(description(), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
