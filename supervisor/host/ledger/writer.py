"""Writes to SQLite in a thread of its own, so that no caller waits for the disk, and retries when the disk is full.

What waits is in `write_queue.py`; `ledger_file.py` writes it. Between writes, old rows are deleted, of a program that
adds many more often (`PRUNE_AFTER`): each has a quota in the file too.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import structlog

from supervisor.host.ledger.ledger_file import LedgerFile
from supervisor.host.ledger.write_queue import QueuedStatement, Value, WriteQueue, queued_statement
from supervisor.protocol.plurals import counted

READ_WAIT_S = 5.0  # a read waits this long for the writes before it, then shows what is on the disk
GATHER_S = 0.01  # what happens together is written together: a commit costs more than what is in it
RETRY_S = 1.0  # first pause after a write that failed, doubled up to RETRY_MAX_S
RETRY_MAX_S = 30.0
PRUNE_EVERY_S = 3600.0  # what has to go in an hour is little
PRUNE_PAUSE_S = 0.2  # between two pieces, so that the disk has time for others
PRUNE_AFTER = 50  # saves and refusals of one program since it was last pruned: one that makes many grows no file

Select = Callable[..., list[sqlite3.Row]]
"""Runs a query, with its values as further arguments. Raises LedgerError."""

log = structlog.get_logger()


class LedgerWriter:
    """Queues statements and writes them in order, in a thread that owns `file` from now on."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._prune_at = time.monotonic()
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
            error, lost = self._file.write(batch)
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
        self._file.close()

    def _report(self, error: sqlite3.Error | OSError | None) -> None:
        """Says in the log that writing fails, or works again; once for each change."""
        if error is not None and self._error is None:
            effect = "what happens from now on is not on the disk; programs are supervised as ever"
            remedy = "free space on its disk, or make it writable; it is tried again"
            log.error("ledger.not_written", path=str(self._file.path), error=str(error), effect=effect, remedy=remedy)
        if error is None and self._error is not None:
            log.warning("ledger.written_again", path=str(self._file.path), lost_records=self._lost)

    def _next_batch(self) -> list[QueuedStatement]:
        """Waits for statements, pruning meanwhile, and returns all that are queued; empty once the writer is closed."""
        while True:
            self._prune_crowded()
            with self._changed:
                timeout_s = max(0.0, self._prune_at - time.monotonic())
                if self._changed.wait_for(lambda: self._writable() or self._closing, timeout_s):
                    self._changed.wait_for(lambda: self._awaited or self._closing or self._waiting, GATHER_S)
                    return self._queue.first(self._writable())
            more = self._file.prune()
            self._prune_at = time.monotonic() + (PRUNE_PAUSE_S if more else PRUNE_EVERY_S)

    def _prune_crowded(self) -> None:
        """Prunes programs that have added many rows, also while more come."""
        with self._changed:
            crowded = self._queue.pop_crowded(PRUNE_AFTER)
        if crowded and self._error is None:
            self._file.prune_programs(crowded)
