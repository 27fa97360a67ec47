"""Parses a notice file, which a person or a script writes; docs/notices.md describes the format."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind, RawNotice
from supervisor.host.notices.parsing import (
    ParseError,
    format_time,
    json_object,
    parse_json,
    parse_rfc3339,
    printable_line,
    text_field,
)
from supervisor.protocol.plurals import counted

VERSION = 1
SUFFIX = ".json"
MAX_AHEAD_S = 30 * 86400.0
MAX_PAST_S = 3600.0  # an older file was forgotten by its writer, and must not stop a job again
Word = TypeVar("Word", NoticeKind, Certainty)
_KEYS = frozenset({"version", "kind", "certainty", "deadline", "in_s", "reason"})


def parse_notice_file(name: str, body: bytes, written_wall_at: float, now: ClockReading) -> RawNotice:
    """The notice in the file `name`, last written at `written_wall_at` (Unix seconds). Raises ParseError.

    An empty file is a notice without a time, unless its name ends in .json: then it is still being written.
    """
    if not name.endswith(SUFFIX):
        if body:
            raise ParseError(f"it is not empty and its name does not end in {SUFFIX}; rename it, or empty it")
        return _raw_notice(name, NoticeKind.SHUTDOWN, Certainty.CERTAIN, None, None, "")
    fields = json_object(parse_json(body), "the notice")
    if unknown := sorted(set(fields) - _KEYS):
        raise ParseError(f"it has the unknown key {unknown[0]!r:.40}; known are {', '.join(sorted(_KEYS))}")
    if fields.get("version") != VERSION or isinstance(fields["version"], bool):
        raise ParseError(f"its version is {fields.get('version')!r:.40}; write {VERSION}")
    kind = _enum_value(NoticeKind, text_field(fields, "kind"))
    default = Certainty.POSSIBLE if kind in (NoticeKind.REBALANCE, NoticeKind.FREEZE) else Certainty.CERTAIN
    certainty = _enum_value(Certainty, text_field(fields, "certainty")) if "certainty" in fields else default
    if kind is NoticeKind.FREEZE and certainty is Certainty.CERTAIN:
        raise ParseError("a freeze can't be certain; remove certainty, or write kind maintenance")
    gone, warning_s = _parse_deadline(fields, written_wall_at, now)
    return _raw_notice(
        name, kind, certainty, gone, warning_s, text_field(fields, "reason") if "reason" in fields else ""
    )


def _raw_notice(
    name: str, kind: NoticeKind, certainty: Certainty, gone: datetime | None, warning_s: float | None, reason: str
) -> RawNotice:
    when = f" at {format_time(gone)}" if gone is not None else ""
    return RawNotice(
        slot=name,
        id=name,
        kind=kind,
        certainty=certainty,
        gone_wall_at=gone,
        warning_s=warning_s,
        is_cancellable=True,
        text=printable_line(reason) or f"the notice file {name} says {kind}{when}",
    )


def _enum_value(words: type[Word], value: str) -> Word:
    try:
        return words(value)
    except ValueError:
        raise ParseError(f"{value!r:.40} is not one of {', '.join(words)}") from None


def _parse_deadline(
    fields: dict[str, Any], written_wall_at: float, now: ClockReading
) -> tuple[datetime | None, float | None]:
    """When the host may be gone, and the longest warning that counts; both None if the file gives no time."""
    if "deadline" in fields and "in_s" in fields:
        raise ParseError("it has both deadline and in_s; write one of them")
    if "deadline" in fields:
        gone, warning_s = parse_rfc3339(text_field(fields, "deadline")), MAX_AHEAD_S
    elif "in_s" in fields:
        warning_s = _parse_seconds(fields["in_s"])
        try:
            gone = datetime.fromtimestamp(written_wall_at, UTC) + timedelta(seconds=warning_s)
        except (ValueError, OverflowError, OSError) as error:
            raise ParseError("its modification time is not a valid time; write it again") from error
    else:
        return None, None
    ahead_s = (gone - now.wall_at).total_seconds()
    if ahead_s > MAX_AHEAD_S:
        raise ParseError(f"its deadline is {ahead_s / 86400:.0f} days ahead; the most is {MAX_AHEAD_S / 86400:.0f}")
    if ahead_s < -MAX_PAST_S:
        raise ParseError(f"its deadline passed {counted(round(-ahead_s / 3600), 'hour')} ago; remove it")
    return gone, warning_s


def _parse_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_AHEAD_S:
        raise ParseError(f"in_s is {value!r:.40}; write seconds, 0 to {MAX_AHEAD_S:.0f}")
    return float(value)
