"""What the ledger forgets: attempts beyond a number or an age, and saves that nothing reads any more."""

import sqlite3
import time
from dataclasses import dataclass

LEAST_ATTEMPTS = 20  # of each program, whatever their age: what `history` shows unless asked for more
SAVES_KEPT = 1000  # of each program; only the last few are read, to know how long a save takes
PIECE = 100  # rows at a time: some milliseconds, in which no other record waits

_OLD_ATTEMPTS = """
SELECT program, attempt FROM attempts JOIN (SELECT program, max(attempt) AS newest FROM attempts GROUP BY program)
USING (program) WHERE ended_at IS NOT NULL
AND (attempt <= newest - ?1 OR (attempt <= newest - ?2 AND ended_at < ?3)) LIMIT ?4
"""
_OLD_SAVES = """
SELECT program, attempt, name FROM (SELECT program, attempt, name, row_number() OVER
(PARTITION BY program ORDER BY attempt DESC, step DESC) AS age FROM checkpoints) WHERE age > ? LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Pruning:
    """How many attempts of a program stay, and for how many days."""

    attempts: int = 1000
    days: int = 365

    def piece(self, connection: sqlite3.Connection) -> bool:
        """Forgets some of what may go, inside the caller's transaction; whether there is more. Raises sqlite3.Error."""
        before = time.time() - self.days * 86400.0
        most = max(self.attempts, LEAST_ATTEMPTS)
        old = connection.execute(_OLD_ATTEMPTS, (most, LEAST_ATTEMPTS, before, PIECE)).fetchall()
        for table in ("attempts", "checkpoints", "refusals", "accounts"):
            connection.executemany(f"DELETE FROM {table} WHERE program = ? AND attempt = ?", old)  # noqa: S608 - ours
        saves = connection.execute(_OLD_SAVES, (SAVES_KEPT, PIECE)).fetchall()
        connection.executemany(
            "UPDATE attempts SET checkpoints_pruned = checkpoints_pruned + 1 WHERE program = ? AND attempt = ?",
            [(program, attempt) for program, attempt, _ in saves],
        )
        connection.executemany("DELETE FROM checkpoints WHERE program = ? AND attempt = ? AND name = ?", saves)
        return len(old) == PIECE or len(saves) == PIECE
