"""Deletes what the ledger no longer has to keep: old attempts, saves that nothing reads any more, refused checkpoints;
and gives the space back to the disk. Piece by piece: the writer's thread has records to write meanwhile."""

import sqlite3
import time
from dataclasses import dataclass

from supervisor.host.ledger.schema import ATTEMPT_TABLES, INCREMENTAL

LEAST_ATTEMPTS = 20  # of each program, whatever their age: the default of `history`
SAVES_KEPT = 1000  # of each program; only the last few are read, to estimate how long a save takes
REFUSALS_KEPT = 1000  # of each program: 50 of an attempt at most (runner/checkpoints/storage.py)
SHRINK_ABOVE_BYTES = 1 << 20  # of free pages in the file; below, they are used again
SHRINK_PAGES = 250  # given back at once: 1 MB, in some milliseconds
PRUNED_AT_ONCE = 100  # rows: takes some milliseconds, during which other records wait

_OLD_ATTEMPTS = """
SELECT program, attempt FROM attempts JOIN (SELECT program, max(attempt) AS newest FROM attempts GROUP BY program)
USING (program) WHERE ended_at IS NOT NULL
AND (attempt <= newest - ?1 OR (attempt <= newest - ?2 AND ended_at < ?3)) LIMIT ?4
"""
_OLD_SAVES = """
SELECT program, attempt, name FROM (SELECT program, attempt, name, row_number() OVER
(PARTITION BY program ORDER BY attempt DESC, step DESC) AS age FROM checkpoints WHERE {}) WHERE age > ? LIMIT ?
"""

_OLD_REFUSALS = """
SELECT program, attempt, name FROM (SELECT program, attempt, name, row_number() OVER
(PARTITION BY program ORDER BY attempt DESC, refused_at DESC) AS age FROM refusals WHERE {}) WHERE age > ? LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Pruning:
    """How many attempts of a program are kept, and for how many days."""

    attempts: int = 1000
    days: int = 365

    def prune_some(self, connection: sqlite3.Connection) -> bool:
        """Deletes some old rows in the caller's transaction; returns whether there are more. Raises sqlite3.Error."""
        before = time.time() - self.days * 86400.0
        most = max(self.attempts, LEAST_ATTEMPTS)
        old = connection.execute(_OLD_ATTEMPTS, (most, LEAST_ATTEMPTS, before, PRUNED_AT_ONCE)).fetchall()
        for table in ATTEMPT_TABLES:
            connection.executemany(f"DELETE FROM {table} WHERE program = ? AND attempt = ?", old)  # noqa: S608 - ours
        saves, refusals = prune_rows(connection, "1", (), PRUNED_AT_ONCE)
        return PRUNED_AT_ONCE in (len(old), saves, refusals)


def prune_rows(connection: sqlite3.Connection, where: str, values: tuple[str, ...], most: int) -> tuple[int, int]:
    """Deletes at most so many old saves, and refusals, in the caller's transaction; returns how many."""
    saves = connection.execute(_OLD_SAVES.format(where), (*values, SAVES_KEPT, most)).fetchall()
    connection.executemany(
        "UPDATE attempts SET checkpoints_pruned = checkpoints_pruned + 1 WHERE program = ? AND attempt = ?",
        [(program, attempt) for program, attempt, _ in saves],
    )
    connection.executemany("DELETE FROM checkpoints WHERE program = ? AND attempt = ? AND name = ?", saves)
    refusals = connection.execute(_OLD_REFUSALS.format(where), (*values, REFUSALS_KEPT, most)).fetchall()
    connection.executemany("DELETE FROM refusals WHERE program = ? AND attempt = ? AND name = ?", refusals)
    return len(saves), len(refusals)


def shrink_some(connection: sqlite3.Connection) -> bool:
    """Gives some free pages of the file back to the disk; returns whether there are more to give.

    A file of an earlier version, which can't do that piece by piece, is written anew once, if half of it is free.
    """
    try:
        (page_bytes,), (free,), (pages,), (mode,) = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_size", "freelist_count", "page_count", "auto_vacuum")
        )
        if free * page_bytes <= SHRINK_ABOVE_BYTES:
            return False
        if mode != INCREMENTAL:
            if 2 * free >= pages:
                connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return False
        connection.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES});")  # execute() would do one page of it
        is_last = (free - SHRINK_PAGES) * page_bytes <= SHRINK_ABOVE_BYTES
        if is_last:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:  # a disk in trouble: later
        return False
    return not is_last
