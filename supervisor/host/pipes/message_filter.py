"""Which of the messages that a worker writes are passed on, and what the log and `status` say of the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.limits import TokenBucket
from supervisor.protocol.wire.messages import NAMES, STANDBY, FromWorker, Message

REPORT_EVERY_S = 10.0  # a worker that writes garbage is reported, but not for every line
MAX_SHOWN = 200  # characters of why a message was refused
SHOWN_FOR_S = 3600.0  # after the last message that was refused or left out


@dataclass(slots=True)
class RefusedMessages:
    """What was not passed on of what a worker wrote. Times are monotonic seconds.

    `refused`: messages that are none, or out of their limits, `why` the last one; `left_out`: those that came more
    often than their type may, `too_often` being the last such type.
    """

    refused: int = 0
    why: str = ""
    left_out: int = 0
    too_often: str = ""
    last_at: float = 0.0

    def describe(self, now: float) -> list[str]:
        """What `status` says of it; nothing an hour after the last one."""
        if not (self.refused or self.left_out) or now - self.last_at > SHOWN_FOR_S:
            return []
        nonsense = f"sends nonsense: {self.why} ({counted(self.refused, 'message')} refused)" if self.refused else ""
        often = f"sends {self.too_often} too often ({counted(self.left_out, 'message')} left out)"
        return [each for each in (nonsense, often if self.left_out else "") if each]


NOTHING_REFUSED = RefusedMessages()
"""Of a program that has no worker yet."""


class MessageFilter:
    """Passes the messages of one attempt, each type as often as its rate allows."""

    def __init__(self, attempt: int, on_error: Callable[[str], None]) -> None:
        self.attempt = attempt
        self.reports = ErrorReports(on_error)
        self.refusals = RefusedMessages()
        self._buckets: dict[type[Message], TokenBucket] = {}

    def passes(self, item: Message | ProtocolError, now: float) -> TypeGuard[FromWorker]:
        """Whether it is a message that this attempt may send at `now`; if not, that is reported."""
        if isinstance(item, ProtocolError):
            self._refuse("garbage", str(item), now)
        elif not isinstance(item, FromWorker):
            self._refuse("direction", f"{type(item).__name__} is sent to workers, not by them; ignored", now)
        elif item.attempt == STANDBY != self.attempt:
            pass  # sent before it was promoted
        elif item.attempt != self.attempt:
            pipe = f"came through the pipe of attempt {self.attempt}"
            self.reports.add("attempt", f"{type(item).__name__} of attempt {item.attempt} {pipe}; ignored", now)
        else:
            return not self._comes_too_often(item, now)
        return False

    def _refuse(self, kind: str, why: str, now: float) -> None:
        self.refusals.refused += 1
        self.refusals.why, self.refusals.last_at = why[:MAX_SHOWN], now
        self.reports.add(kind, why, now)

    def _comes_too_often(self, message: FromWorker, now: float) -> bool:
        kind = type(message)
        bucket = self._buckets.get(kind) or self._buckets.setdefault(
            kind, TokenBucket(message.rate.per_s, message.rate.burst)
        )
        if bucket.take(now):
            return False
        self.refusals.left_out += 1
        self.refusals.too_often, self.refusals.last_at = NAMES[kind], now
        self.reports.add("rate", f"{NAMES[kind]} comes more often than {message.rate}; left out", now)
        return True


class ErrorReports:
    """Reports errors: the first of each kind at once, then at most one in REPORT_EVERY_S, with a count."""

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._quiet_until: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def add(self, kind: str, text: str, now: float) -> None:
        """Reports an error, or counts it."""
        if now < self._quiet_until.get(kind, now):
            self._held_back[kind] = self._held_back.get(kind, 0) + 1
            return
        more = self._held_back.pop(kind, 0)
        self._quiet_until[kind] = now + REPORT_EVERY_S
        self._on_error(f"{text} ({more} more since the last report)" if more else text)

    def close(self) -> None:
        """Reports what was counted."""
        for kind, more in self._held_back.items():
            self._on_error(f"{more} more errors of the kind {kind!r} since the last report")
        self._held_back.clear()
