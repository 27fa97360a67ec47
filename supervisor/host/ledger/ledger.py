"""The history of all programs on disk: which are to run, their attempts and how these ended, checkpoints.

Writes are queued and done by one thread, so the event loop never waits for a disk. Reads use a connection of their own
in the caller's thread and see every write that was queued before them. Times are Unix wall seconds.
"""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from supervisor.host.ledger.accounts import Accounts
from supervisor.host.ledger.attempts import AttemptRecord, LastEnd, OpenAttempt, attempt_history
from supervisor.host.ledger.job_states import JobStates
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
from supervisor.host.ledger.uploads import UploadTable
from supervisor.host.ledger.wanted_file import FILE, Wanted, WantedFile, account_in, check_wanted_format, read_wanted
from supervisor.host.ledger.writer import LedgerWriter, Statement, Value
from supervisor.host.processes.process_status import read_boot_id
from supervisor.protocol.checkpoints.account import ProgressAccount
from supervisor.protocol.wire.codec import encode_record
from supervisor.protocol.wire.messages import TEN_YEARS_S

__all__ = ["AttemptRecord", "LastEnd", "Ledger", "LedgerError", "OpenAttempt"]

_INSERT_ATTEMPT = (
    "INSERT OR REPLACE INTO attempts (program, attempt, pid, start_time, started_at, boot_id, microbatches)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)

LEDGER = "ledger.sqlite3"
"""Its name in the state folder."""

RECORD_WAIT_S = 10.0  # for the answer to a command; longer than SQLite waits for a lock
READ_WAIT_S = 5.0  # a read waits this long for the writes before it, then shows what is on the disk
MAX_TEXT = 4000  # characters of one text: a thousand attempts of a program take some megabytes at most
UNMEASURED = 0  # the size of a checkpoint that nobody has looked at
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
        found = read_wanted(wanted_path)  # first: if a newer version wrote it, the ledger stays as it is
        connection, self.set_aside = open_or_create(path)
        self._boot_id = read_boot_id()
        self.repaired = remove_impossible_attempts(connection)
        """How many attempts with a number that no attempt can have were deleted."""
        self._wanted = WantedFile(wanted_path, _stored_wanted(connection), found)
        self.is_lost = not was_there and self._wanted.was_there
        self._live: dict[str, Statement] = {
            row[0]: (_INSERT_ATTEMPT, tuple(row))
            for row in connection.execute(
                "SELECT program, attempt, pid, start_time, started_at, boot_id, microbatches FROM attempts"
                " WHERE ended_at IS NULL ORDER BY attempt"
            )
        }
        """By program: what records its attempt that has no end yet."""
        left = _rows_of(connection, "SELECT * FROM job_states")
        self._progress_queued: set[str] = set()  # programs whose account waits to be written
        self._writer = LedgerWriter(connection, pruning or Pruning(), path, self._wanted.write, self._vital)
        if self._wanted.was_there:
            for sql, values in self._statements_of_wanted():
                self._writer.enqueue(sql, *values)
        self._writer.enqueue("SELECT 1")  # writes the file of what is wanted, if there is none
        self.accounts = Accounts(self._writer, self._select, self._boot_id)
        """Where the time of jobs went."""
        self.output_begins = OutputBeginsTable(self._writer, self._select)
        """Where in its logs the output of each attempt begins."""
        self.job_states = JobStates(self._writer, self._select, self._boot_id, left)
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
        if (replaced := self._writer.replaced_text) is not None:
            return replaced
        if self.set_aside is not None:
            return f"the ledger was damaged and is kept as {self.set_aside}; the history begins anew"
        return f"the ledger {self._path} was deleted or emptied; the history begins anew" if self.is_lost else None

    def records_left_out(self, program: str) -> int:
        """How many records of a program were left out since the daemon's start, because it made too many."""
        return self._writer.left_out(program)

    async def until_recorded(self) -> str | None:
        """Waits until what is wanted now is on the disk; returns why it is not, or None. It is tried again for ever."""
        awaited = self._wanted.changes
        if self._wanted.has_written(awaited):
            return None
        late = None
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._writer.written()), RECORD_WAIT_S)
        except TimeoutError:
            late = f"its disk did not answer within {RECORD_WAIT_S:g} s"
        if self._wanted.has_written(awaited):  # whatever keeps the ledger from being written, or has changed since
            return None
        return self._writer.failure_text or late  # without either, the ledger has it

    # --- writes: queued, never wait, never raise ---------------------------------------------------------------------

    def record_wanted(self, program: str, wanted: bool) -> None:
        """Records whether the program is to run, also after the next start of the daemon."""
        self._wanted.set_wanted(program, wanted)
        self._writer.enqueue(
            "INSERT INTO programs VALUES (?, ?) ON CONFLICT (program) DO UPDATE SET wanted = excluded.wanted",
            program,
            int(wanted),
        )

    def record_progress(self, program: str, account: ProgressAccount) -> None:
        """Records how far a job has come: in the file of what is wanted, and in the ledger."""
        self._wanted.set_progress(program, account)
        if program not in self._progress_queued:  # else a row waits to be written, and will have this account
            self._progress_queued.add(program)  # first: the row may be written before the next line is done
            sql = "INSERT OR REPLACE INTO progress VALUES (?, ?)"
            if not self._writer.enqueue(sql, program, lambda: self._encode_progress(program)):
                self._progress_queued.discard(program)

    def _encode_progress(self, program: str) -> str:
        """In the ledger's thread, each time that the row is tried."""
        self._progress_queued.discard(program)  # first: what is recorded from now on may be too late for this row
        return encode_record(self._wanted.progress_of(program))

    def forget_program(self, program: str) -> None:
        """Forgets whether a program is to run, as it is no longer configured. Its history stays."""
        self._wanted.set_wanted(program, None)
        self._writer.enqueue("DELETE FROM programs WHERE program = ?", program)

    def record_removed(self, program: str) -> None:
        """Records that an operator removed the program: it stays removed until it is added again."""
        self._wanted.set_removed(program, True)
        self._writer.enqueue("INSERT OR IGNORE INTO removed_programs VALUES (?)", program)

    def record_added(self, program: str) -> None:
        """Records that the program was added again, or is no longer configured."""
        self._wanted.set_removed(program, False)
        self._writer.enqueue("DELETE FROM removed_programs WHERE program = ?", program)

    def attempt_started(
        self, program: str, attempt: int, pid: int, start_time: int, at: float, microbatches: int = 1
    ) -> None:
        """A process was started; pid and start time identify it to a later daemon.

        `microbatches`: into how many parts it divides each batch.
        """
        values = (program, attempt, pid, start_time, at, self._boot_id, microbatches)
        self._live[program] = _INSERT_ATTEMPT, values
        self._writer.enqueue(_INSERT_ATTEMPT, *values)

    def attempt_older(self, program: str, attempt: int, because: str, text: str) -> None:
        """Records that an attempt begins from an older checkpoint than the newest one, and why."""
        self._writer.enqueue(
            "UPDATE attempts SET older_because = ?, older_text = ? WHERE program = ? AND attempt = ?",
            because,
            text,
            program,
            attempt,
        )

    def attempt_restored(
        self, program: str, attempt: int, checkpoint: str | None, step: int, changed: tuple[str, ...] = ()
    ) -> None:
        """Records that training begins at `step`, from `checkpoint` or anew. `changed`: which conditions differ."""
        self._writer.enqueue(
            "UPDATE attempts SET restored = ?, from_step = ?, to_step = max(coalesce(to_step, 0), ?), changed = ?"
            " WHERE program = ? AND attempt = ?",
            checkpoint,
            step,
            step,
            "\n".join(changed)[:MAX_TEXT] or None,
            program,
            attempt,
            of=program,
        )

    def attempt_progressed(self, program: str, attempt: int, step: int) -> None:
        """Records that the attempt reached `step`. Each call is a write to disk: not for every step."""
        self._writer.enqueue(
            "UPDATE attempts SET to_step = max(coalesce(to_step, 0), ?) WHERE program = ? AND attempt = ?",
            step,
            program,
            attempt,
            of=program,
        )

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
        self.attempt_progressed(program, attempt, step)

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

    def record_hang_history(self, program: str, longest: Mapping[str, float]) -> None:
        """Records the longest silence (s) of each section that training recovered from, replacing earlier values."""
        for section, longest_s in longest.items():
            self._writer.enqueue(
                "INSERT INTO longest_silences VALUES (?, ?, ?) ON CONFLICT (program, section)"
                " DO UPDATE SET longest_s = excluded.longest_s",
                program,
                section,
                longest_s,
                of=program,
            )

    def attempt_ended(
        self,
        program: str,
        attempt: int,
        cause: str,
        text: str,
        exit_code: int | None,
        signal: int | None,
        last_step: int | None,
        at: float,
        ran_s: float | None = None,
    ) -> None:
        """Records the end of an attempt, also of one that never became a process. `ran_s`: None if not measured."""
        if program in self._live and self._live[program][1][1] == attempt:
            del self._live[program]
        self._writer.enqueue(
            "INSERT INTO attempts (program, attempt, started_at, cause, text, exit_code, signal, to_step, ended_at,"
            " ran_s) VALUES (?1, ?2, ?8, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (program, attempt) DO UPDATE SET"
            " cause = ?3, text = ?4, exit_code = ?5, signal = ?6, to_step = coalesce(?7, to_step), ended_at = ?8,"
            " ran_s = ?9",
            program,
            attempt,
            cause,
            text[:MAX_TEXT],
            exit_code,
            signal,
            last_step,
            at,
            ran_s,
        )

    def close(self) -> None:
        """Writes what is queued, waiting at most CLOSE_WAIT_S for a disk that refuses, and closes the file."""
        self._writer.close(CLOSE_WAIT_S)

    # --- reads: in the caller's thread; each raises LedgerError ------------------------------------------------------

    def wanted_programs(self) -> dict[str, bool]:
        """Whether each program that was ever started or stopped is to run."""
        self._writer.wait_until_written(READ_WAIT_S)
        return dict(self._wanted.content.programs)

    def progress(self, program: str) -> ProgressAccount:
        """How far a job has come, as it was recorded last. Never raises: it is known from the start on."""
        return self._wanted.progress_of(program)

    def removed_programs(self) -> frozenset[str]:
        """The programs that an operator removed."""
        return self._wanted.content.removed

    def last_attempts(self) -> dict[str, int]:
        """The highest attempt number of each program."""
        rows = self._select("SELECT program, max(attempt) AS attempt FROM attempts GROUP BY program")
        return {row["program"]: row["attempt"] for row in rows}

    def last_ends(self) -> dict[str, LastEnd]:
        """How each program's last attempt ended."""
        rows = self._select(  # SQLite takes the other columns from the row with the maximum
            "SELECT program, cause, ended_at, to_step, exit_code, max(attempt) FROM attempts GROUP BY program"
        )
        return {
            row["program"]: LastEnd(row["cause"], row["ended_at"], row["to_step"], row["exit_code"]) for row in rows
        }

    def unfinished_attempts(self) -> list[OpenAttempt]:
        """Attempts whose end was not recorded."""
        rows = self._select(
            "SELECT program, attempt, pid, start_time, started_at,"
            " boot_id IS NULL OR ? IS NULL OR boot_id = ? AS of_this_boot"
            " FROM attempts WHERE ended_at IS NULL ORDER BY program, attempt",
            self._boot_id,
            self._boot_id,
        )
        return [OpenAttempt(**{**row, "of_this_boot": bool(row["of_this_boot"])}) for row in map(dict, rows)]

    def next_microbatches(self, program: str) -> int:
        """Into how many parts the next attempt is to divide each batch: as the last one, or twice as many if it ran
        out of memory."""
        rows = self._select(
            "SELECT microbatches, cause FROM attempts WHERE program = ? AND microbatches IS NOT NULL"
            " ORDER BY attempt DESC LIMIT 1",
            program,
        )
        return next((row["microbatches"] * (2 if row["cause"] == "out-of-memory" else 1) for row in rows), 1)

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
        found: dict[str, list[tuple[float, int]]] = {}
        for row in rows:
            found.setdefault(row["program"], []).append((row["save_s"], max(0, row["size_bytes"])))
        return found

    def hang_history(self, program: str) -> dict[str, float]:
        """The longest silence (s) of each section, as `record_hang_history` stored it."""
        rows = self._select(
            "SELECT section, longest_s FROM longest_silences WHERE program = ? AND typeof(longest_s) = 'real'"
            " AND longest_s BETWEEN 0 AND ?",
            program,
            TEN_YEARS_S,
        )
        return {row["section"]: row["longest_s"] for row in rows}

    def ended_attempts(self, program: str) -> list[tuple[float, str]]:
        """How long each attempt that trained ran, in seconds, and why it ended; those that are over, oldest first."""
        rows = self._select(
            "SELECT coalesce(ran_s, max(0.0, ended_at - started_at)) AS ran_s, cause FROM attempts"
            " WHERE program = ? AND ended_at IS NOT NULL"
            " AND from_step IS NOT NULL AND cause IS NOT NULL ORDER BY attempt",
            program,
        )
        return [(row["ran_s"], row["cause"]) for row in rows]

    def history(self, program: str, limit: int = 20) -> list[AttemptRecord]:
        """The last `limit` attempts, newest last."""
        return attempt_history(self._select, program, limit)

    def _vital(self) -> list[Statement]:
        """What a new ledger has to have if the present one is lost: what is wanted, and attempts that go on."""
        return [*self._statements_of_wanted(), *list(self._live.values())]

    def _statements_of_wanted(self) -> list[Statement]:
        wanted = self._wanted.content
        return [
            ("DELETE FROM programs", ()),
            ("DELETE FROM removed_programs", ()),
            ("DELETE FROM progress", ()),
            *[("INSERT INTO programs VALUES (?, ?)", (name, int(each))) for name, each in wanted.programs.items()],
            *[("INSERT INTO removed_programs VALUES (?)", (name,)) for name in sorted(wanted.removed)],
            *[
                ("INSERT INTO progress VALUES (?, ?)", (name, encode_record(account)))
                for name, account in wanted.progress.items()
            ],
        ]

    def _select(self, sql: str, *values: Value) -> list[sqlite3.Row]:
        if not self._path.exists():
            self._writer.enqueue("SELECT 1")  # has the writer notice, and make it again
        self._writer.wait_until_written(READ_WAIT_S)
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


def _stored_wanted(connection: sqlite3.Connection) -> Wanted:
    try:
        programs = {name: bool(wanted) for name, wanted in connection.execute("SELECT program, wanted FROM programs")}
        removed = frozenset(name for (name,) in connection.execute("SELECT program FROM removed_programs"))
        rows = connection.execute("SELECT program, content FROM progress")
        progress = {program: account_in(content) for program, content in rows}
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read the ledger: {error}; if this stays so, move its file away") from error
    return Wanted(programs, removed, {name: account for name, account in progress.items() if account is not None})
