"""The audit log: a line in the daemon's log for each change that a client requested, also if it was refused.

The line is written whatever `loglevel` is. Its event is `change.asked`. What is sent to a program's standard input or
to event listeners is not logged, because it may contain passwords; only its length is.
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
"""Instead of a result: the daemon exited before there was one."""

MAX_TEXT = 200  # of a name or value: the longest that belong here are shorter
MAX_NAMES = 100  # of one `update`, beyond which they are only counted
SECRET = frozenset({"chars", "base64", "data", "secret"})
"""JSON arguments, and kinds of XML-RPC parameters, whose values are not logged."""

log = structlog.get_logger(CHANGES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `uid`, `pid`: from the kernel, on a unix socket; `address`: on TCP; `user`: of the login.

    `refusal`: why this caller may not change anything, if so.
    """

    uid: int | None = None
    pid: int | None = None
    address: str | None = None
    user: str | None = None
    refusal: str | None = None

    def require_change_rights(self) -> None:
        """Raises CommandError if the caller may not change anything."""
        if self.refusal is not None:
            raise CommandError(Code.FORBIDDEN, self.refusal)

    def facts(self) -> dict[str, Any]:
        """The caller's known facts, for a line of the log."""
        found = {"uid": self.uid, "peer_pid": self.pid, "address": self.address, "user": self.user}
        return {key: value for key, value in found.items() if value is not None}


@dataclass(slots=True)
class Change:
    """A change that one request asks for. `has_line_per_program`: each of its programs has got a line of its own."""

    caller: Caller
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    has_line_per_program: bool = False

    def record(self, result: str, reason: str | None = None, program: str | None = None) -> None:
        """Writes the line. `result`: OK or the name of the fault; `program`: one of several."""
        facts: dict[str, Any] = {"command": self.command, "result": result, **_loggable(self.arguments)}
        if program is not None:
            facts["program"] = _text(program)
            self.has_line_per_program = True
        if reason:
            facts["reason"] = _text(reason)
        write = log.warning if result == Code.FORBIDDEN.name else log.info
        write("change.asked", **facts, **self.caller.facts())


_present: ContextVar[Change | None] = ContextVar("change", default=None)


def record_outcome(result: str, reason: str | None, program: str) -> None:
    """Writes the line for one program of the change under way, if there is one."""
    change = _present.get()
    if change is not None:
        change.record(result, reason, program)


@contextmanager
def audited(change: Change) -> Iterator[None]:
    """Writes the line when the block ends, however it ends, unless each program has got a line of its own."""
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


def _loggable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the arguments that is logged, `name` as `program`."""
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
