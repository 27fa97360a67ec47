"""The history of all programs on disk: one file, opened here, and a class for each subject that is kept in it.

Writes are queued and done by one thread, so the event loop never waits for a disk. Reads use a connection of their own
in the caller's thread and see every write that was queued before them. Times are Unix wall seconds.
"""

import asyncio
import sqlite3
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

from supervisor.host.ledger.accounts import Accounts
from supervisor.host.ledger.attempts import AttemptTable, statements_of_open
from supervisor.host.ledger.checkpoints import CheckpointTable, UploadTable
from supervisor.host.ledger.job_states import JobStates
from supervisor.host.ledger.ledger_file import LedgerFile
from supervisor.host.ledger.output_begins import OutputBeginsTable
from supervisor.host.ledger.proofs import ProofTable
from supervisor.host.ledger.pruning import Pruning
from supervisor.host.ledger.schema import (
    LedgerError,
    check_version,
    connect_reading,
    decodable_errors,
    open_or_create,
    remove_impossible_attempts,
)
from supervisor.host.ledger.series import SeriesTable
from supervisor.host.ledger.wanted import WantedPrograms, statements_of, stored_wanted
from supervisor.host.ledger.wanted_file import FILE, WantedFile, check_wanted_format, read_wanted
from supervisor.host.ledger.write_queue import Statement, Value
from supervisor.host.ledger.writer import LedgerWriter
from supervisor.host.processes.process_status import read_boot_id

__all__ = ["Ledger", "LedgerError"]

LEDGER = "ledger.sqlite3"
"""Its name in the state folder."""

CLOSE_WAIT_S = 5.0  # a full disk must not keep the daemon from leaving


class Ledger:
    """The ledger in the file `path`, created if it does not exist.

    `set_aside`: where a damaged ledger was moved to, else None; `is_lost`: it was deleted or emptied. In both cases the
    history begins anew, and what is wanted is known from the file beside it. Raises LedgerError if another version
    wrote one of the two files and this one can't use it, which then has not changed, or if it can't be opened.
    """

    def __init__(self, path: Path, pruning: Pruning | None = None) -> None:
        self._path = path
        was_there = path.exists() and path.stat().st_size > 0
        wanted_path = path.with_name(FILE)
        wanted = read_wanted(wanted_path)  # first: if a newer version wrote it, the ledger stays as it is
        connection, self.set_aside = open_or_create(path)
        boot_id = read_boot_id()
        self.repaired = remove_impossible_attempts(connection)
        """How many attempts with a number that no attempt can have were deleted."""
        self._wanted_file = WantedFile(wanted_path, stored_wanted(connection), wanted)
        self.is_lost = not was_there and self._wanted_file.was_there
        self._open_attempts = statements_of_open(connection)
        left = _rows_of(connection, "SELECT * FROM job_states")
        self._newest_states: dict[str, Statement] = {}
        self._file = LedgerFile(connection, pruning or Pruning(), path, self._wanted_file.write, self._vital)
        self._writer = LedgerWriter(self._file)
        self.wanted = WantedPrograms(self._writer, self._wanted_file)
        """What operators want, and how far each job has come."""
        self.attempts = AttemptTable(self._writer, self._select, boot_id, self._open_attempts)
        """The attempts of all programs and how they ended."""
        self.checkpoints = CheckpointTable(self._writer, self._select, self.attempts)
        """The checkpoints that attempts committed or could not restore."""
        self.accounts = Accounts(self._writer, self._select, boot_id)
        """Where the time of jobs went."""
        self.output_begins = OutputBeginsTable(self._writer, self._select)
        """Where in its logs the output of each attempt begins."""
        self.job_states = JobStates(self._writer, self._select, boot_id, left, self._newest_states)
        """What each job's failures taught: back-off, suspects, hang limits."""
        self.proofs = ProofTable(self._writer, self._select)
        """The newest proof of exactness of each job."""
        self.series = SeriesTable(self._writer, self._select)
        """The metrics of each job over its steps."""
        self.uploads = UploadTable(self._writer, self._select)
        """How long uploads to mirrors took."""

    @property
    def last_error(self) -> str | None:
        """Why the latest write failed, and how many records are lost so far; None if all is well."""
        trouble = self._writer.failure_text
        if trouble is not None:
            return f"cannot write the ledger {self._path}: {trouble}"
        if (replaced := self._file.replaced_text) is not None:
            return replaced
        if self.set_aside is not None:
            return f"the ledger was damaged and is kept as {self.set_aside}; the history begins anew"
        return f"the ledger {self._path} was deleted or emptied; the history begins anew" if self.is_lost else None

    def together(self) -> AbstractContextManager[None]:
        """What is recorded while the block runs is on the disk as a whole, or, after a kill, not at all: the end of an
        attempt with all that was decided for the next one. What is wanted is in its file first.
        """
        return self._writer.together()

    async def until_written(self, timeout_s: float) -> bool:
        """Waits until all that is recorded now is on the disk; False if it is not, and is tried again."""
        queued = self._writer.queued
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.wrap_future(self._writer.written())
        return self._writer.has_written(queued)

    def records_left_out(self, program: str) -> int:
        """How many records of a program were left out since the daemon's start, because it made too many."""
        return self._writer.left_out(program)

    def close(self) -> None:
        """Writes what is queued, waiting at most CLOSE_WAIT_S for a disk that refuses, and closes the file."""
        self._writer.close(CLOSE_WAIT_S)

    def _vital(self) -> list[Statement]:
        """What a new ledger has to have if the present one is lost: what is wanted, attempts that go on, and what was
        decided about next ones."""
        states = list(self._newest_states.values())
        return [*statements_of(self._wanted_file.content), *list(self._open_attempts.values()), *states]

    def _select(self, sql: str, *values: Value) -> list[sqlite3.Row]:
        if not self._path.exists():
            self._writer.enqueue("SELECT 1")  # has the writer notice, and make it again
        self._writer.wait_until_written()
        try:
            with decodable_errors(), closing(connect_reading(self._path)) as connection:
                return connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise LedgerError(
                f"cannot read the ledger {self._path}: {error}; if it is damaged, restarting the daemon sets it aside"
            ) from error


def check_state_folder(state_dir: Path) -> None:
    """Raises LedgerError if another version wrote what is in the folder and this one can't use it. Changes nothing."""
    check_version(state_dir / LEDGER)
    check_wanted_format(state_dir / FILE)


def _rows_of(connection: sqlite3.Connection, sql: str) -> list[dict[str, Any]]:
    """Raises LedgerError."""
    try:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read the ledger: {error}; if this stays so, move its file away") from error
