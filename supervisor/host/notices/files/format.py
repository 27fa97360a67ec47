"""What a notice file means: the format that people and scripts write."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind, RawNotice
from supervisor.host.notices.parsing import ParseError, document, line, members, rfc3339, stamp, word
from supervisor.protocol.plurals import counted

VERSION = 1
SUFFIX = ".json"
MAX_AHEAD_S = 30 * 86400.0
MAX_PAST_S = 3600.0  # a file whose time passed so long ago was forgotten, and must not stop anything again
Word = TypeVar("Word", NoticeKind, Certainty)
_KEYS = frozenset({"version", "kind", "certainty", "deadline", "in_s", "reason"})


def read_notice(name: str, body: bytes, written_wall_at: float, now: ClockReading) -> RawNotice:
    """The notice in the file `name`, last written at `written_wall_at` (seconds since 1970). Raises ReadingError.

    An empty file is a notice without a time, unless its name promises JSON: then it is still being written.
    """
    if not name.endswith(SUFFIX):
        if body:
            raise ParseError(f"it is not empty and its name does not end in {SUFFIX}; rename it, or empty it")
        return _announcement(name, NoticeKind.SHUTDOWN, Certainty.CERTAIN, None, None, "")
    said = members(document(body), "the notice")
    if unknown := sorted(set(said) - _KEYS):
        raise ParseError(f"it has the unknown key {unknown[0]!r:.40}; known are {', '.join(sorted(_KEYS))}")
    if said.get("version") != VERSION or isinstance(said["version"], bool):
        raise ParseError(f"its version is {said.get('version')!r:.40}; write {VERSION}")
    kind = _one_of(NoticeKind, word(said, "kind"))
    usual = Certainty.POSSIBLE if kind in (NoticeKind.REBALANCE, NoticeKind.FREEZE) else Certainty.CERTAIN
    certainty = _one_of(Certainty, word(said, "certainty")) if "certainty" in said else usual
    if kind is NoticeKind.FREEZE and certainty is Certainty.CERTAIN:
        raise ParseError("a freeze is nothing to stop for; leave certainty out, or write kind maintenance")
    gone, lead_s = _deadline(said, written_wall_at, now)
    return _announcement(name, kind, certainty, gone, lead_s, word(said, "reason") if "reason" in said else "")


def _announcement(
    name: str, kind: NoticeKind, certainty: Certainty, gone: datetime | None, lead_s: float | None, reason: str
) -> RawNotice:
    when = f" at {stamp(gone)}" if gone is not None else ""
    return RawNotice(
        slot=name,
        id=name,
        kind=kind,
        certainty=certainty,
        gone_wall_at=gone,
        warning_s=lead_s,
        is_cancellable=True,
        text=line(reason) or f"the notice file {name} says {kind}{when}",
    )


def _one_of(words: type[Word], value: str) -> Word:
    try:
        return words(value)
    except ValueError:
        raise ParseError(f"{value!r:.40} is none of {', '.join(words)}") from None


def _deadline(said: dict[str, Any], written_wall_at: float, now: ClockReading) -> tuple[datetime | None, float | None]:
    """When the host may be gone, and how far ahead that may be at most; both None if the file says no time."""
    if "deadline" in said and "in_s" in said:
        raise ParseError("it has both deadline and in_s; write one of them")
    if "deadline" in said:
        gone, lead_s = rfc3339(word(said, "deadline")), MAX_AHEAD_S
    elif "in_s" in said:
        lead_s = _seconds(said["in_s"])
        try:
            gone = datetime.fromtimestamp(written_wall_at, UTC) + timedelta(seconds=lead_s)
        except (ValueError, OverflowError, OSError) as error:
            raise ParseError("it was written at a time that is none; write it anew") from error
    else:
        return None, None
    ahead_s = (gone - now.wall_at).total_seconds()
    if ahead_s > MAX_AHEAD_S:
        raise ParseError(f"its deadline is {ahead_s / 86400:.0f} days ahead; the most is {MAX_AHEAD_S / 86400:.0f}")
    if ahead_s < -MAX_PAST_S:
        raise ParseError(f"its deadline passed {counted(round(-ahead_s / 3600), 'hour')} ago; remove it")
    return gone, lead_s


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_AHEAD_S:
        raise ParseError(f"in_s is {value!r:.40}; write seconds, 0 to {MAX_AHEAD_S:.0f}")
    return float(value)
