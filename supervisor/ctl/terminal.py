"""What an action works with: the daemon to ask, and where to say what came of it."""

import json
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from supervisor.ctl.client import Client

SCHEMA = 1
"""Version of the JSON output; raised when a reader would have to change. New keys don't need that."""


class Status(IntEnum):
    """Exit statuses, with the meanings Supervisor gives them. Of several results the highest is the outcome."""

    FINE = 0
    WRONG = 1  # no such program, a bad signal, a refused command
    NO_NAME = 2  # `start` without a name; bad options or configuration
    DOWN = 3  # `status`: a program listed is not up
    UNKNOWN = 4  # `status`: bad name or no answer; other actions: connection refused, not permitted
    NOT_RUNNING = 7  # no socket; `start` failed; nothing there to signal


@dataclass(frozen=True, slots=True)
class Terminal:
    """The daemon's client and the two streams. `as_json`: results are for programs. `asks`: somebody can be asked.

    With `as_json` lines are kept (`said`) and not printed: they become the object's, if the action has shown none.
    """

    client: Client
    out: TextIO
    err: TextIO
    as_json: bool = False
    asks: bool = False
    said: list[str] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """One line of the result. Control characters, which may come from a program, are made visible."""
        if self.as_json:
            self.said.append(text)
            return
        print(plain(text), file=self.out, flush=True)

    def explain(self, text: str) -> None:
        """Reasons, indented under the line they belong to, beside the result."""
        for line in text.splitlines():
            print(f"    {plain(line)}", file=self.err, flush=True)

    def show(self, result: dict[str, Any]) -> None:
        """The result as one JSON object."""
        self.shown.append(result)
        print(json.dumps({"schema": SCHEMA, **result}, indent=2), file=self.out, flush=True)


def plain(text: str) -> str:
    """`text` without what a terminal would obey: control characters become `?`, tabs and line breaks stay."""
    return "".join(each if each.isprintable() or each in "\t\n" else "?" for each in text)
