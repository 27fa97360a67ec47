"""Who asked for what change, and what came of it: one line in the daemon's log for each, refusals among them.

It is there whatever `loglevel` is. The event is `change.asked`. What goes to a program's standard input, or to event
listeners, is not written down, as there may be passwords in it; only how long it was.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import structlog

from supervisor.control.base.errors import Code, CommandError, RequestFailed
from supervisor.host.daemon_log.daemon_log import CHANGES

OK = "OK"
UNFINISHED = "UNFINISHED"
"""Instead of a result: the daemon left before there was one."""

MAX_TEXT = 200  # of a name or value: the longest that belong here are shorter
MAX_NAMES = 100  # of one `update`, beyond which they are only counted
SECRET = frozenset({"chars", "base64", "data", "secret"})
"""What JSON arguments, and kinds of XML-RPC parameters, are called that are not for everybody to read."""

log = structlog.get_logger(CHANGES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `uid`, `pid`: by the kernel, on the unix socket; `address`: on TCP; `user`: the login's, if it has one.

    `refusal`: why this one may not change things.
    """

    uid: int | None = None
    pid: int | None = None
    address: str | None = None
    user: str | None = None
    refusal: str | None = None

    def require_change_rights(self) -> None:
        """Raises CommandError if it may not change things."""
        if self.refusal is not None:
            raise CommandError(Code.FORBIDDEN, self.refusal)

    def facts(self) -> dict[str, Any]:
        """For a line of the log."""
        found = {"uid": self.uid, "peer_pid": self.pid, "address": self.address, "user": self.user}
        return {key: value for key, value in found.items() if value is not None}


@dataclass(slots=True)
class Change:
    """What was asked for in one request. `is_told`: the programs it was for had a line each."""

    caller: Caller
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_line_per_program: bool = False

    def record(self, result: str, reason: str | None = None, program: str | None = None) -> None:
        """Writes the line. `result`: OK or the name of what went wrong; `program`: one of several."""
        facts: dict[str, Any] = {"command": self.command, "result": result, **_bounded(self.arguments)}
        if program is not None:
            facts["program"] = _text(program)
            self.has_line_per_program = True
        if reason:
            facts["reason"] = _text(reason)
        tell = log.warning if result == Code.FORBIDDEN.name else log.info
        tell("change.asked", **facts, **self.caller.facts())


_present: ContextVar[Change | None] = ContextVar("change", default=None)


def record_outcome(result: str, reason: str | None, program: str) -> None:
    """Writes the line for one program of the change that is being made, if one is."""
    change = _present.get()
    if change is not None:
        change.record(result, reason, program)


@contextmanager
def audited(change: Change) -> Iterator[None]:
    """Writes the line when what is done inside ends, however it ends, unless its programs had theirs."""
    token = _present.set(change)
    result, reason = UNFINISHED, None
    try:
        yield
        result = OK
    except RequestFailed as error:
        result, reason = error.fault, str(error)
        raise
    except Exception as error:
        result, reason = Code.FAILED.name, repr(error)
        raise
    finally:
        _present.reset(token)
        if not change.has_line_per_program:
            change.record(result, reason)


def _bounded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What may be written of the arguments, `name` as `program`."""
    others: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for key, value in arguments.items():
        if key == "name":
            found["program"] = _text(value)
        elif key == "names" and isinstance(value, list):
            found["programs"] = [_text(each) for each in value[:MAX_NAMES]]
            if len(value) > MAX_NAMES:
                found["more_programs"] = len(value) - MAX_NAMES
        elif key in SECRET:
            others[_text(key)] = f"{len(value)} long" if isinstance(value, str | bytes) else "not a text"
        elif len(others) < MAX_NAMES:
            others[_text(key)] = value if isinstance(value, bool | int | float) else _text(value)
    return {**found, **({"arguments": others} if others else {})}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
