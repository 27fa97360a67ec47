"""What an action works with: the daemon to ask, and where to say what came of it."""

import json
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from supervisor.ctl.client import Client

SCHEMA = 1
"""Version of the JSON output; raised when a reader would have to change. New keys don't need that."""


class ExitStatus(IntEnum):
    """Exit statuses, with the meanings Supervisor gives them. Of several results the highest is the outcome."""

    OK = 0
    ERROR = 1  # no such program, a bad signal, a refused command
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
    can_prompt: bool = False
    lines: list[str] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)

    def print_line(self, text: str) -> None:
        """One line of the result. Control characters, which may come from a program, are made visible."""
        if self.as_json:
            self.lines.append(text)
            return
        print(printable(text), file=self.out, flush=True)

    def print_detail(self, text: str) -> None:
        """Reasons, indented under the line they belong to, beside the result."""
        for line in text.splitlines():
            print(f"    {printable(line)}", file=self.err, flush=True)

    def print_json(self, result: dict[str, Any]) -> None:
        """The result as one JSON object."""
        self.objects.append(result)
        print(json.dumps({"schema": SCHEMA, **result}, indent=2), file=self.out, flush=True)


def printable(text: str) -> str:
    """`text` without what a terminal would obey: control characters become `?`, tabs and line breaks stay."""
    return "".join(each if each.isprintable() or each in "\t\n" else "?" for each in text)
