"""What every command of the API is asked with and gives."""

from collections.abc import Mapping

from supervisor.control.commands import notices
from supervisor.control.openapi.schema import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Schema,
    Shape,
    list_of,
    named,
    object_,
    or_null,
    schema_of,
    word_of,
)
from supervisor.control.streams import events
from supervisor.core.notices.notice import Certainty, NoticeKind
from supervisor.core.program.facts import State
from supervisor.core.program.standby import Kind as Standby
from supervisor.core.program.standby import Stage
from supervisor.host.checkpoint_store import ListedCheckpoint
from supervisor.host.ledger.ledger import AttemptRecord
from supervisor.runner.fleet.programs import Changes
from supervisor.runner.listeners.hub import ListenerStatus
from supervisor.runner.records.timeline import KEPT, TimelineEntry
from supervisor.runner.records.training import TrainingStatus

NAME = object_(name=TEXT)
SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
UNDESCRIBED = Shape({"type": "object"})
PROGRAM = object_(
    name=TEXT,
    group=TEXT,
    process=TEXT,
    group_priority=WHOLE,
    priority=WHOLE,
    state=word_of(State),
    wire_state=TEXT,
    wire_code=WHOLE,
    description=TEXT,
    pid=or_null(WHOLE),
    started_wall_at=or_null(NUMBER),
    ended_wall_at=or_null(NUMBER),
    exit_code=or_null(WHOLE),
    signal=or_null(WHOLE),
    reason=or_null(TEXT),
    says=or_null(TEXT),
    wanted=FLAG,
    warning=or_null(TEXT),
    durable_s=or_null(NUMBER),
    notice=or_null(
        object_(
            source=TEXT,
            kind=word_of(NoticeKind),
            certainty=word_of(Certainty),
            deadline_wall_at=or_null(NUMBER),
            last_flush_s=or_null(NUMBER),
            waits=FLAG,
            doing=or_null(TEXT),
        )
    ),
    listener=or_null(schema_of(ListenerStatus)),
    stdout_logfile=or_null(TEXT),
    stderr_logfile=or_null(TEXT),
    job=or_null(
        object_(
            attempt=WHOLE,
            checkpoint_dir=TEXT,
            section=or_null(TEXT),
            hang_limit_s=or_null(NUMBER),
            suspects=list_of(TEXT),
            standby=or_null(
                object_(
                    wanted=word_of(Standby),
                    stage=word_of(Stage),
                    kind=or_null(word_of(Standby)),
                    pid=or_null(WHOLE),
                    memory_bytes=or_null(WHOLE),
                    reason=or_null(TEXT),
                )
            ),
            **schema_of(TrainingStatus)["properties"],
        )
    ),
)
NOTICE = object_(
    source=TEXT,
    id=TEXT,
    kind=word_of(NoticeKind),
    certainty=word_of(Certainty),
    deadline_s=or_null(NUMBER),
    deadline_wall_at=or_null(NUMBER),
    is_cancellable=FLAG,
    program=or_null(TEXT),
    text=TEXT,
)
GIVEN = object_(name=TEXT, id=TEXT, kind=word_of(NoticeKind), certainty=word_of(Certainty))
_RECORD = schema_of(AttemptRecord)["properties"]
SPENT: Schema = {"type": "object", "additionalProperties": NUMBER, "description": "Seconds by category."}
ATTEMPT = object_(
    spent_s=SPENT,
    **{f"{key[:-3]}_wall_at" if key in ("started_at", "ended_at") else key: value for key, value in _RECORD.items()},
)

OUTCOME = object_(
    name=TEXT,
    result=or_null({**object_(), "description": "What the command gives."}),
    error=or_null(object_(code=TEXT, message=or_null(TEXT))),
)
EVENT = object_(
    cursor={**TEXT, "description": "For `since`: what follows this event."},
    serial=or_null(WHOLE),
    wall_at=or_null(NUMBER),
    event={**TEXT, "description": f"Its type. {events.MISSED}: `count` events are no longer there, null: not known."},
)

SHAPES: Mapping[str, Shape] = {
    "add": named(NAME),
    "avail": Shape(
        object_(
            programs=list_of(
                object_(name=TEXT, group=TEXT, in_use=FLAG, autostart=FLAG, group_priority=WHOLE, priority=WHOLE)
            )
        )
    ),
    "checkpoint": named(object_(checkpoint=TEXT, step=WHOLE, size_bytes=WHOLE, save_s=NUMBER)),
    "checkpoints": named(object_(checkpoints=list_of(schema_of(ListedCheckpoint))), verify={**FLAG, "default": True}),
    "clear": named(NAME),
    "drill": named(
        {"anyOf": [GIVEN, object_(name=TEXT, withdrawn=WHOLE)]},
        in_s={**SECONDS, "maximum": notices.MAX_DRILL_S, "description": "Seconds to the end; needed unless withdrawn."},
        kind={**word_of(NoticeKind), "default": str(NoticeKind.DRILL)},
        certainty={**word_of(Certainty), "default": str(Certainty.CERTAIN)},
        withdraw={**FLAG, "default": False},
    ),
    "export": named(object_(path=TEXT, step=WHOLE)),
    "goodput": named(
        object_(
            name=TEXT,
            since_wall_at=or_null(NUMBER),
            attempts=WHOLE,
            spent_s=SPENT,
            wanted_s=NUMBER,
            goodput=or_null(NUMBER),
            lost_steps=WHOLE,
            causes={"type": "object", "additionalProperties": WHOLE},
        )
    ),
    "history": named(
        object_(attempts=list_of(ATTEMPT)), limit={**WHOLE, "minimum": 1, "maximum": 10_000, "default": 20}
    ),
    "notices": Shape(
        object_(
            notices=list_of(NOTICE),
            sources=list_of(object_(name=TEXT, shortest_s=or_null(NUMBER), trouble=or_null(TEXT))),
            shortest_s=or_null(NUMBER),
        )
    ),
    "pid": Shape(object_(pid=WHOLE)),
    "reload": Shape(object_()),
    "remove": named(NAME),
    "reread": Shape(schema_of(Changes)),
    "send_stdin": named(
        object_(name=TEXT, bytes=WHOLE),
        chars={**TEXT, "description": "Text, sent as UTF-8; either this or base64."},
        base64={**TEXT, "description": "Bytes, in base64."},
    ),
    "shutdown": Shape(object_()),
    "signal": Shape(NAME, {"name": TEXT, "signal": {**TEXT, "description": "Its name, as HUP or SIGHUP, or number."}}),
    "start": named(NAME, wait={**FLAG, "default": True}),
    "status": Shape(object_(programs=list_of(PROGRAM), ledger_error=or_null(TEXT), hooks_error=or_null(TEXT))),
    "stop": named(NAME, wait={**FLAG, "default": True}),
    "story": named(
        object_(scenes=list_of(schema_of(TimelineEntry))), limit={**WHOLE, "minimum": 1, "maximum": KEPT, "default": 20}
    ),
    "top": Shape(
        object_(
            at_s={**NUMBER, "description": "A clock that starts anywhere, for the difference of two answers."},
            cpus=WHOLE,
            memory_bytes=WHOLE,
            programs=list_of(
                object_(
                    name=TEXT,
                    group=TEXT,
                    wire_state=TEXT,
                    pid=or_null(WHOLE),
                    processes=WHOLE,
                    cpu_s=or_null(NUMBER),
                    memory_bytes=or_null(WHOLE),
                    gpu_memory_bytes=or_null(WHOLE),
                    step=or_null(WHOLE),
                    step_s=or_null(NUMBER),
                )
            ),
        )
    ),
    "update": Shape(
        object_(actions=list_of(object_(name=TEXT, action=TEXT))), optional={"names": or_null(list_of(TEXT))}
    ),
    "version": Shape(object_(version=TEXT)),
}
