"""Numbers and lengths of time that people write, from their text: on command lines, in configurations, in calls.

Python's own int() and float() are not for text from outside: they take digits of all scripts, `nan` and `inf`, and
fail at 4,301 digits. Underscores between digits stay, as Supervisor's configurations may have them.
"""

import re

MAX_WHOLE = (1 << 63) - 1  # what a database, and JSON's readers in other languages, can hold
MAX_DURATION_S = 366 * 86400.0  # a year: longer is a typing error, and timers are not made for it
UNITS = {"seconds": 1.0, "second": 1.0, "s": 1.0, "minutes": 60.0, "minute": 60.0, "min": 60.0, "m": 60.0,
         "hours": 3600.0, "hour": 3600.0, "h": 3600.0}  # fmt: skip

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_REAL = re.compile(r"[+-]?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.IGNORECASE)
_MAX_WHOLE_CHARACTERS = 20  # MAX_WHOLE with its sign
_MAX_REAL_CHARACTERS = 80


def whole_number(text: str, lowest: int = 0, highest: int = MAX_WHOLE) -> int | None:
    """The whole number that the text is; None if it is none, or outside the limits."""
    text = text.strip()
    if len(text) > _MAX_WHOLE_CHARACTERS or not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if lowest <= number <= highest else None


def real_number(text: str, lowest: float, highest: float) -> float | None:
    """The number that the text is; None if it is none, or outside the limits."""
    text = text.strip()
    if len(text) > _MAX_REAL_CHARACTERS or not _REAL.fullmatch(text):
        return None
    number = float(text)
    return number if lowest <= number <= highest else None


def duration_s(text: str) -> float:
    """A length of time, 0 included, in seconds: a number of them, or `30 s`, `5 minutes`, `1.5 hours`.

    Raises ValueError, whose text goes on after a name.
    """
    match = _DURATION.fullmatch(text.strip())
    factor = (UNITS.get(match[2].lower()) if match[2] else 1.0) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"is {text!r:.80}, not a length of time; write seconds as a number, or for example '5 minutes'"
        )
    length_s = float(match[1]) * factor
    if length_s > MAX_DURATION_S:
        raise ValueError(f"is {text!r:.80}, longer than the limit of 366 days")
    return length_s
