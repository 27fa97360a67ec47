"""The ledger's file, as the one thread that writes it sees it: a batch of statements is one transaction.

Before each batch, a file that was deleted or replaced is made again with all its content; one that turns out to be
damaged is set aside for a new one. Nothing here waits, or tries again: that is `writer.py`.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from supervisor.host.ledger.migrations import transaction
from supervisor.host.ledger.pruning import PRUNED_AT_ONCE, Pruning, prune_rows, shrink_some
from supervisor.host.ledger.schema import (
    LedgerError,
    copy_deleted,
    decodable_errors,
    is_damage,
    is_transient,
    open_or_create,
    set_aside,
)
from supervisor.host.ledger.write_queue import QueuedStatement, Statement

MAX_LOGGED = 100  # characters of a statement; the values may be anything

log = structlog.get_logger()


class LedgerFile:
    """Owns `connection`, to the file `path`, from now on. Not for two threads at once.

    `write_before`: called before each attempt to write; if it raises OSError, nothing is written. `vital`: what a new
    file begins with if this one is lost.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        pruning: Pruning,
        path: Path,
        write_before: Callable[[], bool] = lambda: True,
        vital: Callable[[], Sequence[Statement]] = tuple,
    ) -> None:
        self.path = path
        self.replaced_text: str | None = None
        """What became of an earlier file that was lost while this daemon ran."""
        self._connection = connection
        self._pruning = pruning
        self._write_before = write_before
        self._vital = vital
        self._inode = path.stat().st_ino
        self._damage: sqlite3.Error | None = None  # of a file in whose place there is no new one yet
        self._is_moved = False  # away, to:
        self._moved_to: Path | None = None

    def write(self, batch: Sequence[QueuedStatement]) -> tuple[sqlite3.Error | OSError | None, int]:
        """Writes a batch in one transaction; returns the error that undid it, and how many statements were skipped.

        A statement that can never succeed is skipped, so that it does not block those after it.
        """
        try:
            self._write_before()
            if self._damage is None:
                self._restore_deleted()
            else:
                self._begin_anew(self._damage)
            error, lost = self._write_once(batch)
            if error is not None and is_damage(error):
                self._damage, self._is_moved = error, False
                self._begin_anew(error)
                error, lost = self._write_once(batch)
        except (sqlite3.Error, OSError, LedgerError) as failure:
            return (failure if isinstance(failure, sqlite3.Error | OSError) else OSError(str(failure))), 0
        except Exception as failure:  # without the writer's thread nothing more would be on the disk, unseen
            log.exception("internal.failed", path=str(self.path))
            return OSError(f"internal error {failure!r:.200}; the log has the traceback"), 0
        return error, lost

    def prune(self) -> bool:
        """Deletes some old rows, or gives some of their space back to the disk; returns whether there is more to do."""
        more = False
        with suppress(sqlite3.Error), decodable_errors(), transaction(self._connection):  # a disk in trouble: later
            more = self._pruning.prune_some(self._connection)
        return more or shrink_some(self._connection)

    def prune_programs(self, added: Mapping[str, int]) -> None:
        """Deletes old rows of the programs that have `added` many."""
        with suppress(sqlite3.Error), decodable_errors(), transaction(self._connection):
            for name, count in added.items():
                prune_rows(self._connection, "program = ?", (name,), count + PRUNED_AT_ONCE)

    def close(self) -> None:
        """Nothing is written after this."""
        self._connection.close()

    def _restore_deleted(self) -> None:
        """Makes the file again if it was deleted or replaced: SQLite would go on writing to one without a name."""
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                return
        copy_deleted(self._connection, self.path)
        self._open_again()
        self.replaced_text = f"the ledger {self.path} was deleted or replaced, and was made again with all its content"
        log.error("ledger.deleted", path=str(self.path), effect="made again with all its content")

    def _begin_anew(self, error: sqlite3.Error) -> None:
        """Moves a damaged file away and makes a new one in its place. If one of the two fails, it is tried again."""
        self._connection.close()
        if not self._is_moved:
            self._moved_to = set_aside(self.path) if self.path.exists() else None
            self._is_moved = True
        moved_to = self._moved_to
        self._open_again()
        with transaction(self._connection):
            for sql, values in self._vital():
                self._connection.execute(sql, values)
        self._damage = None
        self.replaced_text = f"the ledger was damaged ({error}) and is kept as {moved_to}; the history begins anew"
        effect = "the history begins anew; what is wanted and what runs is known"
        log.error("ledger.set_aside", error=str(error), moved_to=str(moved_to), effect=effect)

    def _open_again(self) -> None:
        self._connection, _ = open_or_create(self.path)
        self._inode = self.path.stat().st_ino

    def _write_once(self, batch: Sequence[QueuedStatement]) -> tuple[sqlite3.Error | None, int]:
        lost = 0
        try:
            with decodable_errors(), transaction(self._connection):
                for sql, values, _, _ in batch:
                    try:
                        with decodable_errors():
                            self._connection.execute(sql, [value() if callable(value) else value for value in values])
                    except Exception as error:  # such as a ValueError: what is no JSON
                        is_for_all = isinstance(error, sqlite3.Error) and (is_transient(error) or is_damage(error))
                        if is_for_all or isinstance(error, MemoryError):
                            raise
                        log.exception("ledger.not_recorded", statement=sql[:MAX_LOGGED], effect="it is left out")
                        lost += 1
        except sqlite3.Error as error:
            return error, 0
        return None, lost
