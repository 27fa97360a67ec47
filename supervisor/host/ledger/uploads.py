"""The table `uploads`: how long the last uploads of each job to its mirror took. The newest rows of a job are kept."""

from collections import defaultdict

from supervisor.host.ledger.writer import LedgerWriter, Select


class UploadTable:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select) -> None:
        self._writer = writer
        self._select = select

    def store(self, program: str, upload_s: float, is_limited: bool, keep: int) -> None:
        """Stores one more upload, and drops all but the last `keep` of its kind. Never waits, never raises."""
        self._writer.enqueue("INSERT INTO uploads VALUES (?, ?, ?)", program, int(is_limited), upload_s, of=program)
        self._writer.enqueue(
            "DELETE FROM uploads WHERE program = ?1 AND limited = ?2 AND rowid NOT IN"
            " (SELECT rowid FROM uploads WHERE program = ?1 AND limited = ?2 ORDER BY rowid DESC LIMIT ?3)",
            program,
            int(is_limited),
            keep,
            of=program,
        )

    def load(self) -> dict[str, list[tuple[float, bool]]]:
        """Each job's uploads, oldest first: how long (s), and whether a limit held it back. Raises LedgerError."""
        rows = self._select(
            "SELECT program, limited, upload_s FROM uploads WHERE typeof(upload_s) = 'real' AND upload_s >= 0"
            " AND upload_s < 1e9 ORDER BY rowid"
        )
        uploads = defaultdict[str, list[tuple[float, bool]]](list)
        for row in rows:
            uploads[row["program"]].append((row["upload_s"], bool(row["limited"])))
        return dict(uploads)
