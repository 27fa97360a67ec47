"""The tables `checkpoints` and `refusals`: what attempts committed, how long saves took, what could not be restored;
and `uploads`."""

from collections import defaultdict

from supervisor.host.ledger.attempts import MAX_TEXT, AttemptTable
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.protocol.wire.limits import TEN_YEARS_S

UNMEASURED = 0  # the size of a checkpoint that nobody has looked at
UNTIMED_S = -1.0  # how long the save of a checkpoint took that was committed while no daemon ran


class CheckpointTable:
    """Access to the tables: writes go to the ledger's queue and never raise; reads happen in the caller's thread and
    raise LedgerError.
    """

    def __init__(self, writer: LedgerWriter, select: Select, attempts: AttemptTable) -> None:
        self._writer = writer
        self._select = select
        self._attempts = attempts

    def checkpoint_committed(
        self,
        program: str,
        attempt: int,
        name: str,
        step: int,
        save_s: float,
        stall_s: float,
        at: float,
    ) -> None:
        """Records a committed checkpoint, as its worker says; `checkpoint_measured` adds its size."""
        self._writer.enqueue(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            program,
            attempt,
            name,
            step,
            UNMEASURED,
            save_s,
            stall_s,
            at,
            of=program,
        )
        self._attempts.attempt_progressed(program, attempt, step)

    def checkpoint_found(
        self, program: str, attempt: int, name: str, step: int, size_bytes: int | None, at: float
    ) -> None:
        """Records a checkpoint that an attempt committed while no daemon ran, of a later step than those recorded."""
        self._writer.enqueue(
            "INSERT OR IGNORE INTO checkpoints SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7 WHERE ?4 >"
            " (SELECT coalesce(max(step), -1) FROM checkpoints WHERE program = ?1 AND attempt = ?2)",
            program,
            attempt,
            name,
            step,
            UNMEASURED if size_bytes is None else size_bytes,
            UNTIMED_S,
            at,
            of=program,
        )
        self._attempts.attempt_progressed(program, attempt, step)

    def checkpoint_measured(self, program: str, attempt: int, name: str, size_bytes: int) -> None:
        """Records how many bytes a checkpoint has on the disk."""
        self._writer.enqueue(
            "UPDATE checkpoints SET size_bytes = ? WHERE program = ? AND attempt = ? AND name = ?",
            size_bytes,
            program,
            attempt,
            name,
            of=program,
        )

    def checkpoint_refused(self, program: str, attempt: int, name: str, reason: str, at: float) -> None:
        """Records that `attempt` could not begin from a checkpoint: damaged, rolled back, or unfit for the program."""
        self._writer.enqueue(
            "INSERT OR REPLACE INTO refusals VALUES (?, ?, ?, ?, ?)",
            program,
            attempt,
            name[:MAX_TEXT],
            reason[:MAX_TEXT],
            at,
            of=program,
        )

    def recent_saves(self, limit: int) -> dict[str, list[tuple[float, int]]]:
        """How long the last `limit` saves of every program took (s) and their bytes on the disk, oldest first.

        The bytes are 0 where nobody looked. Rows that can't be true are left out.
        """
        rows = self._select(
            "SELECT program, save_s, size_bytes FROM (SELECT program, save_s, size_bytes, row_number() OVER"
            " (PARTITION BY program ORDER BY attempt DESC, step DESC) AS age FROM checkpoints"
            " WHERE typeof(save_s) = 'real' AND save_s BETWEEN 0 AND ? AND typeof(size_bytes) = 'integer')"
            " WHERE age <= ? ORDER BY program, age DESC",
            TEN_YEARS_S,
            limit,
        )
        saves: dict[str, list[tuple[float, int]]] = {}
        for row in rows:
            saves.setdefault(row["program"], []).append((row["save_s"], max(0, row["size_bytes"])))
        return saves


class UploadTable:
    """How long the last uploads of each job to its mirror took. The newest rows of a job are kept."""

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
