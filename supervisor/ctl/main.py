"""supervisorctl: options, then one action or the interactive shell. Slow modules are imported where they are used."""

import argparse
import getpass
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from supervisor import __version__
from supervisor.ctl.actions import table
from supervisor.ctl.actions.run import run_action
from supervisor.ctl.client import Client
from supervisor.ctl.settings import Options, Settings, SettingsError, settings
from supervisor.ctl.terminal import ExitStatus, Terminal

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
PIPE_CLOSED = 141  # 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `supervisorctl`; gives its exit status."""
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # set by the shell's completion; loading it costs more than most actions
        from supervisor.ctl import completion

        completion.answer(known)
    options = known.parse_args(arguments)
    if options.action is not None:
        # `supervisorctl "signal HUP" web`, as Ansible's and Salt's modules write it, is `supervisorctl signal HUP web`
        options.action, *words = options.action.split() or [""]
        options.arguments = [*words, *options.arguments]
    if options.action == "completion":
        return _completion(options.arguments)
    try:
        server = settings(_options(options), os.environ)
    except SettingsError as error:
        return _bad_options(str(error))
    try:
        if server.username and server.password is None and options.action and sys.stdin.isatty():
            server = replace(server, password=getpass.getpass(f"Password of {server.username}: "))
        return _act(options, server)
    except (KeyboardInterrupt, EOFError):  # EOFError: Ctrl-D instead of a password
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has closed it; Python must not fail again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _act(options: argparse.Namespace, server: Settings) -> int:
    terminal = Terminal(
        client=Client(server.url, server.username, server.password),
        out=sys.stdout,
        err=sys.stderr,
        as_json=options.json,
        is_raw=options.raw,
        url_origin=server.url_origin,
    )
    if options.action is not None and not options.interactive:
        return int(run_action(terminal, options.action, options.arguments))
    from supervisor.ctl import shell

    if options.action is not None:
        return int(shell.Shell(terminal, server).act(options.action, options.arguments))
    return shell.interact(terminal, server)


def _completion(arguments: Sequence[str]) -> int:
    from supervisor.ctl import completion

    if len(arguments) != 1 or arguments[0] not in completion.SHELLS:
        return _bad_options(f"completion requires one of {', '.join(completion.SHELLS)}")
    print(completion.code(arguments[0]))
    return 0


def _options(options: argparse.Namespace) -> Options:
    return Options(
        configuration=options.configuration,
        url=options.serverurl,
        username=options.username,
        password=options.password,
        history_file=options.history_file,
        password_file=options.password_file,
    )


def _bad_options(text: str) -> int:
    print(f"Error: {text}\nFor help, use {_name()} -h", file=sys.stderr)
    return int(ExitStatus.NO_NAME)


def _name() -> str:
    return Path(sys.argv[0]).name or "supervisorctl"


class _CtlParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the error in Supervisor's words, where it has them, and exits."""
        sys.exit(_bad_options(re.sub(r"unrecognized arguments: (\S+).*", r"option \1 not recognized", message)))


def parser() -> argparse.ArgumentParser:
    """The parser of the options, whose help lists the actions too."""
    usages = {usage: meaning for action in table.TABLE.values() for usage, meaning in action.usage.items()}
    usages["completion bash|zsh|fish"] = "Print the shell code that completes actions and names."
    actions = "\n".join(f"  {usage:<40}{meaning}" for usage, meaning in usages.items())
    options = _CtlParser(
        prog="supervisorctl",
        usage="supervisorctl [options] [ACTION [argument ...]]",
        description="Controls the programs and training jobs of supervisord. Without an action: an interactive shell.",
        epilog=f"actions:\n{actions}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = options.add_argument
    add("-h", "-?", "--help", action="help", help="show this help")
    add("--version", action="version", version=__version__, help="show the version of this command")
    add(
        "-c",
        "--configuration",
        type=Path,
        metavar="FILE",
        help="configuration file (default: searched for as supervisord does)",
    )
    add("-s", "--serverurl", metavar="URL", help="where supervisord listens: unix:///path or http://host:port")
    add("-u", "--username", metavar="NAME", help="user name for the daemon")
    add("-p", "--password", metavar="TEXT", help="password for the daemon; others see it in the list of processes")
    add("--password-file", type=Path, metavar="FILE", help="file whose first line is the password for the daemon")
    add("-r", "--history_file", type=Path, metavar="FILE", help="history file of the interactive shell")
    add(
        "-i",
        "--interactive",
        action="store_true",
        help="start the interactive shell; with an action: run it and ask for confirmation",
    )
    add("--json", action="store_true", help="print results as JSON")
    add(
        "--raw",
        action="store_true",
        help="let control characters of programs reach the terminal",
    )
    add("action", nargs="?", metavar="ACTION", help="what to do")
    add("arguments", nargs=argparse.REMAINDER, help="names of programs, or other arguments of the action")
    return options


if __name__ == "__main__":
    sys.exit(main())
