"""Checks the arguments of runs at once, so that an error names the argument and what to write."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from supervisor.protocol.wire.launch import ON_NAN, Interval, parse_interval


def check_total_steps(given: Any) -> int | None:
    """The number of steps; None: the loop decides. Accepts NumPy's numbers, and 1e5. Raises TypeError or ValueError."""
    if given is None:
        return None
    if isinstance(given, bool | str | bytes) or not (hasattr(given, "__index__") or hasattr(given, "__float__")):
        raise TypeError(f"cannot train for total_steps={given!r}; give a number of steps, as total_steps=10_000")
    steps = float(given)
    if not 0 <= steps < math.inf:
        raise ValueError(f"cannot train for total_steps={given!r}; give a finite number of steps")
    return math.ceil(steps)


def check_list(given: Any, name: str, example: str) -> tuple[Any, ...]:
    """The entries of an argument that takes a list. Raises TypeError for one object, or for a text."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"cannot use a {type(given).__name__} as {name}=; give a list, as {name}={example}")
    return tuple(given)


def check_interval(given: Any) -> Interval | None:
    """The argument `interval`; None if the costs of saves choose it. Raises TypeError for a number, which has no unit;
    ValueError for another text."""
    if given in (None, "auto"):
        return None
    if not isinstance(given, str):
        raise TypeError(f'cannot save at interval={given!r}; give a text with its unit, as "500 steps" or "10 minutes"')
    return parse_interval(given)


def require_names(unnamed: tuple[Any, ...]) -> None:
    """Raises TypeError if `step_done` was given numbers without names."""
    if unnamed:
        raise TypeError("cannot name what run.step_done was given; name each number, as run.step_done(loss=loss)")


def check_on_nan(on_nan: str | None) -> str | None:
    """Returns what a script gives as `on_nan`. Raises ValueError for anything that it can't be."""
    if on_nan is not None and on_nan not in ON_NAN:
        raise ValueError(f"cannot use on_nan={on_nan!r}; it can be {', '.join(ON_NAN)}")
    return on_nan
