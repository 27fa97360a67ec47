"""The audit log: a line in the daemon's log for each change that a client requested, also if it was refused.

The line is written whatever `loglevel` is, there and in a log of its own (`changes_logfile`). Its event is
`change.asked`. Of what is refused to one client, only so much is written: it could push out everything else. What is
sent to a program's standard input or to event listeners is not logged, because it may contain passwords; only its
length is.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import structlog

from supervisor.control.base.errors import Code, CommandError, RequestFailed
from supervisor.host.daemon_log.daemon_log import CHANGES
from supervisor.protocol.wire.limits import TokenBucket

OK = "OK"
UNFINISHED = "UNFINISHED"
"""Instead of a result: the daemon exited before there was one."""

MAX_TEXT = 200  # of a name or value: the longest that belong here are shorter
MAX_NAMES = 100  # of one `update`, beyond which they are only counted
SECRET = frozenset({"chars", "base64", "data", "secret"})
"""JSON arguments, and kinds of XML-RPC parameters, whose values are not logged."""

REFUSALS_A_SECOND, REFUSALS_AT_ONCE = 0.1, 100  # of one user, or of all clients of TCP: 2 MB a day
MAX_USERS = 1000  # that are told apart

log = structlog.get_logger(CHANGES)
_refusals: dict[int | None, TokenBucket] = {}


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
        facts = {"uid": self.uid, "peer_pid": self.pid, "address": self.address, "user": self.user}
        return {key: value for key, value in facts.items() if value is not None}


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
        is_refusal = result == Code.FORBIDDEN.name
        if is_refusal and not _has_room(self.caller.uid):
            return
        write = log.warning if is_refusal else log.info
        write("change.asked", **facts, **self.caller.facts())


def _has_room(uid: int | None) -> bool:
    """Whether one more refusal to a user is written. The next one that is says how many were left out."""
    known = uid if uid in _refusals or len(_refusals) < MAX_USERS else None
    bucket = _refusals.setdefault(known, TokenBucket(REFUSALS_A_SECOND, REFUSALS_AT_ONCE))
    if not bucket.take(time.monotonic()):
        return False
    if bucket.dropped:
        log.warning("change.refusals_left_out", uid=uid, count=int(bucket.dropped))
        bucket.dropped = 0.0
    return True


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
    facts: dict[str, Any] = {}
    for key, value in arguments.items():
        if key == "name":
            facts["program"] = _text(value)
        elif key == "names" and isinstance(value, list):
            facts["programs"] = [_text(name) for name in value[:MAX_NAMES]]
            if len(value) > MAX_NAMES:
                facts["more_programs"] = len(value) - MAX_NAMES
        elif key in SECRET:
            others[_text(key)] = f"{len(value)} long" if isinstance(value, str | bytes) else "not a text"
        elif len(others) < MAX_NAMES:
            others[_text(key)] = value if isinstance(value, bool | int | float) else _text(value)
    return {**facts, **({"arguments": others} if others else {})}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
