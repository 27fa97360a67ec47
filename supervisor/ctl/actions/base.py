"""The type of an action, and what many actions do with their arguments and answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.ctl import naming
from supervisor.ctl.client import Refusal
from supervisor.ctl.naming import is_many
from supervisor.ctl.terminal import ExitStatus, Terminal

Arguments = list[str]


class UsageError(Exception):
    """The arguments are wrong; the text says why, and the help of the action is printed after it."""

    def __init__(self, text: str, status: ExitStatus = ExitStatus.ERROR) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the table. `usage`: each way to call it, and what that does. `names`: it takes names of programs.

    `options`: of its own, for completion."""

    run: Callable[[Terminal, Arguments], ExitStatus]
    usage: Mapping[str, str]
    names: bool = False
    options: tuple[str, ...] = ()
    question: str | None = None
    """The interactive shell asks this before it runs the action."""


def print_usage(terminal: Terminal, action: Action) -> None:
    """Prints each way to call the action, and what that does."""
    width = max(map(len, action.usage))
    for usage, meaning in action.usage.items():
        terminal.print_line(f"{usage:<{width}}  {meaning}")


def no_arguments(action: str, arguments: Arguments) -> None:
    """Raises UsageError if there are any."""
    if arguments:
        raise UsageError(f"Error: {action} accepts no arguments")


def no_options(arguments: Arguments) -> None:
    """Raises UsageError if one of them begins with a hyphen."""
    for argument in arguments:
        if argument.startswith("-"):
            raise UsageError(f"Error: bad argument {argument}")


def one_name(action: str, arguments: Arguments) -> str:
    """The only argument, one program's name. Raises UsageError."""
    if len(arguments) != 1 or is_many(arguments[0]):
        raise UsageError(f"Error: {action} requires one process name")
    return arguments[0]


def call_for_program(terminal: Terminal, command: str, name: str, **arguments: object) -> dict[str, Any] | None:
    """The daemon's answer about one program; None if there is no such program or job, which is printed."""
    try:
        return terminal.client.call(command, name=naming.program_of(name), **arguments)
    except Refusal as error:
        if error.code == "BAD_NAME":
            terminal.print_line(naming.unknown_line(name))
        elif error.code == "NOT_A_JOB":
            terminal.print_line(f"{naming.program_of(name)}: ERROR (not a job)")
            terminal.print_detail(str(error))
        else:
            raise
        return None
