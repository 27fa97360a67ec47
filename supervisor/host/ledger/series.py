"""The table `series`: the metrics of each job over its steps. One row per job, rewritten now and then.

The row is JSON, up to 1.4 MB of it, encoded in the ledger's thread. Every value is checked: a damaged row must neither
stop the daemon nor fill its memory.
"""

import json
from collections.abc import Iterable
from typing import Any

from supervisor.core.series import MAX_BUCKETS, MAX_METRICS, MAX_NAME, Bucket, MetricSeries, Series
from supervisor.host.ledger.writer import LedgerWriter, Select

MAX_VALUE = 1e300  # as in a message; NaN is no less


class SeriesTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select
        self._latest: dict[str, Snapshot] = {}
        self._queued: set[str] = set()

    def store(self, program: str, series: MetricSeries) -> None:
        """Stores the series of a job. Never waits, never raises."""
        self._latest[program] = snapshot(series)
        if program not in self._queued:  # else a row waits to be written, and will have this content
            self._queued.add(program)  # first: the row may be written before the next line is done
            sql = "INSERT OR REPLACE INTO series VALUES (?, ?)"
            if not self._writer.enqueue(sql, program, lambda: self._encode(program), of=program):
                self._queued.discard(program)

    def _encode(self, program: str) -> str:
        """In the ledger's thread, each time that the row is tried."""
        self._queued.discard(program)  # first: what is stored from now on may be too late for this row
        return to_json(self._latest[program])

    def load(self, program: str) -> MetricSeries:
        """Loads the series of a job; empty if there are none, or if they can't be decoded. Raises LedgerError."""
        rows = self._select("SELECT content FROM series WHERE program = ?", program)
        return from_json(rows[0]["content"]) if rows else MetricSeries()


Snapshot = list[tuple[str, int, tuple[Bucket, ...]]]
"""Each metric's name, reports per bucket, and buckets."""


def snapshot(series: MetricSeries) -> Snapshot:
    """The series as they are now, for another thread."""
    return [(name, each.per_bucket, tuple(each.buckets)) for name, each in series.by_name.items()]


def to_json(series: Snapshot) -> str:
    """Encodes them in one line, for `from_json`; metric by metric, as no other thread runs while one is encoded."""
    encoded = (
        f'{json.dumps(name, allow_nan=False)}:{{"per_bucket":{per_bucket},"buckets":{_encode_buckets(buckets)}}}'
        for name, per_bucket, buckets in series
    )
    return f"{{{','.join(encoded)}}}"


def _encode_buckets(buckets: Iterable[Bucket]) -> str:
    rows = [(b.first_step, b.step, b.wall_at, b.attempt, b.count, b.mean, b.least, b.greatest) for b in buckets]
    return json.dumps(rows, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> MetricSeries:
    """Decodes them, without those that are invalid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    known = dict[str, Series]()
    for name, content in list(found.items())[:MAX_METRICS] if isinstance(found, dict) else ():
        try:
            if len(name) <= MAX_NAME:
                known[name] = _series(content)
        except (ValueError, TypeError, LookupError, OverflowError):
            continue
    return MetricSeries(known)


def _series(found: Any) -> Series:
    buckets = [_bucket(*each) for each in found["buckets"][-MAX_BUCKETS:]]
    return Series(buckets, min(max(1, int(found["per_bucket"])), 1 << 40))


def _bucket(first: Any, step: Any, at: Any, attempt: Any, count: Any, *values: Any) -> Bucket:
    whole, real = [int(each) for each in (first, step, attempt, count)], [float(each) for each in (at, *values)]
    if (
        not all(0 <= each < 1 << 63 for each in whole)
        or not all(abs(each) <= MAX_VALUE for each in real)
        or whole[3] < 1
    ):
        raise ValueError("a number that can't be")
    wall_at, mean, least, greatest = real
    return Bucket(whole[0], whole[1], wall_at, whole[2], whole[3], mean, least, greatest)
