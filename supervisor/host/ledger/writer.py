"""Writes to SQLite in a thread of its own, so that no caller waits for the disk, and retries when the disk is full.

What waits is in `write_queue.py`. Between writes, old rows are deleted (`pruning.py`), of a program that adds many
more often (`PRUNE_AFTER`): each has a quota in the file too.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

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
from supervisor.host.ledger.write_queue import QueuedStatement, Statement, Value, WriteQueue, queued_statement
from supervisor.protocol.plurals import counted

READ_WAIT_S = 5.0  # a read waits this long for the writes before it, then shows what is on the disk
GATHER_S = 0.01  # what happens together is written together: a commit costs more than what is in it
RETRY_S = 1.0  # first pause after a write that failed, doubled up to RETRY_MAX_S
RETRY_MAX_S = 30.0
PRUNE_EVERY_S = 3600.0  # what has to go in an hour is little
PRUNE_PAUSE_S = 0.2  # between two pieces, so that the disk has time for others
MAX_LOGGED = 100  # characters of a statement; the values may be anything
PRUNE_AFTER = 50  # saves and refusals of one program since it was last pruned: one that makes many grows no file

Select = Callable[..., list[sqlite3.Row]]
"""Runs a query, with its values as further arguments. Raises LedgerError."""

log = structlog.get_logger()


class LedgerWriter:
    """Queues statements and writes them in order, in a thread that owns `connection`, to the file `path`, from now on.

    `write_before`: called before each attempt to write. `vital`: what a new file begins with if this one is lost.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        pruning: Pruning,
        path: Path,
        write_before: Callable[[], bool] = lambda: True,
        vital: Callable[[], Sequence[Statement]] = tuple,
    ) -> None:
        self._path = path
        self._write_before = write_before
        self._vital = vital
        self._inode = path.stat().st_ino
        self.replaced_text: str | None = None
        """What became of an earlier file that was lost while this daemon ran."""
        self._pruning = pruning
        self._prune_at = time.monotonic()
        self._connection = connection
        self._damage: sqlite3.Error | None = None  # of a file in whose place there is no new one yet
        self._is_moved = False  # away, to:
        self._moved_to: Path | None = None
        self._queue = WriteQueue()
        self._changed = threading.Condition()
        self._queued = self._settled = self._lost = self._awaited = 0
        self._error: sqlite3.Error | OSError | None = None
        self._waiting: list[tuple[int, Future[None]]] = []
        self._closing = False
        self._groups = 0  # that are open
        self._before_groups = 0  # statements in the queue from before the first of them
        self._queued_before_groups = 0
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    @property
    def failure_text(self) -> str | None:
        """Why the latest write failed and how many records were lost so far; None if there is neither."""
        error, lost = self._error, self._lost
        if error is None and not lost:
            return None
        remedy = "free space on its disk" if "full" in str(error) else "make its disk work and writable"
        consequence = f"it is tried again and nothing is lost yet; {remedy}"
        if lost:
            consequence = f"{counted(lost, 'record')} lost"
        return f"{error or 'writing works again'}; {consequence}"

    def left_out(self, program: str) -> int:
        """How many records of a program were left out since the daemon's start, because it made too many."""
        with self._changed:
            return self._queue.left_out(program)

    def enqueue(self, sql: str, *values: Value, of: str | None = None) -> bool:
        """Queues one statement; False if it is dropped, and counted, as the queue is full or the writer closed.

        `of`: the program of whose worker's words it is made; None: of what operators want and the daemon does, for
        which there is always room.
        """
        statement = queued_statement(sql, values, of)
        with self._changed:
            if not self._queue.is_within_quota(statement):
                return False
            if self._closing or not self._queue.has_room_for(statement):
                self._lost += 1
                return False
            self._queue.append(statement)
            self._queued += 1
            if len(self._queue) == 1:  # else the thread is awake already, and will take all
                self._changed.notify_all()
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is queued while the block runs is written in one transaction: after a kill all of it is there, or
        nothing. So nothing of it is written before the block ends, which must not wait for it.
        """
        with self._changed:
            if not self._groups:
                self._before_groups, self._queued_before_groups = len(self._queue), self._queued
            self._groups += 1
        try:
            yield
        finally:
            with self._changed:
                self._groups -= 1
                if not self._groups and self._queued != self._queued_before_groups:  # most events record nothing
                    self._changed.notify_all()

    @property
    def queued(self) -> int:
        """How many statements were queued so far."""
        return self._queued

    def has_written(self, queued: int) -> bool:
        """Whether the first so many statements are on the disk."""
        return self._settled >= queued

    def _writable(self) -> int:
        """How many of the statements in the queue may be written now."""
        return self._before_groups if self._groups and not self._closing else len(self._queue)

    def wait_until_written(self) -> None:
        """Returns once all that is queued now is written, or a write has failed, or after READ_WAIT_S."""
        with self._changed:
            awaited = self._queued
            self._awaited += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled >= awaited or self._error is not None, READ_WAIT_S)
            self._awaited -= 1

    def written(self) -> "Future[None]":
        """Done once all that is queued now is written, or was tried in vain."""
        future = Future[None]()
        with self._changed:
            if self._closing or self._settled >= self._queued:
                future.set_result(None)
            else:
                self._waiting.append((self._queued, future))
                self._changed.notify_all()
        return future

    def close(self, timeout_s: float) -> None:
        """Writes what is queued, without retries, and closes the connection; waits at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._queue:
            remedy = "free space on its disk, or make it writable; then start the programs that are to run"
            log.error("ledger.lost_records", records=len(self._queue), error=str(self._error), remedy=remedy)

    def _run(self) -> None:
        pause = RETRY_S
        while batch := self._next_batch():
            with self._changed:
                waiting, self._waiting = self._waiting, []  # if it fails, who comes from here on waits for the next one
            error, lost = self._write(batch)
            self._report(error)
            with self._changed:
                self._error = error
                if error is None:
                    self._lost += lost
                    self._settled += len(batch)
                    self._queue.remove_first(len(batch))
                    self._before_groups -= min(self._before_groups, len(batch))
                self._changed.notify_all()
                if error is None:  # also who came during the write may wait for nothing but what it wrote
                    waiting += self._waiting
                    self._waiting = [waiter for waiter in waiting if waiter[0] > self._settled]
                    waiting = [waiter for waiter in waiting if waiter[0] <= self._settled]
                for _, future in waiting:
                    if future.set_running_or_notify_cancel():  # from here on nobody can cancel it
                        future.set_result(None)
                if error is not None and self._closing:
                    break
                if error is not None:
                    self._changed.wait_for(lambda: self._closing or self._waiting, pause)
            pause = RETRY_S if error is None else min(2 * pause, RETRY_MAX_S)
        self._connection.close()

    def _report(self, error: sqlite3.Error | OSError | None) -> None:
        """Says in the log that writing fails, or works again; once for each change."""
        if error is not None and self._error is None:
            effect = "what happens from now on is not on the disk; programs are supervised as ever"
            remedy = "free space on its disk, or make it writable; it is tried again"
            log.error("ledger.not_written", path=str(self._path), error=str(error), effect=effect, remedy=remedy)
        if error is None and self._error is not None:
            log.warning("ledger.written_again", path=str(self._path), lost_records=self._lost)

    def _next_batch(self) -> list[QueuedStatement]:
        """Waits for statements, pruning meanwhile, and returns all that are queued; empty once the writer is closed."""
        while True:
            self._prune_crowded()
            with self._changed:
                timeout_s = max(0.0, self._prune_at - time.monotonic())
                if self._changed.wait_for(lambda: self._writable() or self._closing, timeout_s):
                    self._changed.wait_for(lambda: self._awaited or self._closing or self._waiting, GATHER_S)
                    return self._queue.first(self._writable())
            self._prune()

    def _prune(self) -> None:
        more = False
        with suppress(sqlite3.Error), decodable_errors(), _transaction(self._connection):  # a disk in trouble: later
            more = self._pruning.prune_some(self._connection)
        if not more:
            more = shrink_some(self._connection)
        self._prune_at = time.monotonic() + (PRUNE_PAUSE_S if more else PRUNE_EVERY_S)

    def _prune_crowded(self) -> None:
        """Prunes programs that have added many rows, also while more come."""
        with self._changed:
            crowded = self._queue.pop_crowded(PRUNE_AFTER)
        if crowded and self._error is None:
            with suppress(sqlite3.Error), decodable_errors(), _transaction(self._connection):
                for name, added in crowded.items():
                    prune_rows(self._connection, "program = ?", (name,), added + PRUNED_AT_ONCE)

    def _write(self, batch: list[QueuedStatement]) -> tuple[sqlite3.Error | OSError | None, int]:
        """Writes a batch in one transaction; returns the error that undid it, and how many statements were skipped.

        A statement that can never succeed is skipped, so that it does not block those after it. A file that was deleted
        is made again first, and one that is damaged is set aside for a new one.
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
        except Exception as failure:  # without this thread nothing more would be on the disk, unseen
            log.exception("internal.failed", path=str(self._path))
            return OSError(f"internal error {failure!r:.200}; the log has the traceback"), 0
        return error, lost

    def _restore_deleted(self) -> None:
        """Makes the file again if it was deleted or replaced: SQLite would go on writing to one without a name."""
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                return
        copy_deleted(self._connection, self._path)
        self._open_again()
        self.replaced_text = f"the ledger {self._path} was deleted or replaced, and was made again with all its content"
        log.error("ledger.deleted", path=str(self._path), effect="made again with all its content")

    def _begin_anew(self, error: sqlite3.Error) -> None:
        """Moves a damaged file away and makes a new one in its place. If one of the two fails, it is tried again."""
        self._connection.close()
        if not self._is_moved:
            self._moved_to = set_aside(self._path) if self._path.exists() else None
            self._is_moved = True
        moved_to = self._moved_to
        self._open_again()
        with _transaction(self._connection):
            for sql, values in self._vital():
                self._connection.execute(sql, values)
        self._damage = None
        self.replaced_text = f"the ledger was damaged ({error}) and is kept as {moved_to}; the history begins anew"
        effect = "the history begins anew; what is wanted and what runs is known"
        log.error("ledger.set_aside", error=str(error), moved_to=str(moved_to), effect=effect)

    def _open_again(self) -> None:
        self._connection, _ = open_or_create(self._path)
        self._inode = self._path.stat().st_ino

    def _write_once(self, batch: list[QueuedStatement]) -> tuple[sqlite3.Error | None, int]:
        lost = 0
        try:
            with decodable_errors(), _transaction(self._connection):
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


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
