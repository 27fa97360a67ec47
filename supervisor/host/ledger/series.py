"""The table `series`: the metrics of each job over its steps. One row per job, rewritten now and then.

The row is JSON, up to 1.4 MB of it, encoded in the ledger's thread. Every value is checked: a damaged row must neither
stop the daemon nor fill its memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from supervisor.core.series import MAX_BUCKETS, MAX_METRICS, MAX_NAME, Bucket, MetricSeries, Series
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.protocol.wire.codec import ProtocolError, decode_entries, encode_record, parse_object
from supervisor.protocol.wire.limits import Range, Text

_Value = Annotated[float, Range(-1e300, 1e300)]  # as in a message
_Row = tuple[int, int, _Value, int, Annotated[int, Range(1, 1 << 63)], _Value, _Value, _Value]
"""The fields of a bucket in their order."""


@dataclass(frozen=True, slots=True)
class _StoredSeries:
    per_bucket: Annotated[int, Range(1, 1 << 40)]
    buckets: tuple[_Row, ...]


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
        latest = self._latest.get(program)
        if latest is None:
            raise ValueError(f"{program} was removed before its series could be written")
        return to_json(latest)

    def forget(self, program: str) -> None:
        """The program is removed: its last series, some megabytes, is held no more. What was stored can be loaded."""
        if program not in self._queued:
            self._latest.pop(program, None)

    def load(self, program: str) -> MetricSeries:
        """Loads the series of a job; empty if there are none, or if they can't be decoded. Raises LedgerError."""
        rows = self._select("SELECT content FROM series WHERE program = ?", program)
        return from_json(rows[0]["content"]) if rows else MetricSeries()


Snapshot = list[tuple[str, int, tuple[Bucket, ...]]]
"""Each metric's name, reports per bucket, and buckets."""


def snapshot(series: MetricSeries) -> Snapshot:
    """The series as they are now, for another thread."""
    return [(name, metric.per_bucket, tuple(metric.buckets)) for name, metric in series.by_name.items()]


def to_json(series: Snapshot) -> str:
    """Encodes them in one line, for `from_json`; metric by metric, as no other thread runs while one is encoded."""
    encoded = (
        f"{encode_record(name)}:{encode_record(_StoredSeries(per_bucket, tuple(map(_row, buckets))))}"
        for name, per_bucket, buckets in series
    )
    return f"{{{','.join(encoded)}}}"


def from_json(text: str) -> MetricSeries:
    """Decodes them, without those that are invalid."""
    try:
        body = dict(list(parse_object(text).items())[:MAX_METRICS])
    except ProtocolError:
        return MetricSeries()
    stored = decode_entries(body, Mapping[Annotated[str, Text(MAX_NAME)], _StoredSeries], "series")
    return MetricSeries(
        {
            name: Series([Bucket(*row) for row in series.buckets[-MAX_BUCKETS:]], series.per_bucket)
            for name, series in stored.items()
        }
    )


def _row(bucket: Bucket) -> _Row:
    return (
        *(bucket.first_step, bucket.step, bucket.wall_at, bucket.attempt),
        *(bucket.count, bucket.mean, bucket.least, bucket.greatest),
    )
