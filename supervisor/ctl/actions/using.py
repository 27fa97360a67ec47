"""Actions about what is used: add and remove take programs into use and out of it, top shows what they use."""

from collections.abc import Mapping
from typing import Any

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.client import Refusal
from supervisor.ctl.naming import program_of
from supervisor.ctl.terminal import ExitStatus, Terminal

_NOT_ADDED = {
    "ALREADY_ADDED": ("ERROR: process group already active", ExitStatus.OK),
    "BAD_NAME": ("ERROR: no such process/group: {}", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("ERROR: shutting down", ExitStatus.ERROR),
}
_NOT_REMOVED = {
    "STILL_RUNNING": ("ERROR: process/group still running: {}", ExitStatus.ERROR),
    "BAD_NAME": ("ERROR: no such process/group: {}", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("ERROR: shutting down", ExitStatus.ERROR),
}
"""Supervisor's words for refusals, and the exit status each makes."""


def add(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Takes what is configured into use."""
    return _each(terminal, arguments, "add", "added", _NOT_ADDED)


def remove(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Takes what is down out of use."""
    return _each(terminal, arguments, "remove", "removed", _NOT_REMOVED)


def top(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """What programs use, live; where there is no terminal, once."""
    if any(each.startswith("-") for each in arguments):
        raise UsageError(f"Error: bad argument {next(each for each in arguments if each.startswith('-'))}")
    from supervisor.ctl import top as screen  # its drawing library takes longer to load than all else together

    show = screen.show_live if terminal.out.isatty() and not terminal.as_json else screen.print_once
    return show(terminal, arguments)


def _each(
    terminal: Terminal, names: Arguments, command: str, done: str, refusals: Mapping[str, tuple[str, ExitStatus]]
) -> ExitStatus:
    """One name after the other, as later ones may need earlier ones; the worst outcome is the status."""
    if not names:
        raise UsageError(f"Error: {command} requires the name of a program or a group")
    status, told = ExitStatus.OK, list[dict[str, Any]]()
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
            terminal.print_line(line)
    if terminal.as_json:
        terminal.print_json({"programs": told})
    return status
