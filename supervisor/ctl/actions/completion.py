"""`completion`: the code with which a shell completes actions and names."""

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.terminal import ExitStatus, Terminal

SHELLS = ("bash", "zsh", "fish")
COMMANDS = ("supervisorctl", "supervisord")


def completion(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Prints the shell code. Raises UsageError."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError(f"Error: completion requires one of {', '.join(SHELLS)}", ExitStatus.NO_NAME)
    from argcomplete.shell_integration import shellcode  # loading it costs more than most actions

    terminal.print_line(shellcode(COMMANDS, shell=arguments[0]))
    return ExitStatus.OK
