"""What a shell offers while a command is typed: actions, and the names of the programs the daemon has."""

import argparse
import os
from collections.abc import Sequence

from argcomplete.finders import CompletionFinder

from supervisor.ctl import naming
from supervisor.ctl.actions.table import TABLE, find_action
from supervisor.ctl.client import Client, Refusal, Unreachable
from supervisor.ctl.settings import Options, SettingsError, settings


def answer(parser: argparse.ArgumentParser) -> None:
    """Answers the shell's request for completions and exits."""
    for action in parser._actions:
        if action.dest == "action":
            action.completer = lambda prefix, **_: list(TABLE)  # type: ignore[attr-defined]
        elif action.dest == "arguments":
            action.completer = _arguments  # type: ignore[attr-defined]
    _Finder()(parser, always_complete_options=False)


class _Finder(CompletionFinder):
    def collect_completions(
        self, active_parsers: list[argparse.ArgumentParser], parsed_args: argparse.Namespace, cword_prefix: str
    ) -> list[str]:
        """Behind an action, its own options and names; argcomplete would offer those that stand before it."""
        if getattr(parsed_args, "action", None) is not None:
            return [word for word in _arguments(cword_prefix, parsed_args) if word.startswith(cword_prefix)]
        return super().collect_completions(active_parsers, parsed_args, cword_prefix)


def _arguments(prefix: str, parsed_args: argparse.Namespace, **_: object) -> Sequence[str]:
    if parsed_args.action == "help":
        return list(TABLE)
    action = find_action(parsed_args.action)
    if action is None:
        return []
    return [*(_programs(parsed_args) if action.names else ()), *action.options]


def _programs(parsed_args: argparse.Namespace) -> list[str]:
    """The names of programs, from the daemon; only `all` if it does not answer."""
    options = Options(
        parsed_args.configuration,
        parsed_args.serverurl,
        parsed_args.username,
        parsed_args.password,
        password_file=parsed_args.password_file,
    )
    try:
        server = settings(options, os.environ)
        programs = Client(server.url, server.username, server.password).call("status")["programs"]
    except (SettingsError, Unreachable, Refusal):
        return [naming.ALL]
    return naming.completions(programs)
