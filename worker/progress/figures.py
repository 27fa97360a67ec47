"""Numbers out of what a training step returns."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

MAX_METRICS = 100  # a message on the control pipe is at most 64 KiB


def metric_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Each value as one float: a tensor's, or the mean over the replicas of a per-replica one.

    Waits for the step that computes them. Those that are not finite are left out: JSON has no NaN, and a metric that
    is missing says as much.
    """
    found = {name: _mean(replica_values(value)) for name, value in list(values.items())[:MAX_METRICS]}
    return {name: number for name, number in found.items() if math.isfinite(number)}


def replica_metrics(values: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Each replica's own figure, of those values that have one."""
    found = {name: tuple(replica_values(value)) for name, value in list(values.items())[:MAX_METRICS]}
    return {name: figures for name, figures in found.items() if len(figures) > 1}


def replica_values(value: Any) -> list[float]:
    """The figures in a per-replica value, or the one in any other. Raises TypeError or ValueError for no number."""
    return [float(each) for each in getattr(value, "values", (value,))]


def _mean(figures: Iterable[float]) -> float:
    listed = list(figures)
    return sum(listed) / len(listed)
