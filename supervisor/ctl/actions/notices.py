"""Actions about notices that this host is going away: notices, drill."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError, no_arguments
from supervisor.ctl.actions.bulk import BulkCommand, run_bulk
from supervisor.ctl.actions.start_stop import expand_names
from supervisor.ctl.naming import ALL
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import duration_s

_VALUES = ("--in", "--kind")
_FLAGS = ("--withdraw", "--possible")


def notices(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists the notices that this host is going away, and the state of their sources."""
    no_arguments("notices", arguments)
    answer = terminal.client.call("notices")
    rows = [_row(notice) for notice in answer["notices"]]
    head = ("SOURCE", "KIND", "CERTAINTY", "IN", "AT", "FOR", "TEXT")
    listed = render.table(head, rows) if rows else ["no notices"]
    terminal.print_result(answer, [*listed, "", *_sources(answer)])
    return ExitStatus.OK


def _row(notice: dict[str, Any]) -> tuple[str, ...]:
    left_s = notice["deadline_s"]
    return (
        notice["source"],
        notice["kind"],
        notice["certainty"],
        "unknown" if left_s is None else f"{max(0.0, left_s):.0f} s",
        render.moment(notice["deadline_wall_at"]),
        notice["program"] or "all",
        notice["text"],
    )


def _sources(answer: dict[str, Any]) -> list[str]:
    if not answer["sources"]:
        return ["no sources: this daemon is not told when its host is going away (notices = off)"]
    rows = [
        (
            source["name"],
            "unknown" if source["shortest_s"] is None else f"{source['shortest_s']:g} s",
            source["trouble"] or "listening",
        )
        for source in answer["sources"]
    ]
    return render.table(("SOURCE", "WARNS BEFORE", "STATE"), rows)


def drill(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Gives programs a notice for practice, or withdraws it."""
    names, values, flags = _parse(arguments)
    if not names:
        raise UsageError("Error: drill requires a process name")
    if "--withdraw" in flags:
        if values or "--possible" in flags:
            raise UsageError("Error: --withdraw takes no other options")
        return run_bulk(
            terminal, BulkCommand("drill", lambda _: "drill withdrawn"), _members(terminal, names), withdraw=True
        )
    if "--in" not in values:
        raise UsageError("Error: drill requires --in TIME, for example --in 30s")
    try:
        request: dict[str, object] = {"in_s": duration_s(values["--in"])}
    except ValueError as error:
        raise UsageError(f"Error: --in {error}") from error
    if "--kind" in values:
        request["kind"] = values["--kind"]
    if "--possible" in flags:
        request["certainty"] = "possible"
    command = BulkCommand("drill", lambda _: f"drill started: the host is treated as going away in {values['--in']}")
    return run_bulk(terminal, command, _members(terminal, names), **request)


def _members(terminal: Terminal, names: Arguments) -> Arguments:
    """The names, a group replaced by its programs; `all` stays, as a drill of the whole host."""
    return names if ALL in names else expand_names(terminal, names, lambda _: True)


def _parse(arguments: Arguments) -> tuple[list[str], dict[str, str], set[str]]:
    """Names, options with a value, and flags. Raises UsageError."""
    names, values, flags = list[str](), dict[str, str](), set[str]()
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if option in _VALUES:
            value = value if equals else next(rest, "")
            if not value:
                raise UsageError(f"Error: {option} requires a value")
            values[option] = value
        elif argument in _FLAGS:
            flags.add(argument)
        elif argument.startswith("-"):
            raise UsageError(f"Error: bad argument {argument}")
        else:
            names.append(argument)
    return names, values, flags
