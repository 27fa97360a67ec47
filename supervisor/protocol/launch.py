"""The environment variables through which the daemon tells a worker what it is; read here and nowhere else.

A script without a daemon may set the same variables by hand, or set none.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.messages import PROTOCOL, STANDBY

STRATEGIES = ("mirrored", "one-device", "multiworker", "tpu")
ON_NAN = ("stop", "rollback", "skip", "off")
STANDBYS = ("warm", "hot")
UNITS = {"seconds": 1.0, "second": 1.0, "s": 1.0, "minutes": 60.0, "minute": 60.0, "min": 60.0, "m": 60.0,
         "hours": 3600.0, "hour": 3600.0, "h": 3600.0}  # fmt: skip

_PREFIX: Final = "STEPKEEPER_"
_AMOUNT = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?)\s*([a-z]+)\s*", re.IGNORECASE)
_WHOLE = re.compile(r"0*[1-9][0-9]{0,17}")
_MEMBER = re.compile(r"([1-9][0-9]{0,5}) ([0-9]{1,7})")
_BEST = re.compile(r"\s*(min|max)\s+([^\s]+)\s*")


class LaunchError(ValueError):
    """A launch variable has a value that can't be used; the text names the variable."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How often to save: every so many steps, or seconds; exactly one of the two is set."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.seconds is None else f"{_short(self.seconds)} seconds"


def _short(number: float) -> str:
    """The number without a needless `.0`, and without losing a digit."""
    text = f"{number:g}"
    return text if float(text) == number else repr(number)


def parse_interval(text: str) -> Interval:
    """`500 steps`, `90 s`, `10 minutes`, `1.5 hours`. Raises ValueError."""
    match = _AMOUNT.fullmatch(text)
    if match is not None:
        amount, unit = float(match[1]), match[2].lower()
        if unit in ("steps", "step") and amount >= 1 and amount.is_integer():
            return Interval(steps=int(amount))
        if unit in UNITS and 0 < (seconds := amount * UNITS[unit]) < math.inf:
            return Interval(seconds=seconds)
    raise ValueError(f"{text!r} is not an interval; write for example '500 steps', '90 seconds' or '10 minutes'")


def parse_best(text: str) -> tuple[str, str]:
    """`min loss` or `max accuracy` as (mode, metric). Raises ValueError."""
    match = _BEST.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a rule for the best checkpoint; write 'min loss' or 'max accuracy'")
    return match[1], match[2]


def parse_loss_spike(text: str) -> float:
    """How many deviations off a loss is a spike, as `20`. Raises ValueError."""
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        raise ValueError(f"{text!r} is not a number of deviations; write a number of at least 1, for example 20")
    return factor


@dataclass(frozen=True, slots=True)
class Control:
    """What only a worker under a daemon has: its attempt, and the folder with its two control pipes.

    A standby has the attempt 0 until it becomes one (messages.STANDBY).
    """

    attempt: int
    pipes: Path


@dataclass(frozen=True, slots=True)
class Member:
    """What only a process has that the job's first process started to train beside it: its rank, from 1, and the
    descriptor of the socket between the two."""

    rank: int
    link: int


@dataclass(frozen=True, slots=True)
class DaemonIdentity:
    """The process that a standby belongs to. `start_time`: kernel ticks after boot."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Launch:
    """All a worker is told at its start. None: not said, the script's own value or the default holds.

    `checkpoint_interval_min`, `checkpoint_interval_max`: bounds (s) of an interval that the worker chooses itself;
    `between_failures_s`: the mean time between this job's failures, for that choice. `microbatches`: into how many
    parts each batch is divided. `waits_for`: this process is a standby of that daemon and not an attempt yet.
    """

    job: str = "job"
    control: Control | None = None
    checkpoint_dir: Path | None = None
    initial_checkpoint: Path | None = None
    export_dir: Path | None = None
    strategy: str | None = None
    replicas: int | None = None
    workers: int | None = None
    member: Member | None = None
    deterministic: bool = False
    strict: bool = False
    checkpoint_interval: Interval | None = None
    checkpoint_interval_min: float | None = None
    checkpoint_interval_max: float | None = None
    between_failures_s: float | None = None
    checkpoint_make_room: bool = False
    on_nan: str | None = None
    loss_spike: float | None = None
    microbatches: int = 1
    standby: str | None = None
    waits_for: DaemonIdentity | None = None
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)

    def to_environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads back to the same value."""
        values: dict[str, object | None] = {
            "PROTOCOL": PROTOCOL,
            "JOB": self.job,
            "ATTEMPT": (self.control and self.control.attempt) or None,
            "PIPES": self.control and self.control.pipes,
            "CHECKPOINT_DIR": self.checkpoint_dir,
            "INITIAL_CHECKPOINT": self.initial_checkpoint,
            "EXPORT_DIR": self.export_dir,
            "STRATEGY": self.strategy,
            "REPLICAS": self.replicas,
            "WORKERS": self.workers,
            "MEMBER": self.member and f"{self.member.rank} {self.member.link}",
            "DETERMINISTIC": "true" if self.deterministic else None,
            "STRICT": "true" if self.strict else None,
            "CHECKPOINT_INTERVAL": self.checkpoint_interval,
            "CHECKPOINT_INTERVAL_MIN": _seconds(self.checkpoint_interval_min),
            "CHECKPOINT_INTERVAL_MAX": _seconds(self.checkpoint_interval_max),
            "BETWEEN_FAILURES": _seconds(self.between_failures_s),
            "CHECKPOINT_MAKE_ROOM": "true" if self.checkpoint_make_room else None,
            "ON_NAN": self.on_nan,
            "LOSS_SPIKE": None if self.loss_spike is None else repr(self.loss_spike),
            "MICROBATCH": self.microbatches if self.microbatches > 1 else None,
            "STANDBY": self.standby,
            "WAITS_FOR": self.waits_for and f"{self.waits_for.pid} {self.waits_for.start_time}",
            "CHECKPOINT_KEEP": self.retention.checkpoint_keep,
            "CHECKPOINT_KEEP_EVERY": _hours(self.retention.checkpoint_keep_every),
            "CHECKPOINT_KEEP_BEST": _best(self.retention),
        }
        return {f"{_PREFIX}{key}": str(value) for key, value in values.items() if value is not None}


def from_environment(environment: Mapping[str, str]) -> Launch:
    """What the variables say. Raises LaunchError, naming the variable, the value and what would be right."""
    protocol = _whole(environment, "PROTOCOL")
    if protocol is not None and protocol != PROTOCOL:
        raise LaunchError(
            f"the daemon speaks protocol {protocol}, this worker {PROTOCOL}; "
            f"install the daemon's stepkeeper version in the job's environment"
        )
    attempt, pipes = _whole(environment, "ATTEMPT"), environment.get(f"{_PREFIX}PIPES")
    waits_for = _daemon(environment)
    if waits_for is not None and attempt is None:
        attempt = STANDBY
    if (attempt is None) != (pipes is None) or (waits_for is not None and attempt != STANDBY):
        raise LaunchError(
            f"{_PREFIX}ATTEMPT and {_PREFIX}PIPES must be set together, or neither; "
            f"{_PREFIX}WAITS_FOR goes with {_PREFIX}PIPES alone"
        )
    directory, initial = environment.get(f"{_PREFIX}CHECKPOINT_DIR"), environment.get(f"{_PREFIX}INITIAL_CHECKPOINT")
    return Launch(
        job=environment.get(f"{_PREFIX}JOB", "job"),
        control=Control(attempt, Path(pipes)) if attempt is not None and pipes is not None else None,
        checkpoint_dir=Path(directory) if directory else None,
        initial_checkpoint=Path(initial) if initial else None,
        export_dir=Path(export) if (export := environment.get(f"{_PREFIX}EXPORT_DIR")) else None,
        strategy=_strategy(environment),
        replicas=_whole(environment, "REPLICAS"),
        workers=_whole(environment, "WORKERS"),
        member=_member(environment),
        deterministic=_flag(environment, "DETERMINISTIC"),
        strict=_flag(environment, "STRICT"),
        checkpoint_interval=_interval(environment),
        checkpoint_interval_min=_length(environment, "CHECKPOINT_INTERVAL_MIN"),
        checkpoint_interval_max=_length(environment, "CHECKPOINT_INTERVAL_MAX"),
        between_failures_s=_length(environment, "BETWEEN_FAILURES"),
        checkpoint_make_room=_flag(environment, "CHECKPOINT_MAKE_ROOM"),
        on_nan=_on_nan(environment),
        loss_spike=_loss_spike(environment),
        microbatches=_whole(environment, "MICROBATCH") or 1,
        standby=_standby(environment),
        waits_for=waits_for,
        retention=_retention(environment),
    )


def without_launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` less the launch variables, for children of a worker and for programs that are no jobs."""
    return {key: value for key, value in environment.items() if not key.startswith(_PREFIX)}


def _hours(hours: float | None) -> str | None:
    return None if hours is None else f"{_short(hours)} hours"


def _seconds(length_s: float | None) -> str | None:
    return None if length_s is None else f"{_short(length_s)} seconds"


def _best(policy: RetentionPolicy) -> str | None:
    return None if policy.best_metric is None else f"{policy.best_mode} {policy.best_metric}"


def _whole(environment: Mapping[str, str], key: str) -> int | None:
    text = environment.get(_PREFIX + key)
    if text is None:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise LaunchError(f"{_PREFIX}{key} is {text!r}, not a whole number of at least 1")
    return int(text)


def _member(environment: Mapping[str, str]) -> Member | None:
    text = environment.get(f"{_PREFIX}MEMBER")
    if text is None:
        return None
    match = _MEMBER.fullmatch(text)
    if match is None:
        raise LaunchError(f"{_PREFIX}MEMBER is {text!r}, not a rank of at least 1 and a descriptor")
    return Member(int(match[1]), int(match[2]))


def _flag(environment: Mapping[str, str], key: str) -> bool:
    text = environment.get(_PREFIX + key, "false")
    if text not in ("true", "false"):
        raise LaunchError(f"{_PREFIX}{key} is {text!r}, not true or false")
    return text == "true"


def _strategy(environment: Mapping[str, str]) -> str | None:
    text = environment.get(f"{_PREFIX}STRATEGY")
    if text is not None and text not in STRATEGIES:
        raise LaunchError(f"{_PREFIX}STRATEGY is {text!r}; it can be {', '.join(STRATEGIES)}")
    return text


def _standby(environment: Mapping[str, str]) -> str | None:
    text = environment.get(f"{_PREFIX}STANDBY")
    if text is not None and text not in STANDBYS:
        raise LaunchError(f"{_PREFIX}STANDBY is {text!r}; it can be {' or '.join(STANDBYS)}")
    return text


def _daemon(environment: Mapping[str, str]) -> DaemonIdentity | None:
    text = environment.get(f"{_PREFIX}WAITS_FOR")
    if text is None:
        return None
    numbers = text.split(" ")
    if len(numbers) != 2 or not all(_WHOLE.fullmatch(each) for each in numbers):
        raise LaunchError(f"{_PREFIX}WAITS_FOR is {text!r}, not a pid and a start time")
    return DaemonIdentity(int(numbers[0]), int(numbers[1]))


def _on_nan(environment: Mapping[str, str]) -> str | None:
    text = environment.get(f"{_PREFIX}ON_NAN")
    if text is not None and text not in ON_NAN:
        raise LaunchError(f"{_PREFIX}ON_NAN is {text!r}; it can be {', '.join(ON_NAN)}")
    return text


def _loss_spike(environment: Mapping[str, str]) -> float | None:
    text = environment.get(f"{_PREFIX}LOSS_SPIKE")
    try:
        return None if text is None else parse_loss_spike(text)
    except ValueError as error:
        raise LaunchError(f"{_PREFIX}LOSS_SPIKE: {error}") from error


def _interval(environment: Mapping[str, str], key: str = "CHECKPOINT_INTERVAL") -> Interval | None:
    text = environment.get(_PREFIX + key)
    if text is None:
        return None
    try:
        return parse_interval(text)
    except ValueError as error:
        raise LaunchError(f"{_PREFIX}{key}: {error}") from error


def _length(environment: Mapping[str, str], key: str) -> float | None:
    interval = _interval(environment, key)
    if interval is not None and interval.seconds is None:
        raise LaunchError(f"{_PREFIX}{key} is {str(interval)!r}, not a length of time")
    return None if interval is None else interval.seconds


def _retention(environment: Mapping[str, str]) -> RetentionPolicy:
    newest = _whole(environment, "CHECKPOINT_KEEP")
    every = environment.get(f"{_PREFIX}CHECKPOINT_KEEP_EVERY")
    best = environment.get(f"{_PREFIX}CHECKPOINT_KEEP_BEST")
    try:
        seconds = parse_interval(every).seconds if every is not None else None
        mode, metric = parse_best(best) if best is not None else ("min", None)
    except ValueError as error:
        raise LaunchError(f"{_PREFIX}CHECKPOINT_KEEP_EVERY or _BEST: {error}") from error
    if every is not None and seconds is None:
        raise LaunchError(f"{_PREFIX}CHECKPOINT_KEEP_EVERY is {every!r}, not a length of time")
    return RetentionPolicy(
        checkpoint_keep=newest if newest is not None else RetentionPolicy().checkpoint_keep,
        checkpoint_keep_every=None if seconds is None else seconds / 3600,
        best_metric=metric,
        best_mode=mode,
    )
