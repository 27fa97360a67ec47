"""supervisorctl: options, then one action or the interactive shell. Slow modules are imported where they are used."""

from supervisor import early_interrupt  # this has to come first

# isort: split

import argparse
import getpass
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from supervisor import __version__
from supervisor.ctl.actions import table
from supervisor.ctl.actions.base import UsageError
from supervisor.ctl.actions.daemon import completion as print_completion
from supervisor.ctl.actions.run import run_action
from supervisor.ctl.client import Client
from supervisor.ctl.settings import Options, Settings, SettingsError, settings
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.printable import accept_any_text

PIPE_CLOSED = 141  # 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `supervisorctl`; gives its exit status."""
    accept_any_text()
    known = parser()
    if "_ARGCOMPLETE" in os.environ:  # set by the shell's completion; loading it costs more than most actions
        from supervisor.ctl import completion

        completion.answer(known)
    options = known.parse_args([_as_utf8(word) for word in (sys.argv[1:] if arguments is None else arguments)])
    if options.action is not None:
        # `supervisorctl "signal HUP" web`, as Ansible's and Salt's modules write it, is `supervisorctl signal HUP web`
        options.action, *words = options.action.split() or [""]
        options.arguments = [*words, *options.arguments]
    early_interrupt.end()
    try:
        if options.action == "completion":
            return _completion(options)
        if options.hosts is not None:
            return _act_on_hosts(options)
        if options.limit is not None:
            raise SettingsError("--limit chooses among the hosts of --hosts FILE; name the file too")
        return _act(options, _with_password(settings(_options(options), os.environ), options))
    except SettingsError as error:
        return _bad_options(str(error))
    except (KeyboardInterrupt, EOFError):  # EOFError: Ctrl-D instead of a password
        print(file=sys.stderr)
        return early_interrupt.INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has closed it; Python must not fail again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _as_utf8(word: str) -> str:
    """A word of the command line; one that the locale's encoding can't read is UTF-8, as the daemon's names are."""
    is_unread = any("\udc80" <= character <= "\udcff" for character in word)
    return os.fsencode(word).decode(errors="replace") if is_unread else word


def _with_password(server: Settings, options: argparse.Namespace) -> Settings:
    """Asks for the password, if there is a user name without one, and somebody to ask."""
    if server.username and server.password is None and options.action and sys.stdin.isatty():
        return replace(server, password=getpass.getpass(f"Password of {server.username}: "))
    return server


def _act_on_hosts(options: argparse.Namespace) -> int:
    """Raises SettingsError."""
    from supervisor.ctl import hosts, many

    if options.serverurl is not None:
        raise SettingsError("-s and --hosts exclude each other; give one of them")
    chosen = hosts.limit_hosts(hosts.read_hosts(options.hosts), options.limit)
    server = settings(replace(_options(options), url=chosen[0].url), os.environ)
    origin = f"the address is that of {options.hosts}"
    if options.action in many.TOGETHER:
        terminal = _terminal(options, _with_password(server, options), sys.stdout, sys.stderr)
        return int(run_action(replace(terminal, hosts=chosen), options.action, options.arguments))
    if len(chosen) == 1 or options.action == "help":
        return _act(options, _with_password(replace(server, url_origin=origin), options))
    action = options.action or "status"
    if options.interactive:
        raise SettingsError("the interactive shell is one daemon's; name its host with --limit")
    if why := many.refusal(action, options.arguments, options.limit is not None):
        raise SettingsError(why)
    server = _with_password(server, options)

    def connect(host: hosts.Host, out: TextIO, err: TextIO) -> Terminal:
        return _terminal(options, replace(server, url=host.url, url_origin=origin), out, err)

    arguments = [word for word in options.arguments if word != "--json"]
    options.json = options.json or arguments != options.arguments
    answers = many.run_on_all(chosen, connect, action, arguments)
    return int(many.print_answers(_terminal(options, server, sys.stdout, sys.stderr), action, answers))


def _terminal(options: argparse.Namespace, server: Settings, out: TextIO, err: TextIO) -> Terminal:
    return Terminal(
        client=Client(server.url, server.username, server.password),
        out=out,
        err=err,
        as_json=options.json,
        is_raw=options.raw,
        url_origin=server.url_origin,
    )


def _act(options: argparse.Namespace, server: Settings) -> int:
    terminal = _terminal(options, server, sys.stdout, sys.stderr)
    if options.action is not None and not options.interactive:
        return int(run_action(terminal, options.action, options.arguments))
    from supervisor.ctl import shell

    if options.action is not None:
        return int(shell.Shell(terminal, server).act(options.action, options.arguments))
    return shell.interact(terminal, server)


def _completion(options: argparse.Namespace) -> int:
    """For a shell's startup file, which evaluates what is printed: reads no configuration, and errors go elsewhere."""
    try:
        terminal = replace(_terminal(options, Settings(), sys.stdout, sys.stderr), as_json=False)
        return int(print_completion(terminal, options.arguments))
    except UsageError as error:
        return _bad_options(str(error).removeprefix("Error: "))


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
    add(
        "--hosts",
        type=Path,
        metavar="FILE",
        help="ask all daemons of a file, side by side: `NAME`, `NAME URL` or `URL` in each line",
    )
    add("--limit", metavar="NAME[,NAME]", help="only these of --hosts; `all` lets an action change something on all")
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
    add("--raw", action="store_true", help="let control characters of programs reach the terminal")
    add("action", nargs="?", metavar="ACTION", help="what to do")
    add("arguments", nargs=argparse.REMAINDER, help="names of programs, or other arguments of the action")
    return options


if __name__ == "__main__":
    sys.exit(main())
