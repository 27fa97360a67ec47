"""Actions about the host going away: notices, drill."""

import re
from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, Usage, no_arguments
from supervisor.ctl.actions.fleet import Order, give
from supervisor.ctl.actions.running import expanded
from supervisor.ctl.naming import ALL
from supervisor.ctl.terminal import Status, Terminal

_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([a-z]*)")
_VALUES = ("--in", "--kind")
_FLAGS = ("--withdraw", "--possible")


def notices(terminal: Terminal, arguments: Arguments) -> Status:
    """What says that this host goes away, and how the sources of such notices do."""
    no_arguments("notices", arguments)
    answer = terminal.client.call("notices")
    if terminal.as_json:
        terminal.show(answer)
        return Status.FINE
    rows = [_row(each) for each in answer["notices"]]
    head = ("SOURCE", "KIND", "CERTAINTY", "IN", "AT", "FOR", "TEXT")
    for line in render.table(head, rows) if rows else ["no notices: this host stays"]:
        terminal.say(line)
    terminal.say("")
    for line in _sources(answer):
        terminal.say(line)
    return Status.FINE


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


def drill(terminal: Terminal, arguments: Arguments) -> Status:
    """Gives programs a notice on purpose, or takes it back."""
    names, values, flags = _parse(arguments)
    if not names:
        raise Usage("Error: drill requires a process name")
    if "--withdraw" in flags:
        if values or "--possible" in flags:
            raise Usage("Error: --withdraw goes with names only")
        return give(terminal, Order("drill", lambda _: "drill withdrawn"), _members(terminal, names), withdraw=True)
    if "--in" not in values:
        raise Usage("Error: drill requires --in and a length of time, such as --in 30s")
    asked: dict[str, object] = {"in_s": _seconds(values["--in"])}
    if "--kind" in values:
        asked["kind"] = values["--kind"]
    if "--possible" in flags:
        asked["certainty"] = "possible"
    order = Order("drill", lambda _: f"told that the host goes away in {values['--in']}")
    return give(terminal, order, _members(terminal, names), **asked)


def _members(terminal: Terminal, names: Arguments) -> Arguments:
    """The names, with those of its programs for a group; `all` is a drill of its own."""
    return names if ALL in names else expanded(terminal, names, lambda _: True)


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
            raise Usage(f"Error: bad argument {each}")
        else:
            names.append(each)
    return names, values, flags


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip().lower())
    from supervisor.protocol.launch import UNITS  # with all the worker's words, which few questions need

    factor = (UNITS.get(match[2]) if match[2] else 1.0) if match else None
    if match is None or factor is None:
        raise Usage(f"Error: --in is {text!r:.40}, not a length of time; write for example 30s or 2min")
    return float(match[1]) * factor
