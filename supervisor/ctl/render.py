"""Results as text: lines, columns, sizes, ages."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from supervisor.protocol.plurals import counted_bytes

NAME_WIDTH = 30  # Supervisor's
GAP = 3
MAX_SPAN_S = 1e13  # 300,000 years


def status_lines(programs: Sequence[dict[str, Any]]) -> list[str]:
    """Supervisor's three columns: name, state, description."""
    width = max([NAME_WIDTH, *(len(program["name"]) for program in programs)]) + GAP
    return [_status_line(program, width) for program in programs]


def _status_line(program: dict[str, Any], width: int) -> str:
    """One program's line; a daemon of another version may say things that this can't show, which hides no other."""
    try:
        return f"{program['name']:<{width}}{program['wire_state']:<10}{one_line(program['description'])}"
    except (KeyError, TypeError, ValueError) as error:
        return f"{program['name']:<{width}}{'UNKNOWN':<10}{not_shown(error)}"


def not_shown(error: Exception) -> str:
    """Instead of what can't be shown of a program."""
    return f"cannot be shown: {error!r:.200}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as what is in them; the last column is not padded."""
    lines = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    ]


def one_line(text: str) -> str:
    """The text with line breaks replaced by blanks."""
    return " ".join(text.split("\n")) if "\n" in text else text


def size(count: int | None) -> str:
    """Bytes in the unit that fits; `unknown` if it is not known."""
    return "unknown" if count is None else counted_bytes(count)


def span(length_s: float | None) -> str:
    """A length of time as H:MM:SS; `unknown` if it is not known, or longer than a calendar."""
    if length_s is None or not length_s < MAX_SPAN_S:
        return "unknown"
    return str(timedelta(seconds=int(max(0.0, length_s))))


def age(since_wall: float | None, now_wall: float) -> str:
    """The time since then as H:MM:SS; `unknown` if it is not known."""
    return "unknown" if since_wall is None else span(now_wall - since_wall)


def moment(wall: float | None) -> str:
    """Local date and time; `unknown` if it is not known."""
    if wall is None:
        return "unknown"
    try:
        return datetime.fromtimestamp(wall).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # what a job wrote into its manifest may be no time at all
        return "unknown"


def rate(value: float) -> str:
    """Three digits, without an exponent for large values."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def number(value: int | None) -> str:
    """The number, or `unknown` if it is not known."""
    return "unknown" if value is None else str(value)
