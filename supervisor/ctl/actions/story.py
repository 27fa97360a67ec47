"""Action about what happened: story."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError, one_name
from supervisor.ctl.actions.listing import call_for_program
from supervisor.ctl.terminal import ExitStatus, Terminal

MOST = 200  # as many as the daemon remembers


def story(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """What happened to a program last, and what followed."""
    limit, name = 20, one_name("story", [each for each in arguments if not each.startswith("-")])
    for option in arguments:
        if option.startswith("-"):
            limit = _count(option)
    answer = call_for_program(terminal, "story", name, limit=limit)
    if answer is None:
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    rows = [_row(each) for each in answer["scenes"]]
    head = ("WHEN", "ATTEMPT", "STATE", "EVENT AND WHAT FOLLOWED")
    for line in render.table(head, rows) if rows else ["nothing happened since the daemon took it up"]:
        terminal.print_line(line)
    return ExitStatus.OK


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    moved = each["state"] if each["was"] == each["state"] else f"{each['was']} -> {each['state']}"
    told = "; ".join([each["event"], *each["effects"]])
    why = f" [{each['reason']}]" if each["reason"] else ""
    return render.moment(each["wall_at"]), str(each["attempt"]), moved, told + why


def _count(option: str) -> int:
    if not (option[1:].isascii() and option[1:].isdecimal() and 1 <= int(option[1:7]) <= MOST):
        raise UsageError(f"Error: bad argument {option}")
    return int(option[1:])
