"""Actions on the daemon as a whole: reread, update, reload, shutdown."""

from supervisor.ctl.actions.base import Arguments, no_arguments
from supervisor.ctl.client import Refusal, Unreachable
from supervisor.ctl.naming import ALL, program_of
from supervisor.ctl.terminal import ExitStatus, Terminal

_CHANGES = {"added": "available", "changed": "changed", "removed": "disappeared"}
_DONE = {"removed": "removed", "updated": "updated", "added": "added"}


def reread(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Says what `update` would change."""
    no_arguments("reread", arguments)
    answer = terminal.client.call("reread")
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    lines = sorted(f"{name}: {word}" for key, word in _CHANGES.items() for name in answer[key])
    for line in lines or ["No config updates to processes"]:
        terminal.print_line(line)
    return ExitStatus.OK


def update(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Makes the programs what the configuration says; touches only what differs."""
    names = {} if not arguments or ALL in arguments else {"names": [program_of(each) for each in arguments]}
    try:
        answer = terminal.client.call("update", **names)
    except Refusal as error:
        if error.code not in ("BAD_NAME", "SHUTDOWN_STATE"):
            raise
        leaves = error.code == "SHUTDOWN_STATE"
        terminal.print_line("ERROR: already shutting down" if leaves else f"ERROR: no such group: {error}")
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    for each in answer["actions"]:
        terminal.print_line(f"{each['name']}: {_said(each['name'], each['action'])}")
    return ExitStatus.OK


def _said(name: str, action: str) -> str:
    if action not in _DONE:
        return action
    return f"{_DONE[action]} process" if ":" in name else f"{_DONE[action]} process group"


def reload(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Stops everything and begins anew with the configuration as it is now."""
    no_arguments("reload", arguments)
    return _end_daemon(terminal, "reload", "Restarted supervisord", while_leaving=ExitStatus.ERROR)


def shutdown(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Flushes and stops everything, and ends the daemon."""
    no_arguments("shutdown", arguments)
    try:
        return _end_daemon(terminal, "shutdown", "Shut down", while_leaving=ExitStatus.OK)
    except Unreachable as error:
        if error.missing or error.refused:
            raise Unreachable(
                f"ERROR: {error} (already shut down?)", missing=error.missing, refused=error.refused
            ) from error
        raise


def _end_daemon(terminal: Terminal, command: str, said: str, *, while_leaving: ExitStatus) -> ExitStatus:
    try:
        answer = terminal.client.call(command)
    except Refusal as error:
        if error.code != "SHUTDOWN_STATE":
            raise
        terminal.print_line("ERROR: already shutting down")
        return while_leaving
    if terminal.as_json:
        terminal.print_json(answer)
    else:
        terminal.print_line(said)
    return ExitStatus.OK
