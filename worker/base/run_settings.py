"""What a script gives to a run, checked at once, so that an error names the argument and what to write."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.protocol.wire.launch import ON_NAN, Interval, Launch, OnNan, parse_interval


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of one run, where the job's configuration goes before what the script gives.

    `total_steps`: None: the loop decides. `directory`: None: no checkpoints. `interval`: None: the costs of saves
    choose it. `generators`: the script's own. `leave_out`: objects and names that may begin anew. `state`: the initial
    values of `run.state`. `summaries`: the folder for TensorBoard.
    """

    total_steps: int | None
    directory: Path | None
    interval: Interval | None
    generators: tuple[Any, ...]
    leave_out: tuple[Any, ...]
    strict: bool
    on_nan: OnNan
    state: Mapping[str, Any] | None
    summaries: Path | None
    summary_every: int


def check_settings(
    launch: Launch,
    *,
    total_steps: Any,
    directory: str | Path | None,
    interval: Any,
    generators: Any,
    leave_out: Any,
    strict: bool,
    on_nan: str | None,
    state: Mapping[str, Any] | None,
    summaries: str | Path | None,
    summary_every: int,
) -> RunSettings:
    """The settings of a run of an attempt that was launched so. Raises TypeError or ValueError for an argument that
    can't be used."""
    return RunSettings(
        _check_total_steps(total_steps),
        launch.checkpoint_dir or (None if directory is None else Path(directory).absolute()),
        launch.checkpoint_interval or _check_interval(interval),
        _check_list(generators, "generators", "[rng]"),
        _check_list(leave_out, "leave_out", "[teacher]"),
        strict or launch.strict,
        launch.on_nan or _check_on_nan(on_nan) or "stop",
        state,
        None if summaries is None else Path(summaries),
        summary_every,
    )


def require_names(unnamed: tuple[Any, ...]) -> None:
    """Raises TypeError if `step_done` was given numbers without names."""
    if unnamed:
        raise TypeError("cannot name what run.step_done was given; name each number, as run.step_done(loss=loss)")


def _check_total_steps(value: Any) -> int | None:
    """Accepts NumPy's numbers, and 1e5."""
    if value is None:
        return None
    if isinstance(value, bool | str | bytes) or not (hasattr(value, "__index__") or hasattr(value, "__float__")):
        raise TypeError(f"cannot train for total_steps={value!r}; give a number of steps, as total_steps=10_000")
    steps = float(value)
    if not 0 <= steps < math.inf:
        raise ValueError(f"cannot train for total_steps={value!r}; give a finite number of steps")
    return math.ceil(steps)


def _check_list(entries: Any, name: str, example: str) -> tuple[Any, ...]:
    """The entries of an argument that takes a list, but not one object or a text."""
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise TypeError(f"cannot use a {type(entries).__name__} as {name}=; give a list, as {name}={example}")
    return tuple(entries)


def _check_interval(value: Any) -> Interval | None:
    """None for "auto". A number has no unit."""
    if value in (None, "auto"):
        return None
    if not isinstance(value, str):
        raise TypeError(f'cannot save at interval={value!r}; give a text with its unit, as "500 steps" or "10 minutes"')
    return parse_interval(value)


def _check_on_nan(value: str | None) -> OnNan | None:
    if value is not None and value not in ON_NAN:
        raise ValueError(f"cannot use on_nan={value!r}; it can be {', '.join(ON_NAN)}")
    return value
