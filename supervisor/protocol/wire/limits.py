"""What a field of a message may hold beside its type: `Annotated[int, Range(0, 9)]`. The codec checks it.

A program that sends more is wrong, or means harm. So each number here is far above what a sane one sends, and small
enough that nothing which reads it (a calendar, JavaScript, a line of a log, a row of the ledger) can be broken by it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from supervisor.protocol.layout import parse_name
from supervisor.protocol.plurals import counted

CUT = "…"


class OutOfLimits(ValueError):
    """A value is outside of its limit; the text goes after the field's name."""


class Limit(Protocol):
    """One limit."""

    def check(self, value: Any) -> None:
        """Raises OutOfLimits if the value is outside."""

    def fit(self, value: Any) -> Any:
        """The nearest value that is inside."""

    def __str__(self) -> str:
        """The limit in the words of docs/control-pipe.md."""


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `least` to `most`; one below `finest` counts as 0, which is then allowed, and nothing between."""

    least: float
    most: float
    finest: float = 0.0

    def check(self, value: float) -> None:
        """Raises OutOfLimits if the number is outside."""
        if not (self.least <= value <= self.most) or 0 < value < self.finest:
            raise OutOfLimits(f"is {_number(value)}, not {self}")

    def fit(self, value: float) -> float:
        """The nearest number inside; 0 or `least` for NaN."""
        if math.isnan(value):
            return type(value)(max(0, self.least))
        if 0 < value < self.finest:
            return 0.0
        return type(value)(min(max(value, self.least), self.most))

    def __str__(self) -> str:
        finest = f", 0 or at least {_number(self.finest)}" if self.finest else ""
        return f"{_number(self.least)} to {_number(self.most)}{finest}"


@dataclass(frozen=True, slots=True)
class Text:
    """At most so many characters. `keep_end`: a longer one loses its beginning, where the end says more."""

    most: int
    keep_end: bool = False

    def check(self, value: str) -> None:
        """Raises OutOfLimits if the text is longer."""
        if len(value) > self.most:
            raise OutOfLimits(f"has {len(value)} characters, at most {self.most} are allowed")

    def fit(self, value: str) -> str:
        """The text, cut if it is longer."""
        if len(value) <= self.most:
            return value
        return CUT + value[-(self.most - 1) :] if self.keep_end else value[: self.most - 1] + CUT

    def __str__(self) -> str:
        return f"{self.most} characters"


@dataclass(frozen=True, slots=True)
class Items:
    """At most so many of a list or an object. `says_more`: the last text of a list that is cut says how many are
    missing; otherwise they go without a word. `keep_end`: the last ones stay."""

    most: int
    says_more: bool = False
    keep_end: bool = False

    def check(self, value: Any) -> None:
        """Raises OutOfLimits if there are more."""
        if len(value) > self.most:
            raise OutOfLimits(f"has {len(value)} items, at most {self.most} are allowed")

    def fit(self, value: Any) -> Any:
        """As many as there may be."""
        if len(value) <= self.most:
            return value
        if isinstance(value, Mapping):
            return dict(list(value.items())[: self.most])
        if self.says_more:
            kept = value[: self.most - 1]
            return (*kept, f"and {len(value) - len(kept)} more")
        return value[-self.most :] if self.keep_end else value[: self.most]

    def __str__(self) -> str:
        return f"at most {self.most}"


@dataclass(frozen=True, slots=True)
class CheckpointNamed:
    """The name of a checkpoint of this job: `step-NNNNNNNNNN.aN`."""

    def check(self, value: str) -> None:
        """Raises OutOfLimits if it is another name."""
        if parse_name(value) is None:
            raise OutOfLimits(f"is {value!r:.80}, not the name of a checkpoint (step-NNNNNNNNNN.aN)")

    def fit(self, value: str) -> str:
        """The name: nothing is like a wrong one."""
        return value

    def __str__(self) -> str:
        return "`step-NNNNNNNNNN.aN`"


@dataclass(frozen=True, slots=True)
class FileNamed:
    """The name of a file or folder in some other folder, as its file system takes it."""

    def check(self, value: str) -> None:
        """Raises OutOfLimits if it is longer, a path, or holds what no name does."""
        if not value or "/" in value or "\0" in value or value in (".", "..") or len(value) > MAX_NAME:
            raise OutOfLimits(f"is {value!r:.80}, not the name of a file (at most {MAX_NAME} characters, without /)")

    def fit(self, value: str) -> str:
        """The name, cut if it is longer."""
        return value[:MAX_NAME]

    def __str__(self) -> str:
        return f"a name without `/`, {MAX_NAME} characters"


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a message may come: `burst` at once, and `per_s` a second in the long run. What comes beyond that is
    left out."""

    per_s: float
    burst: int

    def __str__(self) -> str:
        return f"{_number(self.per_s)} a second, {counted(self.burst, 'message')} at once"


MAX_NAME = 255  # NAME_MAX of Linux's file systems, in bytes


class TokenBucket:
    """Lets through what a rate allows. Times are monotonic seconds. `dropped`: how much it did not let through."""

    __slots__ = ("_at", "_burst", "_left", "_per_s", "dropped")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._left = float(burst)
        self._at = -math.inf
        self.dropped = 0.0

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Whether `amount` more is allowed at `now`; if not, it counts as dropped."""
        if self.has(now, amount):
            self._left -= amount
            return True
        self.dropped += amount
        return False

    def has(self, now: float, amount: float = 1.0) -> bool:
        """Whether `take` would allow it."""
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        return self._left >= amount

    def spend(self, now: float, amount: float) -> float:
        """Takes what cannot be refused any more; returns for how many seconds nothing more should come."""
        self.has(now)
        self._left -= amount
        return max(0.0, -self._left / self._per_s)


def _number(value: float) -> str:
    if isinstance(value, int) and value.bit_count() == 1 and value >= 1 << 22:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,.0f}" if abs(value) < 1e15 and float(value).is_integer() else f"{value:g}"


# --- what the fields of messages have in common ---------------------------------------------------------------------

MAX_EXACT = 1 << 53  # up to it, JavaScript's numbers are exact, and step and attempt fit a checkpoint's name
TEN_YEARS_S = 10 * 365 * 86400
FINEST_S = 1e-9  # the clocks count nanoseconds; what is shorter was not measured, and 1 / it is no speed

Attempt = Annotated[int, Range(0, 999_999_999)]  # nine digits in the name of a checkpoint
Step = Annotated[int, Range(0, MAX_EXACT)]
Count = Annotated[int, Range(0, MAX_EXACT)]
Id = Annotated[int, Range(0, MAX_EXACT)]
Pid = Annotated[int, Range(1, 1 << 22)]  # PID_MAX_LIMIT of 64-bit Linux
Bytes = Annotated[int, Range(0, MAX_EXACT)]  # 9 PB
Seconds = Annotated[float, Range(0, TEN_YEARS_S, FINEST_S)]
OrderedSeconds = Annotated[float, Range(0, 1e12)]  # in the daemon's orders: whatever its configuration says
PathText = Annotated[str, Text(4096)]  # PATH_MAX of Linux
Word = Annotated[str, Text(100)]
Checkpoint = Annotated[str, CheckpointNamed()]
ErrorText = Annotated[str, Text(4000)]  # a screenful; it goes into status, log and ledger
Flushes = Annotated[tuple[Id, ...], Items(1000, keep_end=True)]  # a stop or a notice makes one
Names = Annotated[tuple[Annotated[str, Text(200)], ...], Items(100, says_more=True)]  # as much as anybody reads
Metrics = Annotated[
    Mapping[Annotated[str, Text(200)], Annotated[float, Range(-1e300, 1e300)]],  # their mean is still a number
    Items(100),  # as many as worker.Run sends (worker/progress/metrics.py)
]
