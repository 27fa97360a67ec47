"""The action `events`: the daemon's events as they happen."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.naming import select_programs
from supervisor.ctl.terminal import SCHEMA, ExitStatus, Terminal
from supervisor.protocol.plurals import counted

TRY_AGAIN_S = 1.0  # between attempts to reach a daemon that went away
START = "start"
MISSED = "EVENTS_MISSED"
SHOWN_FIRST = ("cursor", "serial", "wall_at", "event", "program", "group", "process", "from_state", "state", "reason")
"""Keys that have a place of their own in a line of text, or are left out of it."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Which events to show, and from where on."""

    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    since: str | None = None
    follow: bool = True


def events(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows events as they happen; goes on when the daemon restarts, without a gap as far as it remembers."""
    wanted = _read_arguments(arguments)
    _warn_unknown(terminal, wanted.names)
    try:
        for event in _stream(terminal, wanted):
            if terminal.as_json:
                print(json.dumps({"schema": SCHEMA, **event}, allow_nan=False), file=terminal.out, flush=True)
            else:
                terminal.print_line(line(event))
    except KeyboardInterrupt:
        if not wanted.follow:
            raise
    return ExitStatus.OK  # Ctrl-C is the way to leave


def _warn_unknown(terminal: Terminal, names: tuple[str, ...]) -> None:
    """Unknown names are no error: events of a removed program may be remembered, and a program may be added later."""
    if not names:
        return
    programs = terminal.client.call("status")["programs"]
    for name in select_programs(list(names), programs)[1]:
        if all(program["group"] != name for program in programs):
            meant = f"; to select a type of event, write --kind {name}" if name.isupper() else ""
            terminal.print_detail(f"there is no program or group {name} now{meant}")


def _stream(terminal: Terminal, wanted: EventSelection) -> Iterator[Event]:
    cursor, was_there = wanted.since, False
    while True:
        try:
            for event in terminal.client.events(wanted.names, wanted.kinds, cursor, follow=wanted.follow):
                cursor, was_there = event["cursor"], True
                if "event" in event:
                    yield event
            why = "supervisord closed the stream"
        except LoginNeeded:
            raise
        except (Unreachable, Refusal) as error:
            if not (wanted.follow and was_there):
                raise
            why = str(error)
        if not wanted.follow:
            return
        terminal.print_detail(f"{why}; trying again")
        cursor = _wait_for_daemon(terminal, cursor)


def _wait_for_daemon(terminal: Terminal, cursor: str | None) -> str | None:
    """Waits until a daemon answers."""
    while True:
        time.sleep(TRY_AGAIN_S)
        try:
            terminal.client.call("pid")
        except LoginNeeded:
            raise
        except (Unreachable, Refusal):
            continue
        return cursor


def line(event: Event) -> str:
    """One event as a line of text: when, what, which program, from which state, why."""
    if event["event"] == MISSED:
        count = event.get("count")
        lost = f"missed {counted(count, 'event')}" if count else "supervisord was restarted; events were missed"
        return f"... {lost}"
    whose = event.get("program") or event.get("group") or ""
    moved = f"from {event['from_state']}" if event.get("from_state") else ""
    more = [f"{key}={value}" for key, value in event.items() if key not in SHOWN_FIRST and value not in (None, "", 0)]
    if event.get("expected") == 0:
        more.append("expected=0")
    parts = [render.moment(event["wall_at"]), event["event"], whose, moved, *more]
    reason = f": {render.one_line(str(event['reason']))}" if event.get("reason") else ""
    return " ".join(filter(None, parts)) + reason


def _read_arguments(arguments: Arguments) -> EventSelection:
    wanted, names, left = EventSelection(), [], list(arguments)
    while left:
        match left.pop(0):
            case "--no-follow":
                wanted = replace(wanted, follow=False)
            case ("--kind" | "--since") as option if not left:
                raise UsageError(f"Error: {option} requires a value")
            case "--kind":
                wanted = replace(wanted, kinds=(*wanted.kinds, *left.pop(0).split(",")))
            case "--since":
                wanted = replace(wanted, since=left.pop(0))
            case option if option.startswith("-"):
                raise UsageError(f"Error: bad argument {option}")
            case name:
                names.append(name)
    since = START if wanted.since is None and not wanted.follow else wanted.since
    return replace(wanted, since=since, names=() if "all" in names else tuple(names))
