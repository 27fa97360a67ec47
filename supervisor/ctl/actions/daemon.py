"""Actions about no program: version, reload, shutdown; open, which chooses the daemon; completion, for a shell."""

from dataclasses import replace

from supervisor.ctl.actions import status
from supervisor.ctl.actions.base import Arguments, UsageError, no_arguments
from supervisor.ctl.client import Refusal, Unreachable
from supervisor.ctl.settings import is_url
from supervisor.ctl.terminal import ExitStatus, Terminal

SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("supervisorctl", "supervisord")


def version(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the version of the daemon."""
    no_arguments("version", arguments)
    answer = terminal.client.call("version")
    terminal.print_result(answer, [answer["version"]])
    return ExitStatus.OK


def reload(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Replaces the daemon by a new one that reads the configuration; unchanged programs keep running."""
    no_arguments("reload", arguments)
    return _end_daemon(terminal, "reload", "Restarted supervisord", ExitStatus.ERROR)


def shutdown(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Flushes and stops all programs, and ends the daemon; returns when they have stopped."""
    no_arguments("shutdown", arguments)
    try:
        return _end_daemon(terminal, "shutdown", "Shut down", ExitStatus.OK, wait=True)
    except Unreachable as error:
        if error.missing or error.refused:
            raise Unreachable(
                f"ERROR: {error} (already shut down?)", missing=error.missing, refused=error.refused
            ) from error
        raise


def _end_daemon(
    terminal: Terminal, command: str, line: str, if_already_leaving: ExitStatus, **arguments: object
) -> ExitStatus:
    try:
        answer = terminal.client.call(command, **arguments)
    except Refusal as error:
        if error.code != "SHUTDOWN_STATE":
            raise
        terminal.print_line("ERROR: already shutting down")
        return if_already_leaving
    unsaved = answer.get("unsaved", ())
    terminal.print_result(answer, [*(f"{job['name']}: {job['text']}" for job in unsaved), line])
    return ExitStatus.ERROR if unsaved else ExitStatus.OK


def opened(terminal: Terminal, arguments: Arguments) -> Terminal:
    """A terminal that talks to another daemon, with the same login. Raises UsageError."""
    if len(arguments) != 1:
        raise UsageError("Error: open requires a URL")
    return replace(terminal, client=replace(terminal.client, url=arguments[0]), url_origin="")


def open_url(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the status of the daemon at a URL; in the shell, later actions go there too."""
    terminal = opened(terminal, arguments)
    if not is_url(terminal.client.url):
        terminal.print_line("ERROR: url must be http:// or unix://")
        return ExitStatus.ERROR
    shown = status.status(terminal, [])
    return ExitStatus.OK if shown is ExitStatus.DOWN else shown  # opening it has succeeded, whatever its programs do


def completion(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Prints the code with which a shell completes actions and names. Raises UsageError."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError(f"Error: completion requires one of {', '.join(SHELLS)}", ExitStatus.NO_NAME)
    from argcomplete.shell_integration import shellcode  # loading it costs more than most actions

    terminal.print_line(shellcode(COMMANDS, shell=arguments[0]))
    return ExitStatus.OK
