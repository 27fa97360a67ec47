"""The table `output_begins`: where in its program's logs the output of each attempt begins."""

from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.host.logs.files.positions import LogPosition


class OutputBeginsTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select

    def store(self, program: str, attempt: int, channel: str, position: LogPosition) -> None:
        """Stores where an attempt's output begins. Never waits, never raises."""
        inode, *rest = position  # an inode may be larger than SQLite's integers
        sql = "INSERT OR REPLACE INTO output_begins VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._writer.enqueue(sql, program, attempt, channel, str(inode), *rest)

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
