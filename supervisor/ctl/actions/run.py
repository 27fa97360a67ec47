"""Runs one action by its name, and prints why it failed, if it does."""

from dataclasses import replace

from supervisor.ctl.actions.base import Arguments, UsageError, print_usage
from supervisor.ctl.actions.table import LEAVING, TABLE, find_action
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.ini.problems import nearest_word

JSON, RAW = "--json", "--raw"
HELP = ("-h", "-?", "--help")


def run_action(terminal: Terminal, name: str, arguments: Arguments) -> ExitStatus:
    """Runs one action and prints why it failed, if it does. With --json, it always prints exactly one object.
    With --raw, control characters of programs reach the terminal.

    Raises LoginNeeded if the terminal can ask the user for a login.
    """
    if RAW in arguments:
        terminal, arguments = replace(terminal, is_raw=True), [argument for argument in arguments if argument != RAW]
    if not terminal.as_json and JSON not in arguments:
        return _run(terminal, name, arguments)
    terminal = replace(terminal, as_json=True, lines=[], objects=[])
    status = _run(terminal, name, [argument for argument in arguments if argument != JSON])
    if not terminal.objects:
        text = "\n".join(terminal.lines)
        terminal.print_json({"text": text} if status is ExitStatus.OK else {"error": text})
    return status


def _run(terminal: Terminal, name: str, arguments: Arguments) -> ExitStatus:
    if name in LEAVING:
        return ExitStatus.OK
    action = find_action(name)
    if action is None:
        terminal.print_line(f"*** Unknown syntax: {' '.join([name, *arguments])}")
        meant = nearest_word(name, TABLE)
        terminal.print_detail(f"did you mean {meant!r}?" if meant else "supervisorctl help lists the actions")
        return ExitStatus.ERROR
    if any(argument in HELP for argument in arguments):
        print_usage(terminal, action)
        return ExitStatus.OK
    try:
        return action.run(terminal, arguments)
    except UsageError as error:
        terminal.print_line(str(error))
        print_usage(terminal, action)
        return error.status
    except Unreachable as error:
        if terminal.can_prompt and isinstance(error, LoginNeeded):
            raise
        terminal.print_unreachable(error)
        return ExitStatus.NOT_RUNNING if error.missing else ExitStatus.UNKNOWN if error.refused else ExitStatus.ERROR
    except Refusal as error:
        return _print_refusal(terminal, error)


def _print_refusal(terminal: Terminal, error: Refusal) -> ExitStatus:
    if error.code == "SHUTDOWN_STATE":
        terminal.print_line("ERROR: supervisor shutting down")
    elif error.code == "FORBIDDEN":
        terminal.print_line(f"ERROR: {error}")
        return ExitStatus.UNKNOWN
    else:
        terminal.print_line(f"ERROR: {error.code}: {error}")
    return ExitStatus.ERROR
