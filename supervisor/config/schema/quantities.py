"""Numbers, sizes and lengths of time, from their text. Every function raises ValueError, whose text goes on after the
key's name.
"""

import re
import resource
import sys
from typing import Literal

from supervisor.protocol import numbers
from supervisor.protocol.numbers import MAX_DURATION_S
from supervisor.protocol.wire.launch import Interval, parse_interval

MAX_SIZE_BYTES = 1 << 50  # larger than any disk it could lie on
MAX_COUNT = 1_000_000
MAX_PRIORITY = (1 << 31) - 1  # what XML-RPC can tell
MAX_LIMIT = 1 << 30  # the kernel's own bounds of what can be counted are lower
MAX_REPLAY = 0.5  # of training time; more would be another run beside it
UNLIMITED = resource.RLIM_INFINITY

_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_SIZE = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.IGNORECASE)

seconds = numbers.duration_s


def whole_number(text: str, lowest: int, highest: int = MAX_COUNT) -> int:
    """A whole number within limits."""
    number = numbers.whole_number(text, lowest, highest)
    if number is None:
        raise ValueError(f"is {text!r:.80}, not a whole number from {lowest} to {highest}")
    return number


def exit_codes(text: str) -> frozenset[int]:
    """Exit codes, separated by commas."""
    try:
        return frozenset(whole_number(part.strip(), 0, 255) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"is {text!r:.80}; write exit codes from 0 to 255, separated by commas") from error


def octal(text: str) -> int:
    """File mode bits, written in octal digits."""
    if not re.fullmatch(r"(0o?)?[0-7]{1,4}", text):
        raise ValueError(f"is {text!r:.80}, not octal digits; write for example 022 or 0700")
    return int(text.replace("o", ""), 8) & 0o7777


def size_bytes(text: str) -> int:
    """Bytes, or `50MB`, `10KB`, `1GB` (1 KB is 1024 bytes)."""
    match = _SIZE.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"is {text!r:.80}, not a size; write bytes as a number, or for example 50MB (KB, MB, GB)")
    if int(match[1]) * factor > MAX_SIZE_BYTES:
        raise ValueError(f"is {text}, larger than the limit of {MAX_SIZE_BYTES} bytes")
    return int(match[1]) * factor


def positive_size(text: str) -> int:
    """A size above 0."""
    if (size := size_bytes(text)) == 0:
        raise ValueError(f"is {text!r}; it must be more than 0")
    return size


def resource_limit(text: str, is_size: bool) -> int:
    """A number (or a size), or `unlimited`."""
    if text.lower() == "unlimited":
        return UNLIMITED
    return size_bytes(text) if is_size else whole_number(text, 1, MAX_LIMIT)


def cores(text: str) -> float:
    """A number of cores, as 2 or 0.5; at least a hundredth, as less is no time at all."""
    number = numbers.real_number(text, 0.01, 1e6)
    if number is None:
        raise ValueError(f"is {text!r:.80}; write a number of cores, for example 1.5, of at least 0.01")
    return number


def timeout(text: str) -> float:
    """A length of time above 0."""
    length = seconds(text)
    if length == 0:
        raise ValueError(f"is {text!r}; it must be longer than 0")
    return length


def timeout_or_none(text: str) -> float | None:
    """A length of time above 0, or `none`."""
    return None if text.lower() == "none" else timeout(text)


def learned_timeout(text: str) -> float | Literal["auto"] | None:
    """A length of time above 0, `none`, or `auto`."""
    if text.lower() == "auto":
        return "auto"
    return timeout_or_none(text)


def hours(text: str) -> float:
    """A length of time above 0 with its unit, in hours."""
    if re.fullmatch(r"[0-9.]+", text):
        raise ValueError(f"is {text!r:.80} without a unit; write for example '{text:.10} hours'")
    return timeout(text) / 3600.0


def interval(text: str) -> Interval | None:
    """`500 steps`, or a length of time with its unit; None for `auto`."""
    if text.lower() == "auto":
        return None
    try:
        parsed = parse_interval(text)
    except ValueError as error:
        written = "write for example '500 steps', '90 seconds' or '10 minutes'"
        raise ValueError(f"is {text!r:.80}, not an interval; {written}") from error
    if (parsed.seconds or 0.0) > MAX_DURATION_S:
        raise ValueError(f"is {text!r:.80}, longer than the limit of 366 days")
    return parsed


def loss_spike(text: str) -> float | None:
    """A number of deviations, or `off`."""
    if text.lower() == "off":
        return None
    factor = numbers.real_number(text, 1, sys.float_info.max)
    if factor is None:
        raise ValueError(f"is {text!r:.80}; write a number of deviations, at least 1, for example 20, or off")
    return factor


def replay(text: str) -> float | None:
    """A share of training time in percent, or `off`."""
    if text.lower() == "off":
        return None
    percent = numbers.real_number(text.removesuffix("%"), 0.01, 100 * MAX_REPLAY) if text.endswith("%") else None
    if percent is None:
        raise ValueError(f"is {text!r:.80}; write a share of training time from 0.01% to 50%, for example 1%, or off")
    return percent / 100
