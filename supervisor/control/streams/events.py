"""The daemon's events as a stream of JSON lines: what is kept from a cursor on, then what happens, as it happens.

A watcher is nothing but a place in the daemon's ring: one that reads slowly falls behind, is told how many it missed,
and holds nobody up.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.http import web
from supervisor.core.listeners.event_types import (
    OURS,
    TYPES,
    EventValue,
    is_kind_of,
)
from supervisor.ini.problems import nearest_word
from supervisor.runner.listeners.event_log import EventLog, LoggedEvent

START = "start"
"""The cursor before everything that is kept."""
MISSED = "EVENTS_MISSED"
CURSOR = "Events-Cursor"
"""Header of the answer: where it begins, for a client that is cut off before the first event."""
AT_ONCE = 200  # entries written before the others get their turn

KINDS = frozenset({*TYPES, *OURS, *OURS.values()})


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a watcher wants; nothing in a list: all of them."""

    programs: tuple[str, ...]
    kinds: tuple[str, ...]

    def passes(self, entry: LoggedEvent) -> bool:
        """Whether it wants this one."""
        told = entry.occurrence
        if self.kinds and not is_kind_of(told.name, self.kinds):
            return False
        group = told.group or ""
        return not self.programs or any(
            name in (told.program, group, f"{group}:*", f"{group}:") and (told.program or told.group)
            for name in self.programs
        )


async def respond(request: web.Request, context: CommandContext) -> web.Response:
    """Lines of JSON. `since`: a cursor, or `start`; without it what is to come. `follow=0`: ends at the present."""
    stream, query = context.listening.log, request.query
    wanted = EventFilter(_listed(query.get("program", "")), _kinds(query.get("kind", "")))
    begin = _start_position(stream, query.get("since"))
    headers = {"X-Accel-Buffering": "no", CURSOR: f"{stream.id}-{max(begin, stream.first_serial)}"}
    lines = _lines(stream, begin, wanted, follow=query.get("follow") != "0")
    return web.Response(lines, content_type="application/x-ndjson", headers=headers)


async def _lines(stream: EventLog, begin: int, wanted: EventFilter, *, follow: bool) -> AsyncGenerator[bytes, None]:
    """What is next, each time the watcher has room; nobody waits for that but this."""
    place, end = begin, None if follow else stream.next_serial
    if begin < 0:  # of another daemon's stream: how many that missed, nobody knows
        place = stream.first_serial
        yield _line(missed_json(stream, place, None))
    while end is None or place < end:
        if place < stream.first_serial:
            lost, place = stream.first_serial - place, stream.first_serial
            yield _line(missed_json(stream, place, lost))
        entries = stream.read_from(place, AT_ONCE)
        if not entries and (end is not None or stream.is_closed):
            return
        if not entries:
            await stream.wait_for_more()
            continue
        place = entries[-1].serial + 1
        yield b"".join(_line(event_json(stream, each)) for each in entries if wanted.passes(each))


def event_json(stream: EventLog, entry: LoggedEvent) -> Mapping[str, EventValue]:
    """One event as JSON has it; keys beyond these four depend on its type."""
    return {
        "cursor": f"{stream.id}-{entry.serial + 1}",
        "serial": entry.serial,
        "wall_at": entry.wall_at,
        "event": entry.occurrence.name,
        **entry.fields(),
    }


def missed_json(stream: EventLog, place: int, count: int | None) -> Mapping[str, EventValue]:
    """Says that there is a gap. `count`: None where nobody knows."""
    return {"cursor": f"{stream.id}-{place}", "serial": None, "wall_at": None, "event": MISSED, "count": count}


def _line(content: Mapping[str, EventValue]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _start_position(stream: EventLog, since: str | None) -> int:
    """Where to begin; -1: with a remark, as the cursor is another daemon's. Raises CommandError."""
    if since is None:
        return stream.next_serial
    if since == START:
        return stream.first_serial
    id_, _, number = since.partition("-")
    if not (id_ and number.isascii() and number.isdecimal() and len(number) < 20):
        text = f"since is {since!r:.60}, neither {START!r} nor the cursor of an event"
        raise CommandError(Code.BAD_ARGUMENTS, text)
    return min(int(number), stream.next_serial) if id_ == stream.id else -1


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _kinds(text: str) -> tuple[str, ...]:
    found = tuple(each.upper() for each in _listed(text))
    for each in found:
        if each not in KINDS:
            meant = nearest_word(each, KINDS)
            hint = (
                f"did you mean {meant}?"
                if meant
                else f"known are {', '.join(sorted(set(OURS.values())))} and " + ("Supervisor's, such as PROCESS_STATE")
            )
            raise CommandError(Code.BAD_ARGUMENTS, f"there is no event type {each!r:.60}; {hint}")
    return found
