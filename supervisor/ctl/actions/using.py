"""Actions about what is used: add and remove take programs into use and out of it, top shows what they use."""

from collections.abc import Mapping
from typing import Any

from supervisor.ctl.actions.base import Arguments, Usage
from supervisor.ctl.client import Refusal
from supervisor.ctl.naming import program_of
from supervisor.ctl.terminal import Status, Terminal

_NOT_ADDED = {
    "ALREADY_ADDED": ("ERROR: process group already active", Status.FINE),
    "BAD_NAME": ("ERROR: no such process/group: {}", Status.WRONG),
    "SHUTDOWN_STATE": ("ERROR: shutting down", Status.WRONG),
}
_NOT_REMOVED = {
    "STILL_RUNNING": ("ERROR: process/group still running: {}", Status.WRONG),
    "BAD_NAME": ("ERROR: no such process/group: {}", Status.WRONG),
    "SHUTDOWN_STATE": ("ERROR: shutting down", Status.WRONG),
}
"""Supervisor's words for refusals, and the exit status each makes."""


def add(terminal: Terminal, arguments: Arguments) -> Status:
    """Takes what is configured into use."""
    return _each(terminal, arguments, "add", "added", _NOT_ADDED)


def remove(terminal: Terminal, arguments: Arguments) -> Status:
    """Takes what is down out of use."""
    return _each(terminal, arguments, "remove", "removed", _NOT_REMOVED)


def top(terminal: Terminal, arguments: Arguments) -> Status:
    """What programs use, live; where there is no terminal, once."""
    if any(each.startswith("-") for each in arguments):
        raise Usage(f"Error: bad argument {next(each for each in arguments if each.startswith('-'))}")
    from supervisor.ctl import top as screen  # its drawing library takes longer to load than all else together

    show = screen.live if terminal.out.isatty() and not terminal.as_json else screen.once
    return show(terminal, arguments)


def _each(
    terminal: Terminal, names: Arguments, command: str, done: str, refusals: Mapping[str, tuple[str, Status]]
) -> Status:
    """One name after the other, as later ones may need earlier ones; the worst outcome is the status."""
    if not names:
        raise Usage(f"Error: {command} requires the name of a program or a group")
    status, told = Status.FINE, list[dict[str, Any]]()
    for name in names:
        error = None
        try:
            terminal.client.call(command, name=program_of(name))
            line = f"{name}: {done} process group"
        except Refusal as refusal:
            if refusal.code not in refusals:
                raise
            words, cost = refusals[refusal.code]
            line, status = words.format(name), max(status, cost)
            error = {"code": refusal.code, "message": str(refusal)}
        told.append({"name": program_of(name), "error": error})
        if not terminal.as_json:
            terminal.say(line)
    if terminal.as_json:
        terminal.show({"programs": told})
    return status
