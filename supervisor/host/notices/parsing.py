"""Parses what comes from outside, strictly: JSON, its fields, and the time formats of the providers."""

import json
import re
from datetime import UTC, datetime
from typing import Any, NoReturn

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DATE = re.compile(r"(?:[A-Za-z]{3}, )?(\d{1,2}) ([A-Za-z]{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ParseError(ValueError):
    """Content that is not as documented; the text says what was expected and what came."""


def decode_text(body: bytes) -> str:
    """A short text without the white space around it. Raises ParseError if it is not UTF-8."""
    try:
        return body.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ParseError(f"not text: {body[:40]!r}") from error


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. Raises ParseError."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not JSON ({type(error).__name__}): {body[:40]!r}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def json_object(value: Any, what: str) -> dict[str, Any]:
    """`value` if it is a JSON object. Raises ParseError."""
    if not isinstance(value, dict):
        raise ParseError(f"{what} is not an object: {value!r:.60}")
    return value


def json_list(value: Any, what: str) -> list[Any]:
    """`value` if it is a JSON array. Raises ParseError."""
    if not isinstance(value, list):
        raise ParseError(f"{what} is not a list: {value!r:.60}")
    return value


def text_field(of: dict[str, Any], key: str) -> str:
    """The text under `key`. Raises ParseError if there is none."""
    value = of.get(key)
    if not isinstance(value, str):
        raise ParseError(f"{key} is not text: {value!r:.60}")
    return value


def printable_line(value: str, length: int = 200) -> str:
    """Somebody else's text, made printable and short for one line of a log."""
    return "".join(character if character.isprintable() else " " for character in value[:length]).strip()


def parse_rfc3339(value: str) -> datetime:
    """`2026-11-21T00:51:52Z` as an aware time. Raises ParseError."""
    if not _RFC3339.fullmatch(value):
        raise ParseError(f"not a time like 2026-11-21T00:51:52Z: {value!r:.60}")
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ParseError(f"there is no such time: {value!r:.60}") from error


def parse_http_date(value: str) -> datetime:
    """`21 Jan 2027 09:00:43 GMT` as an aware time, with or without a day of the week, which may be a wrong one.

    Read without strptime, whose month names follow the locale. Raises ParseError.
    """
    match = _DATE.fullmatch(value)
    if not match or match[2] not in _MONTHS:
        raise ParseError(f"not a time like 21 Jan 2027 09:00:43 GMT: {value!r:.60}")
    try:
        return datetime(
            int(match[3]),
            _MONTHS.index(match[2]) + 1,
            int(match[1]),
            int(match[4]),
            int(match[5]),
            int(match[6]),
            tzinfo=UTC,
        )
    except ValueError as error:
        raise ParseError(f"there is no such time: {value!r:.60}") from error


def format_time(moment: datetime) -> str:
    """A time as ids and texts of notices contain it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
