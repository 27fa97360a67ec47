"""The metrics that a script gives for a step, as numbers: of the whole, and of each replica."""

import math
from collections.abc import Mapping
from typing import Any

MAX_METRICS = 100  # a message on the control pipe has at most 64 KiB


def metric_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Each metric as one number: the value of a tensor, or the mean over the replicas of a per-replica value.

    Waits for the step that computes them. Values that are not finite are left out, because JSON can't hold them.
    """
    values = {name: replica_values(value) for name, value in list(metrics.items())[:MAX_METRICS]}
    means = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def replica_metrics(metrics: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """The values of all replicas, of those metrics that have more than one."""
    values = {name: tuple(replica_values(value)) for name, value in list(metrics.items())[:MAX_METRICS]}
    return {name: value for name, value in values.items() if len(value) > 1}


def replica_values(value: Any) -> list[float]:
    """Each replica's number of a per-replica value, or the one number. Raises TypeError or ValueError."""
    return [_number(part) for part in getattr(value, "values", (value,))]


def _number(part: Any) -> float:
    try:
        return float(part)
    except OverflowError:  # an integer that no float holds
        return math.inf if part > 0 else -math.inf
