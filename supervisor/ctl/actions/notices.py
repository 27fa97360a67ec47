"""Actions about the host going away: notices, drill."""

import re
from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError, no_arguments
from supervisor.ctl.actions.bulk import BulkCommand, run_bulk
from supervisor.ctl.actions.start_stop import expand_names
from supervisor.ctl.naming import ALL
from supervisor.ctl.terminal import ExitStatus, Terminal

_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)")
_VALUES = ("--in", "--kind")
_FLAGS = ("--withdraw", "--possible")


def notices(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """What says that this host goes away, and how the sources of such notices do."""
    no_arguments("notices", arguments)
    answer = terminal.client.call("notices")
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    rows = [_row(each) for each in answer["notices"]]
    head = ("SOURCE", "KIND", "CERTAINTY", "IN", "AT", "FOR", "TEXT")
    for line in render.table(head, rows) if rows else ["no notices: this host stays"]:
        terminal.print_line(line)
    terminal.print_line("")
    for line in _sources(answer):
        terminal.print_line(line)
    return ExitStatus.OK


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    left_s = each["deadline_s"]
    return (
        each["source"],
        each["kind"],
        each["certainty"],
        "?" if left_s is None else f"{max(0.0, left_s):.0f} s",
        render.moment(each["deadline_wall_at"]),
        each["program"] or "all",
        each["text"],
    )


def _sources(answer: dict[str, Any]) -> list[str]:
    if not answer["sources"]:
        return ["no sources: nothing tells this daemon when the host goes away (notices = off)"]
    rows = [
        (each["name"], "?" if each["shortest_s"] is None else f"{each['shortest_s']:g} s", each["trouble"] or "listens")
        for each in answer["sources"]
    ]
    return render.table(("LISTENS TO", "WARNS BEFORE", "STATE"), rows)


def drill(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Gives programs a notice on purpose, or takes it back."""
    names, values, flags = _parse(arguments)
    if not names:
        raise UsageError("Error: drill requires a process name")
    if "--withdraw" in flags:
        if values or "--possible" in flags:
            raise UsageError("Error: --withdraw goes with names only")
        return run_bulk(
            terminal, BulkCommand("drill", lambda _: "drill withdrawn"), _members(terminal, names), withdraw=True
        )
    if "--in" not in values:
        raise UsageError("Error: drill requires --in and a length of time, such as --in 30s")
    asked: dict[str, object] = {"in_s": _seconds(values["--in"])}
    if "--kind" in values:
        asked["kind"] = values["--kind"]
    if "--possible" in flags:
        asked["certainty"] = "possible"
    order = BulkCommand("drill", lambda _: f"told that the host goes away in {values['--in']}")
    return run_bulk(terminal, order, _members(terminal, names), **asked)


def _members(terminal: Terminal, names: Arguments) -> Arguments:
    """The names, with those of its programs for a group; `all` is a drill of its own."""
    return names if ALL in names else expand_names(terminal, names, lambda _: True)


def _parse(arguments: Arguments) -> tuple[list[str], dict[str, str], set[str]]:
    """Names, options with a value, and flags. Raises Usage."""
    names, values, flags = list[str](), dict[str, str](), set[str]()
    rest = iter(arguments)
    for each in rest:
        option, equals, value = each.partition("=")
        if option in _VALUES:
            values[option] = value if equals else next(rest, "")
        elif each in _FLAGS:
            flags.add(each)
        elif each.startswith("-"):
            raise UsageError(f"Error: bad argument {each}")
        else:
            names.append(each)
    return names, values, flags


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip().lower())
    from supervisor.protocol.launch import UNITS  # with all the worker's words, which few questions need

    factor = (UNITS.get(match[2]) if match[2] else 1.0) if match else None
    if match is None or factor is None:
        raise UsageError(f"Error: --in is {text!r:.40}, not a length of time; write for example 30s or 2min")
    return float(match[1]) * factor
