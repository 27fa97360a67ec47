"""The control API described: OpenAPI 3.1, made from the command table and the types that answers are made of.

`python -m supervisor.control.openapi` prints it; docs/openapi.json is its copy, and a test compares. Every answer of a
running daemon is checked against it by the tests.
"""

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from supervisor.control import events, noticed, tail
from supervisor.control.commands import TABLE, Command
from supervisor.control.errors import Code
from supervisor.core.facts import State
from supervisor.core.notices import Certainty, Kind
from supervisor.core.occurrences import OURS
from supervisor.host.checkpoint_store import Listed
from supervisor.host.ledger import AttemptRecord
from supervisor.runner.listening import ListenerStanding
from supervisor.runner.programs import Changes
from supervisor.runner.story import KEPT, Scene
from supervisor.runner.training import Training

API_VERSION = "1"  # the one in /api/v1; new keys and commands do not raise it

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


def _object(**properties: Schema) -> Schema:
    """An object in which all of these keys are always there."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _word(words: type[StrEnum]) -> Schema:
    return {"type": "string", "enum": [str(each) for each in words]}


def _of(kind: type) -> Schema:
    """The schema of a dataclass as JSON has it: everything in one piece, every field always there."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    parts = schema.pop("$defs", {})
    plain: Schema = _plain(schema, parts)
    return plain


def _plain(schema: Any, parts: Mapping[str, Schema]) -> Any:
    """Without references, defaults, and the titles and docstrings that are for readers of the code."""
    if isinstance(schema, list):
        return [_plain(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(parts[schema["$ref"].rpartition("/")[2]], parts)
    kept = {
        key: {name: _plain(each, parts) for name, each in value.items()}
        if key == "properties"
        else _plain(value, parts)
        for key, value in schema.items()
        if key not in ("title", "default", "description")
    }
    if "properties" in kept:
        kept["required"] = list(kept["properties"])
    return kept


@dataclass(frozen=True, slots=True)
class Shape:
    """What a command is asked with and gives. `optional`: arguments that may be left out."""

    result: Schema
    required: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def arguments(self) -> Schema:
        """The request's body."""
        schema: Schema = {"type": "object", "properties": {**self.required, **self.optional}}
        return {**schema, "required": list(self.required)} if self.required else schema


def _named(result: Schema, **optional: Schema) -> Shape:
    """A command about one program."""
    return Shape(result, {"name": TEXT}, optional)


NAME = _object(name=TEXT)
SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
UNDESCRIBED = Shape({"type": "object"})
PROGRAM = _object(
    name=TEXT,
    group=TEXT,
    process=TEXT,
    state=_word(State),
    wire_state=TEXT,
    wire_code=WHOLE,
    description=TEXT,
    pid=_or_null(WHOLE),
    started_wall_at=_or_null(NUMBER),
    ended_wall_at=_or_null(NUMBER),
    exit_code=_or_null(WHOLE),
    signal=_or_null(WHOLE),
    reason=_or_null(TEXT),
    says=_or_null(TEXT),
    wanted=FLAG,
    warning=_or_null(TEXT),
    durable_s=_or_null(NUMBER),
    notice=_or_null(
        _object(
            source=TEXT,
            kind=_word(Kind),
            certainty=_word(Certainty),
            deadline_wall_at=_or_null(NUMBER),
            last_flush_s=_or_null(NUMBER),
            waits=FLAG,
            doing=_or_null(TEXT),
        )
    ),
    listener=_or_null(_of(ListenerStanding)),
    stdout_logfile=_or_null(TEXT),
    stderr_logfile=_or_null(TEXT),
    job=_or_null(
        _object(
            attempt=WHOLE,
            checkpoint_dir=TEXT,
            section=_or_null(TEXT),
            hang_limit_s=_or_null(NUMBER),
            suspects=_list(TEXT),
            **_of(Training)["properties"],
        )
    ),
)
NOTICE = _object(
    source=TEXT,
    id=TEXT,
    kind=_word(Kind),
    certainty=_word(Certainty),
    deadline_s=_or_null(NUMBER),
    deadline_wall_at=_or_null(NUMBER),
    is_cancellable=FLAG,
    program=_or_null(TEXT),
    text=TEXT,
)
GIVEN = _object(name=TEXT, id=TEXT, kind=_word(Kind), certainty=_word(Certainty))
_RECORD = _of(AttemptRecord)["properties"]
SPENT: Schema = {"type": "object", "additionalProperties": NUMBER, "description": "Seconds by category."}
ATTEMPT = _object(
    spent_s=SPENT,
    **{f"{key[:-3]}_wall_at" if key in ("started_at", "ended_at") else key: value for key, value in _RECORD.items()},
)

EVENT = _object(
    cursor={**TEXT, "description": "For `since`: what follows this event."},
    serial=_or_null(WHOLE),
    wall_at=_or_null(NUMBER),
    event={**TEXT, "description": f"Its type. {events.MISSED}: `count` events are no longer there, null: not known."},
)

SHAPES: Mapping[str, Shape] = {
    "add": _named(NAME),
    "avail": Shape(
        _object(
            programs=_list(
                _object(name=TEXT, group=TEXT, in_use=FLAG, autostart=FLAG, group_priority=WHOLE, priority=WHOLE)
            )
        )
    ),
    "checkpoint": _named(_object(checkpoint=TEXT, step=WHOLE, size_bytes=WHOLE, save_s=NUMBER)),
    "checkpoints": _named(_object(checkpoints=_list(_of(Listed))), verify={**FLAG, "default": True}),
    "clear": _named(NAME),
    "drill": _named(
        {"anyOf": [GIVEN, _object(name=TEXT, withdrawn=WHOLE)]},
        in_s={**SECONDS, "maximum": noticed.MAX_DRILL_S, "description": "Seconds to the end; needed unless withdrawn."},
        kind={**_word(Kind), "default": str(Kind.DRILL)},
        certainty={**_word(Certainty), "default": str(Certainty.CERTAIN)},
        withdraw={**FLAG, "default": False},
    ),
    "export": _named(_object(path=TEXT, step=WHOLE)),
    "goodput": _named(
        _object(
            name=TEXT,
            since_wall_at=_or_null(NUMBER),
            attempts=WHOLE,
            spent_s=SPENT,
            wanted_s=NUMBER,
            goodput=_or_null(NUMBER),
            lost_steps=WHOLE,
            causes={"type": "object", "additionalProperties": WHOLE},
        )
    ),
    "history": _named(
        _object(attempts=_list(ATTEMPT)), limit={**WHOLE, "minimum": 1, "maximum": 10_000, "default": 20}
    ),
    "notices": Shape(
        _object(
            notices=_list(NOTICE),
            sources=_list(_object(name=TEXT, shortest_s=_or_null(NUMBER), trouble=_or_null(TEXT))),
            shortest_s=_or_null(NUMBER),
        )
    ),
    "pid": Shape(_object(pid=WHOLE)),
    "reload": Shape(_object()),
    "remove": _named(NAME),
    "reread": Shape(_of(Changes)),
    "send_stdin": _named(
        _object(name=TEXT, bytes=WHOLE),
        chars={**TEXT, "description": "Text, sent as UTF-8; either this or base64."},
        base64={**TEXT, "description": "Bytes, in base64."},
    ),
    "shutdown": Shape(_object()),
    "signal": Shape(NAME, {"name": TEXT, "signal": {**TEXT, "description": "Its name, as HUP or SIGHUP, or number."}}),
    "start": _named(NAME, wait={**FLAG, "default": True}),
    "status": Shape(_object(programs=_list(PROGRAM), ledger_error=_or_null(TEXT), hooks_error=_or_null(TEXT))),
    "stop": _named(NAME, wait={**FLAG, "default": True}),
    "story": _named(_object(scenes=_list(_of(Scene))), limit={**WHOLE, "minimum": 1, "maximum": KEPT, "default": 20}),
    "top": Shape(
        _object(
            at_s={**NUMBER, "description": "A clock that starts anywhere, for the difference of two answers."},
            cpus=WHOLE,
            memory_bytes=WHOLE,
            programs=_list(
                _object(
                    name=TEXT,
                    group=TEXT,
                    wire_state=TEXT,
                    pid=_or_null(WHOLE),
                    processes=WHOLE,
                    cpu_s=_or_null(NUMBER),
                    memory_bytes=_or_null(WHOLE),
                    gpu_memory_bytes=_or_null(WHOLE),
                    step=_or_null(WHOLE),
                    step_s=_or_null(NUMBER),
                )
            ),
        )
    ),
    "update": Shape(_object(actions=_list(_object(name=TEXT, action=TEXT))), optional={"names": _or_null(_list(TEXT))}),
    "version": Shape(_object(version=TEXT)),
}


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
            **{f"/api/v1/{name}": {"post": _operation(name, command)} for name, command in TABLE.items()},
            "/api/v1/tail": {"get": _TAIL},
            "/api/v1/events": {"get": _EVENTS},
            "/metrics": {"get": _plain_text("metrics", "The daemon and its programs, for Prometheus.")},
            "/openapi.json": {"get": _DOCUMENT},
        },
        "components": {"schemas": {"Error": _ERROR}},
    }


def _operation(name: str, command: Command) -> Schema:
    shape = SHAPES.get(name, UNDESCRIBED)
    summary = (inspect.getdoc(command.act) or "").partition("\n")[0]
    note = (
        "Changes something: for root, the daemon's user and the socket's owner." if command.changes else "Only reads."
    )
    return {
        "operationId": name,
        "summary": summary,
        "description": note,
        "requestBody": {"required": bool(shape.required), "content": {"application/json": {"schema": shape.arguments}}},
        "responses": {"200": _json("Done.", _object(result=shape.result)), **_REFUSED},
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


_ERROR = _object(
    error=_object(
        code={**TEXT, "description": "One word, such as " + ", ".join(code.name for code in Code) + "."},
        message={**TEXT, "description": "What, why, and what to do."},
    )
)
_REFUSED = {"default": _json("Refused, or failed.", {"$ref": "#/components/schemas/Error"})}
_DOCUMENT = {
    "operationId": "openapi",
    "summary": "This document.",
    "responses": {"200": _json("OpenAPI 3.1.", {"type": "object"})},
}
_TAIL = {
    **_plain_text("tail", "The last bytes of a program's log, or with the name supervisord of the daemon's own."),
    "parameters": [
        {"name": name, "in": "query", "required": name == "name", "schema": schema}
        for name, schema in {
            "name": TEXT,
            "channel": {"type": "string", "enum": ["stdout", "stderr"], "default": "stdout"},
            "bytes": {"type": "integer", "minimum": 0, "maximum": tail.MAX_BYTES, "default": tail.DEFAULT_BYTES},
            "follow": {"type": "string", "enum": ["0", "1"], "default": "0", "description": "1: the answer goes on."},
        }.items()
    ],
}


_EVENTS = {
    "operationId": "events",
    "summary": "What happens, as it happens: one JSON object a line.",
    "description": "A watcher that reads too slowly misses the oldest events, and is told how many.",
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": {**TEXT, "description": text}}
        for name, text in {
            "since": f"The cursor of an event: what followed it; {events.START}: all that is kept. Left out: what is "
            "to come.",
            "program": "Names of programs or groups, separated by commas.",
            "kind": "Event types, separated by commas: Supervisor's, as PROCESS_STATE, "
            + ", ".join(sorted(OURS.values())),
            "follow": "0: the answer ends at the present.",
        }.items()
    ],
    "responses": {
        "200": {"description": "The events.", "content": {"application/x-ndjson": {"schema": EVENT}}},
        **_REFUSED,
    },
}


def main() -> int:
    """Prints the document."""
    json.dump(description(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
