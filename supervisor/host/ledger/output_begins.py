"""The table `output_begins`: where in its program's logs the output of each attempt begins."""

from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.host.logs.files.positions import LogPosition


class OutputBeginsTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select
        self._newest: dict[tuple[str, str], tuple[int, LogPosition]] = {}  # by program and channel

    def store(self, program: str, attempt: int, channel: str, position: LogPosition) -> None:
        """Stores where an attempt's output begins. Never waits, never raises."""
        self._newest[program, channel] = attempt, position
        inode, *rest = position  # an inode may be larger than SQLite's integers
        sql = "INSERT OR REPLACE INTO output_begins VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._writer.enqueue(sql, program, attempt, channel, str(inode), *rest)

    def newest(self, program: str, channel: str, attempt: int) -> LogPosition | None:
        """Where the output of its newest attempt begins; None if this daemon was not told of that. Reads no disk."""
        known = self._newest.get((program, channel))
        return known[1] if known is not None and known[0] == attempt else None

    def load(self, program: str, attempt: int, channel: str) -> tuple[LogPosition, LogPosition | None] | None:
        """Where an attempt's output begins, and where that of the next one does (None: there is no later one); None if
        the attempt's was not recorded. Raises LedgerError."""
        rows = self._select(
            "SELECT attempt, inode, offset, digest, at_ns FROM output_begins"
            " WHERE program = ? AND channel = ? AND attempt >= ? ORDER BY attempt LIMIT 2",
            program,
            channel,
            attempt,
        )
        if not rows or rows[0]["attempt"] != attempt:
            return None
        start, *later = (LogPosition(int(row["inode"]), *row[2:]) for row in rows)
        return start, later[0] if later else None
