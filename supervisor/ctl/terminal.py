"""What an action works with: the daemon's client, and where its result is printed."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TextIO

from supervisor.ctl.client import Client, Unreachable
from supervisor.ctl.hosts import Host
from supervisor.protocol.printable import printable

SCHEMA = 1
"""Version of the JSON output. It rises when readers would have to change; new keys are no reason."""


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
    """The daemon's client and the two streams. `as_json`: print results as JSON. `can_prompt`: the user can be asked.
    `url_origin`: where the daemon's address comes from, in words. `is_raw`: control characters go to a terminal too.
    `hosts`: those of --hosts, for an action that shows them together.

    With `as_json`, lines are collected instead of printed; if the action prints no object, one is made of them.
    """

    client: Client
    out: TextIO
    err: TextIO
    as_json: bool = False
    is_raw: bool = False
    can_prompt: bool = False
    url_origin: str = ""
    hosts: Sequence[Host] = ()
    lines: list[str] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)

    def shown(self, text: str, stream: TextIO) -> str:
        """`text` as it goes to a stream: unchanged into a file or a pipe, to a terminal only if that was asked for."""
        return text if self.is_raw or not stream.isatty() else printable(text)

    def print_line(self, text: str) -> None:
        """One line of the result. Control characters, which may come from a program, are shown as such."""
        if self.as_json:
            self.lines.append(text)
            return
        print(self.shown(text, self.out), file=self.out, flush=True)

    def print_detail(self, text: str) -> None:
        """Reasons, on standard error, indented under the line that they explain."""
        for line in text.splitlines():
            print(f"    {self.shown(line, self.err)}", file=self.err, flush=True)

    def print_remark(self, text: str) -> None:
        """Something to know that changes no result, on standard error."""
        print(f"remark: {self.shown(text, self.err)}", file=self.err, flush=True)

    def print_trouble(self, text: str) -> None:
        """What is wrong with the daemon itself, on standard error, as scripts read the result."""
        print(f"supervisord: {self.shown(text, self.err)}", file=self.err, flush=True)

    def print_unreachable(self, error: Unreachable) -> None:
        """Why the daemon did not answer; if nothing listens at its address, also where that comes from."""
        self.print_line(str(error))
        if error.missing or error.refused:
            self.print_detail("; ".join(filter(None, ("supervisord is not running there", self.url_origin))))

    def print_result(self, result: dict[str, Any], lines: Iterable[str]) -> None:
        """The result of an action: as JSON if that is wanted, else in these lines."""
        if self.as_json:
            self.print_json(result)
            return
        for line in lines:
            self.print_line(line)

    def print_json(self, result: dict[str, Any]) -> None:
        """The result as one JSON object."""
        self.objects.append(result)
        print(json.dumps({"schema": SCHEMA, **result}, indent=2, allow_nan=False), file=self.out, flush=True)
