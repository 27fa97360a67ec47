"""Action about what happened: story."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, Usage, one_name
from supervisor.ctl.actions.listing import of_program
from supervisor.ctl.terminal import Status, Terminal

MOST = 200  # as many as the daemon remembers


def story(terminal: Terminal, arguments: Arguments) -> Status:
    """What happened to a program last, and what followed."""
    limit, name = 20, one_name("story", [each for each in arguments if not each.startswith("-")])
    for option in arguments:
        if option.startswith("-"):
            limit = _count(option)
    answer = of_program(terminal, "story", name, limit=limit)
    if answer is None:
        return Status.WRONG
    if terminal.as_json:
        terminal.show(answer)
        return Status.FINE
    rows = [_row(each) for each in answer["scenes"]]
    head = ("WHEN", "ATTEMPT", "STATE", "EVENT AND WHAT FOLLOWED")
    for line in render.table(head, rows) if rows else ["nothing happened since the daemon took it up"]:
        terminal.say(line)
    return Status.FINE


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    moved = each["state"] if each["was"] == each["state"] else f"{each['was']} -> {each['state']}"
    told = "; ".join([each["event"], *each["effects"]])
    why = f" [{each['reason']}]" if each["reason"] else ""
    return render.moment(each["wall_at"]), str(each["attempt"]), moved, told + why


def _count(option: str) -> int:
    if not (option[1:].isascii() and option[1:].isdecimal() and 1 <= int(option[1:7]) <= MOST):
        raise Usage(f"Error: bad argument {option}")
    return int(option[1:])
