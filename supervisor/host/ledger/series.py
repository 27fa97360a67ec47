"""The table `series`: the metrics of each job over its steps. One row per job, rewritten now and then.

The row is JSON. Every value is checked: a damaged row must neither stop the daemon nor fill its memory.
"""

import json
import math
from dataclasses import astuple
from typing import Any

from supervisor.core.series import MAX_BUCKETS, MAX_METRICS, MAX_NAME, Bucket, MetricSeries, Series
from supervisor.host.ledger.writer import LedgerWriter, Select


class SeriesTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select

    def store(self, program: str, series: MetricSeries) -> None:
        """Stores the series of a job. Never waits, never raises."""
        self._writer.enqueue("INSERT OR REPLACE INTO series VALUES (?, ?)", program, to_json(series))

    def load(self, program: str) -> MetricSeries:
        """Loads the series of a job; empty if there are none, or if they can't be decoded. Raises LedgerError."""
        rows = self._select("SELECT content FROM series WHERE program = ?", program)
        return from_json(rows[0]["content"]) if rows else MetricSeries()


def to_json(series: MetricSeries) -> str:
    """Encodes them in one line, for `from_json`."""
    content = {
        name: {"per_bucket": each.per_bucket, "buckets": [astuple(bucket) for bucket in each.buckets]}
        for name, each in series.by_name.items()
    }
    return json.dumps(content, separators=(",", ":"))


def from_json(text: str) -> MetricSeries:
    """Decodes them; none for invalid text."""
    try:
        found = json.loads(text)
        return MetricSeries({name: _series(found[name]) for name in list(found)[:MAX_METRICS] if len(name) <= MAX_NAME})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return MetricSeries()


def _series(found: Any) -> Series:
    buckets = [_bucket(*each) for each in found["buckets"][-MAX_BUCKETS:]]
    return Series(buckets, min(max(1, int(found["per_bucket"])), 1 << 40))


def _bucket(first: Any, step: Any, at: Any, attempt: Any, count: Any, *values: Any) -> Bucket:
    whole, real = [int(each) for each in (first, step, attempt, count)], [float(each) for each in (at, *values)]
    if not all(0 <= each < 1 << 62 for each in whole) or not all(map(math.isfinite, real)) or whole[3] < 1:
        raise ValueError("a number that can't be")
    wall_at, mean, least, greatest = real
    return Bucket(whole[0], whole[1], wall_at, whole[2], whole[3], mean, least, greatest)
