"""What operators want and how far each job has come: recorded in the file beside the ledger and in the ledger's tables.

Every change is in the file before it is in the ledger (`wanted_file.py` says why), and is answered from memory.
"""

import asyncio
import sqlite3
from collections.abc import Container

from supervisor.host.ledger.schema import LedgerError
from supervisor.host.ledger.wanted_file import Wanted, WantedFile, account_in
from supervisor.host.ledger.write_queue import Statement
from supervisor.host.ledger.writer import LedgerWriter
from supervisor.protocol.checkpoints.account import ProgressAccount, ReportedCheckpoint
from supervisor.protocol.wire.codec import encode_record

RECORD_WAIT_S = 10.0  # for the answer to a command; longer than SQLite waits for a lock


class WantedPrograms:
    """What is wanted. Changes never wait and never raise."""

    def __init__(self, writer: LedgerWriter, file: WantedFile) -> None:
        self._writer = writer
        self._file = file
        self._progress_queued: set[str] = set()  # programs whose account waits to be written
        if file.was_there:
            for sql, values in statements_of(file.content):
                writer.enqueue(sql, *values)
        writer.enqueue("SELECT 1")  # writes the file, if there is none

    async def until_recorded(self, with_decisions: bool = False) -> str | None:
        """Waits until what is wanted now is on the disk; returns why it is not, or None. It is tried again for ever.

        `with_decisions`: and all else that is queued now, as where the next start begins, which only the ledger has.
        """
        awaited, queued = self._file.changes, self._writer.queued

        def is_recorded() -> bool:
            has_ledger = not with_decisions or self._writer.has_written(queued)
            return has_ledger and self._file.has_written(awaited)

        if is_recorded():
            return None
        late = None
        try:
            async with asyncio.timeout(RECORD_WAIT_S):
                await asyncio.wrap_future(self._writer.written())
        except TimeoutError:
            late = f"its disk did not answer within {RECORD_WAIT_S:g} s"
        if is_recorded():  # of what is wanted: whatever keeps the ledger from being written, or has changed since
            return None
        return self._writer.failure_text or late  # without either, the ledger has it

    def is_wanted(self, program: str, default: bool = False) -> bool:
        """Whether it was recorded last that the program is to run; `default` if nothing was. Never waits."""
        return self._file.is_wanted(program, default)

    def record_wanted(self, program: str, wanted: bool) -> None:
        """Records whether the program is to run, also after the next start of the daemon."""
        self._file.set_wanted(program, wanted)
        self._writer.enqueue(
            "INSERT INTO programs VALUES (?, ?) ON CONFLICT (program) DO UPDATE SET wanted = excluded.wanted",
            program,
            int(wanted),
        )

    def record_progress(self, program: str, account: ProgressAccount) -> None:
        """Records how far a job has come: in the file of what is wanted, and in the ledger."""
        self._file.set_progress(program, account)
        if program not in self._progress_queued:  # else a row waits to be written, and will have this account
            self._progress_queued.add(program)  # first: the row may be written before the next line is done
            sql = "INSERT OR REPLACE INTO progress VALUES (?, ?)"
            if not self._writer.enqueue(sql, program, lambda: self._encode_progress(program)):
                self._progress_queued.discard(program)

    def _encode_progress(self, program: str) -> str:
        """In the ledger's thread, each time that the row is tried."""
        self._progress_queued.discard(program)  # first: what is recorded from now on may be too late for this row
        return encode_record(self._file.progress_of(program))

    def forget_program(self, program: str) -> None:
        """Forgets whether a program is to run, as it is no longer configured. Its history stays."""
        self._file.set_wanted(program, None)
        self._writer.enqueue("DELETE FROM programs WHERE program = ?", program)

    def record_removed(self, program: str) -> None:
        """Records that an operator removed the program: it stays removed until it is added again."""
        self._file.set_removed(program, True)
        self._writer.enqueue("INSERT OR IGNORE INTO removed_programs VALUES (?)", program)

    def record_added(self, program: str) -> None:
        """Records that the program was added again, or is no longer configured."""
        self._file.set_removed(program, False)
        self._writer.enqueue("DELETE FROM removed_programs WHERE program = ?", program)

    def wanted_programs(self) -> dict[str, bool]:
        """Whether each program that was ever started or stopped is to run."""
        self._writer.wait_until_written()
        return dict(self._file.content.programs)

    def progress(self, program: str) -> ProgressAccount:
        """How far a job has come, as it was recorded last. Never raises: it is known from the start on."""
        return self._file.progress_of(program)

    def progress_in(self, directory: str, programs: Container[str] | None) -> tuple[str, ReportedCheckpoint] | None:
        """Which of these programs (None: any) has the newest checkpoint in a directory, and that; None: none has one
        there."""
        accounts = self._file.content.progress
        there = [
            (program, account.newest)
            for program, account in accounts.items()
            if account.newest is not None
            and account.newest.directory == directory
            and (programs is None or program in programs)
        ]
        return max(there, key=lambda found: found[1].step, default=None)

    def removed_programs(self) -> frozenset[str]:
        """The programs that an operator removed."""
        return self._file.content.removed


def statements_of(wanted: Wanted) -> list[Statement]:
    """What gives the three tables this content, whatever they have."""
    return [
        ("DELETE FROM programs", ()),
        ("DELETE FROM removed_programs", ()),
        ("DELETE FROM progress", ()),
        *[("INSERT INTO programs VALUES (?, ?)", (name, int(program))) for name, program in wanted.programs.items()],
        *[("INSERT INTO removed_programs VALUES (?)", (name,)) for name in sorted(wanted.removed)],
        *[
            ("INSERT INTO progress VALUES (?, ?)", (name, encode_record(account)))
            for name, account in wanted.progress.items()
        ],
    ]


def stored_wanted(connection: sqlite3.Connection) -> Wanted:
    """What the ledger has of it. Raises LedgerError."""
    try:
        programs = {name: bool(wanted) for name, wanted in connection.execute("SELECT program, wanted FROM programs")}
        removed = frozenset(name for (name,) in connection.execute("SELECT program FROM removed_programs"))
        rows = connection.execute("SELECT program, content FROM progress")
        progress = {program: account_in(content) for program, content in rows}
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read the ledger: {error}; if this stays so, move its file away") from error
    return Wanted(programs, removed, {name: account for name, account in progress.items() if account is not None})
