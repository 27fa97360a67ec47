"""The table `attempts`: which attempts there were, how far each came, how it ended; those without an end."""

import os
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from supervisor.core.diagnosis.evidence import Diagnosis
from supervisor.host.ledger.write_queue import Statement
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

MAX_TEXT = 4000  # characters of one text: a thousand attempts of a program take some megabytes at most
CLOCK_TICK_S = 1.0  # two clocks are read one after the other
_SAVED = ("done", "stopped")  # causes of ends that follow a save, as the worker says itself

_KNOWN_AT_START = ("program", "attempt", "pid", "start_time", "started_at", "boot_id", "microbatches")
_COLUMNS = ", ".join(_KNOWN_AT_START)
_INSERT_ATTEMPT = f"INSERT OR REPLACE INTO attempts ({_COLUMNS}) VALUES ({', '.join('?' * len(_KNOWN_AT_START))})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt whose end was not recorded: the daemon died, or, if not `of_this_boot`, the host did.

    `started_at`: Unix time.
    """

    program: str
    attempt: int
    pid: int
    start_time: int
    of_this_boot: bool = True
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How a program's last attempt ended. `cause`, `ended_at` (Unix time): None if no end was recorded.

    `to_step`: the last step known of it.
    """

    cause: str | None
    ended_at: float | None
    to_step: int | None
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. `from_step`: where it began, None if it never got so far; `to_step`: the last step known of it.

    `restored`: name of the checkpoint it began from, None at step 0. `lost_steps`: how far behind `to_step` the next
    attempt that trained began; None if there was none yet, or if no daemon saw how far it came. `refused`: (name,
    reason) of checkpoints found damaged at its start. `checkpoints`: how many it committed. `ran_s`: how long it ran,
    whatever the clock was set to meanwhile. `changed`: what the bits depend on and is another than when the job trained
    last, in words. `older_because`: why it began from an older checkpoint than the newest one, and `older_text` in
    words; None if it did not. `diagnosis`: why it died; None if it was meant to end, or runs.
    """

    attempt: int
    started_wall_at: float
    ended_wall_at: float | None
    restored: str | None
    from_step: int | None
    to_step: int | None
    cause: str | None
    text: str | None
    exit_code: int | None
    signal: int | None
    lost_steps: int | None
    refused: tuple[tuple[str, str], ...]
    checkpoints: int
    changed: tuple[str, ...] = ()
    ran_s: float | None = None
    older_because: str | None = None
    older_text: str | None = None
    diagnosis: Diagnosis | None = None


def statements_of_open(connection: sqlite3.Connection) -> dict[str, Statement]:
    """By program: what records its attempt that has no end yet."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM attempts WHERE ended_at IS NULL ORDER BY attempt")  # noqa: S608
    return {row[0]: (_INSERT_ATTEMPT, tuple(row)) for row in rows}


class AttemptTable:
    """Access to the table: writes go to the ledger's queue and never raise; reads happen in the caller's thread and
    raise LedgerError. `open_attempts`: by program, what records its attempt without an end; it is kept up to date.
    """

    def __init__(
        self, writer: LedgerWriter, select: Select, boot_id: str | None, open_attempts: dict[str, Statement]
    ) -> None:
        self._writer = writer
        self._select = select
        self._boot_id = boot_id
        self._open = open_attempts

    def attempt_started(
        self, program: str, attempt: int, pid: int, start_time: int, at: float, microbatches: int = 1
    ) -> None:
        """A process was started; pid and start time identify it to a later daemon.

        `microbatches`: into how many parts it divides each batch.
        """
        values = (program, attempt, pid, start_time, at, self._boot_id, microbatches)
        self._open[program] = _INSERT_ATTEMPT, values
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
        diagnosis: Diagnosis | None = None,
    ) -> None:
        """Records the end of an attempt, also of one that never became a process. `ran_s`: None if not measured.

        `diagnosis`: why it died; None if it was meant to end.
        """
        if program in self._open and self._open[program][1][1] == attempt:
            del self._open[program]
        self._writer.enqueue(
            "INSERT INTO attempts (program, attempt, started_at, cause, text, exit_code, signal, to_step, ended_at,"
            " ran_s, diagnosis) VALUES (?1, ?2, ?8, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
            " ON CONFLICT (program, attempt) DO UPDATE SET cause = ?3, text = ?4, exit_code = ?5, signal = ?6,"
            " to_step = max(coalesce(?7, to_step), coalesce(to_step, ?7)), ended_at = CASE WHEN ?9 IS NULL"
            " AND boot_id = ?11 AND start_time > 0 AND ?8 - started_at NOT BETWEEN 0 AND ?12 - start_time / ?13"
            " THEN started_at + ?12 - start_time / ?13 ELSE ?8 END, ran_s = ?9, diagnosis = ?10",
            program,
            attempt,
            cause,
            text[:MAX_TEXT],
            exit_code,
            signal,
            last_step,
            at,
            ran_s,
            None if diagnosis is None else encode_record(diagnosis),
            self._boot_id,  # a wall clock that was set since the start would tell of hours that were none
            time.clock_gettime(time.CLOCK_BOOTTIME) + CLOCK_TICK_S,
            float(os.sysconf("SC_CLK_TCK")),
        )

    def last_attempts(self) -> dict[str, int]:
        """The highest attempt number of each program."""
        rows = self._select("SELECT program, max(attempt) AS attempt FROM attempts GROUP BY program")
        return {row["program"]: row["attempt"] for row in rows}

    def last_ends(self) -> dict[str, LastEnd]:
        """How each program's last attempt ended."""
        rows = self._select(  # SQLite takes the other columns from the row with the maximum
            "SELECT program, cause, ended_at, to_step, exit_code, signal, max(attempt) FROM attempts GROUP BY program"
        )
        return {
            row["program"]: LastEnd(row["cause"], row["ended_at"], row["to_step"], row["exit_code"], row["signal"])
            for row in rows
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
        rows = self._select(
            "SELECT attempt, started_at AS started_wall_at, ended_at AS ended_wall_at,"
            " coalesce(ran_s, max(0.0, ended_at - started_at)) AS ran_s, restored,"
            " ended_at IS NOT NULL AND (coalesce(ran_s, exit_code, signal) IS NULL"
            " OR to_step IN (SELECT step FROM checkpoints WHERE program = ?1 AND attempt = a.attempt AND save_s < 0))"
            " AS is_unseen,"
            " from_step, to_step, cause, text, exit_code, signal, changed, older_because, older_text, diagnosis,"
            " (SELECT count(*) FROM checkpoints WHERE program = ?1 AND attempt = a.attempt)"
            " + checkpoints_pruned AS checkpoints"
            " FROM attempts AS a WHERE program = ?1 ORDER BY attempt DESC LIMIT ?2",
            program,
            limit,
        )
        oldest = rows[-1]["attempt"] if rows else 0
        refused: dict[int, list[tuple[str, str]]] = {}
        for row in self._select(
            "SELECT attempt, name, reason FROM refusals WHERE program = ? AND attempt >= ? ORDER BY name DESC",
            program,
            oldest,
        ):
            refused.setdefault(row["attempt"], []).append((row["name"], row["reason"]))
        records: list[AttemptRecord] = []
        resumed_at: int | None = None  # where the next later attempt that trained began
        for row in rows:
            values = dict(row)
            is_unseen = values.pop("is_unseen") and row["cause"] not in _SAVED
            lost = None if resumed_at is None or row["to_step"] is None else max(0, row["to_step"] - resumed_at)
            if is_unseen and not lost:  # its last checkpoint is all that is known of it
                lost = None
            refusals = tuple(refused.get(row["attempt"], ()))
            changed = tuple((row["changed"] or "").splitlines())
            decoded = {"changed": changed, "diagnosis": _diagnosis_in(row["diagnosis"])}
            records.append(AttemptRecord(**{**values, **decoded}, lost_steps=lost, refused=refusals))
            resumed_at = resumed_at if row["from_step"] is None else row["from_step"]
        return records[::-1]


def _diagnosis_in(content: Any) -> Diagnosis | None:
    """The diagnosis of a row; None if there is none, or it is damaged, or of a kind that this version does not know."""
    if not isinstance(content, str):
        return None
    try:
        return decode_record(parse_object(content), Diagnosis, "diagnosis")
    except ProtocolError:
        return None
