"""The daemon's events as a stream of JSON lines: those it has kept since a cursor, then new ones as they happen.

For the daemon, a client is only a position in its ring of events. One that reads slowly falls behind and is told how
many events it missed; it delays nothing else.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.base.json_types import to_json
from supervisor.control.http import web
from supervisor.core.listeners.event_types import OURS, TYPES, EventValue, is_kind_of
from supervisor.ini.problems import nearest_word
from supervisor.protocol.numbers import whole_number
from supervisor.runner.listeners.event_log import EventLog, LoggedEvent

START = "start"
"""The cursor before the oldest event that is kept."""
MISSED = "EVENTS_MISSED"
CURSOR = "Events-Cursor"
"""Header of the response: the cursor at which it begins, for a client that is cut off before the first event."""
BATCH = 200  # events written before other tasks run

KINDS = frozenset({*TYPES, *OURS, *OURS.values()})


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a client wants; an empty tuple means all."""

    programs: tuple[str, ...]
    kinds: tuple[str, ...]

    def passes(self, entry: LoggedEvent) -> bool:
        """Whether the client wants this event."""
        event = entry.occurrence
        if self.kinds and not is_kind_of(event.name, self.kinds):
            return False
        group = event.group or ""
        return not self.programs or any(
            name in (event.program, group, f"{group}:*", f"{group}:") and (event.program or event.group)
            for name in self.programs
        )


async def respond(request: web.Request, context: CommandContext) -> web.Response:
    """Lines of JSON. `since`: a cursor or `start`; without it, new events. `follow=0`: ends with the newest event."""
    stream, query = context.listening.log, request.query
    event_filter = EventFilter(_listed(query.get("program", "")), _kinds(query.get("kind", "")))
    begin = _start_position(stream, query.get("since"))
    headers = {"X-Accel-Buffering": "no", CURSOR: f"{stream.id}-{max(begin, stream.first_serial)}"}
    lines = _lines(stream, begin, event_filter, follow=query.get("follow") != "0")
    return web.Response(lines, content_type="application/x-ndjson", headers=headers)


async def _lines(
    stream: EventLog, begin: int, event_filter: EventFilter, *, follow: bool
) -> AsyncGenerator[bytes, None]:
    """The next events, as fast as the client reads them."""
    position, end = begin, None if follow else stream.next_serial
    if begin < 0:  # a cursor of another daemon: it is not known how many events were missed
        position = stream.first_serial
        yield _line(missed_json(stream, position, None))
    while end is None or position < end:
        if position < stream.first_serial:
            lost, position = stream.first_serial - position, stream.first_serial
            yield _line(missed_json(stream, position, lost))
        entries = stream.read_from(position, BATCH)
        if not entries and (end is not None or stream.is_closed):
            return
        if not entries:
            await stream.wait_for_more()
            continue
        position = entries[-1].serial + 1
        yield b"".join(_line(event_json(stream, entry)) for entry in entries if event_filter.passes(entry))


def event_json(stream: EventLog, entry: LoggedEvent) -> Mapping[str, EventValue]:
    """One event as a JSON object; keys beyond these four depend on its type."""
    return {
        "cursor": f"{stream.id}-{entry.serial + 1}",
        "serial": entry.serial,
        "wall_at": entry.wall_at,
        "event": entry.occurrence.name,
        **entry.fields(),
    }


def missed_json(stream: EventLog, position: int, count: int | None) -> Mapping[str, EventValue]:
    """The line that marks a gap. `count`: how many events are missing, None if that is not known."""
    return {"cursor": f"{stream.id}-{position}", "serial": None, "wall_at": None, "event": MISSED, "count": count}


def _line(content: Mapping[str, EventValue]) -> bytes:
    return to_json(content) + b"\n"


def _start_position(stream: EventLog, since: str | None) -> int:
    """Where to begin; -1: the cursor is of another daemon, so events were missed. Raises CommandError."""
    if since is None:
        return stream.next_serial
    if since == START:
        return stream.first_serial
    id_, _, number_text = since.partition("-")
    number = whole_number(number_text)
    if not id_ or number is None:
        text = f"since is {since!r:.60}; it has to be {START!r} or the cursor of an event"
        raise CommandError(Code.BAD_ARGUMENTS, text)
    return min(number, stream.next_serial) if id_ == stream.id else -1


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind.upper() for kind in _listed(text))
    for kind in kinds:
        if kind not in KINDS:
            meant = nearest_word(kind, KINDS)
            hint = (
                f"did you mean {meant}?"
                if meant
                else f"known are {', '.join(sorted(set(OURS.values())))} and " + ("Supervisor's, such as PROCESS_STATE")
            )
            raise CommandError(Code.BAD_ARGUMENTS, f"there is no event type {kind!r:.60}; {hint}")
    return kinds
