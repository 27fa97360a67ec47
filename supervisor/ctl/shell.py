"""The interactive shell: one action in each line."""

import cmd
import contextlib
import getpass
import os
import readline
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from supervisor.ctl import naming
from supervisor.ctl.actions import daemon, table
from supervisor.ctl.actions.run import run_action
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.settings import Settings, is_url
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.ini.ownership import why_not_as_root

HISTORY_LINES = 1000
OPEN = "open"
END = "EOF"  # what `cmd` calls the end of the input
LEAVE = (*table.LEAVING, END)


class Shell(cmd.Cmd):
    """Reads lines until `quit`, `exit` or the end of the input."""

    def __init__(self, terminal: Terminal, settings: Settings) -> None:
        super().__init__(stdout=terminal.out)
        self.prompt = f"{settings.prompt}> "
        self._terminal = replace(terminal, can_prompt=True)

    def onecmd(self, line: str) -> bool:
        """Runs one line; True if it was the last."""
        words = line.replace("?", "help ", 1).split() if line.startswith("?") else line.split()
        if not words:
            return False
        name, *arguments = words
        if name == END:
            print(file=self._terminal.out)  # so that the next output does not follow the prompt
        if name in LEAVE:
            return True
        try:
            self.act(name, arguments)
        except KeyboardInterrupt:
            print(file=self._terminal.out)
        return False

    def act(self, name: str, arguments: list[str]) -> ExitStatus:
        """Runs one action; asks for confirmation and for a login where they are needed."""
        if not self._confirmed(name):
            return ExitStatus.OK
        if name == OPEN and len(arguments) == 1 and is_url(arguments[0]):
            self._terminal = daemon.opened(self._terminal, arguments)
        while True:
            try:
                return run_action(self._terminal, name, arguments)
            except LoginNeeded:
                if not self._logged_in():
                    return ExitStatus.ERROR

    def _logged_in(self) -> bool:
        """Asks for user name and password in Supervisor's words; False at the end of the input."""
        print("Server requires authentication", file=self._terminal.out, flush=True)
        try:
            username, password = input("Username:"), getpass.getpass("Password:")
        except EOFError:
            return False
        finally:
            print(file=self._terminal.out)
        self._terminal = replace(
            self._terminal, client=replace(self._terminal.client, username=username, password=password)
        )
        return True

    def _confirmed(self, name: str) -> bool:
        action = table.find_action(name)
        if action is None or action.question is None:
            return True
        try:
            return input(action.question).strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def get_names(self) -> list[str]:
        """The methods that `cmd` treats as commands: none, as the table has them all."""
        return []

    def completenames(self, text: str, *ignored: object) -> list[str]:
        """Actions that begin with `text`."""
        return _starting_with(text, (*sorted(table.TABLE), *table.LEAVING))

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Programs that begin with `text`, after an action that takes them."""
        action = table.find_action(line.split(maxsplit=1)[0])
        if action is None or not action.names:
            return []
        return _starting_with(text, completions(self._terminal))


def _starting_with(text: str, words: Iterable[str]) -> list[str]:
    """The words that begin with `text`, each with the space after it, which readline does not add."""
    return [f"{word} " for word in words if word.startswith(text)]


def completions(terminal: Terminal) -> list[str]:
    """What can be written where programs are named; only `all` if the daemon does not answer."""
    try:
        return naming.completions(terminal.client.call("status")["programs"])
    except (Unreachable, Refusal):
        return [naming.ALL]


def interact(terminal: Terminal, settings: Settings) -> int:
    """Shows the status, then runs what is typed. The exit status is always 0, as in Supervisor."""
    shell = Shell(terminal, settings)
    shell.onecmd("status")
    with _history(settings.history_file, terminal):
        while True:
            try:
                shell.cmdloop()
            except KeyboardInterrupt:
                print(file=terminal.out)  # the line that was being typed is dropped
            else:
                return 0


@contextlib.contextmanager
def _history(file: Path | None, terminal: Terminal) -> Iterator[None]:
    readline.set_completer_delims(" \t\n")  # a program's name may hold -, . and the like
    if file is None:
        yield
        return
    if (why := why_not_as_root(file, os.environ)) is not None:
        terminal.print_detail(f"cannot keep the history in {file}: {why}, or name another with -r FILE")
        yield
        return
    readline.set_history_length(HISTORY_LINES)
    try:
        readline.read_history_file(file)
    except FileNotFoundError:
        pass  # the first time
    except OSError as error:
        terminal.print_detail(f"cannot read the history file {file}: {error.strerror}; the history begins empty")
    try:
        yield
    finally:
        try:
            readline.write_history_file(file)
        except OSError as error:
            terminal.print_detail(f"cannot write the history file {file}: {error.strerror}; make it writable")
