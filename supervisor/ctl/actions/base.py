"""What an action is."""

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.ctl.naming import ALL, is_group
from supervisor.ctl.terminal import ExitStatus, Terminal

Arguments = list[str]


class UsageError(Exception):
    """The arguments are wrong; the text says how, and the help of the action follows it."""

    def __init__(self, text: str, status: ExitStatus = ExitStatus.ERROR) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of the table. `usage`: each way to call it, and what that does. `names`: its arguments are programs."""

    run: Callable[[Terminal, Arguments], ExitStatus]
    usage: tuple[tuple[str, str], ...]
    names: bool = False
    question: str | None = None
    """Asked in the interactive shell before it is done."""


def no_arguments(action: str, arguments: Arguments) -> None:
    """Raises Usage if there are any."""
    if arguments:
        raise UsageError(f"Error: {action} accepts no arguments")


def one_name(action: str, arguments: Arguments) -> str:
    """The only argument, one program's name. Raises Usage."""
    if len(arguments) != 1 or arguments[0] == ALL or is_group(arguments[0]):
        raise UsageError(f"Error: {action} requires one process name")
    return arguments[0]
