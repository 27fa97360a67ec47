"""The table `accounts`: what each attempt's time was spent on. One row per attempt, rewritten now and then."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from supervisor.core.goodput import MeterReading, TimeSpent
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.protocol.wire.codec import ProtocolError, decode_entries, encode_record, parse_object
from supervisor.protocol.wire.limits import Range

SpentSeconds = Annotated[float, Range(0, 1e10)]  # 300 years; no attempt takes as long


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """The account of a program's last attempt as it was `ago_s` seconds ago. `reached`: the last step known of that
    attempt, which may be beyond that account's: its steps are no replays of its own."""

    status: MeterReading
    ago_s: float
    reached: int | None = None


class Accounts:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select, boot_id: str | None) -> None:
        self._writer = writer
        self._select = select
        self._boot_id = boot_id

    def store(self, program: str, status: MeterReading, ago_s: float) -> None:
        """Stores the account of an attempt as it was `ago_s` seconds ago. Never waits, never raises."""
        self._writer.enqueue(
            "INSERT OR REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            program,
            status.attempt,
            time.time() - ago_s,
            _awake_s() - ago_s,
            self._boot_id,
            status.open_as,
            status.step,
            status.furthest,
            status.owed_s,
            encode_record(
                {spent: round(span_s, 3) for spent, span_s in status.spent_s.items() if math.isfinite(span_s)}
            ),
            of=program,
        )

    def load_last(self, program: str) -> StoredAccount | None:
        """Loads the account of the last attempt; None if there is none yet. Raises LedgerError.

        Its age is measured by a clock that is never set while the host runs, or, after a reboot, by the wall clock.
        """
        rows = self._select(
            "SELECT *, (SELECT max(to_step) FROM attempts WHERE program = ?1) AS reached, (SELECT to_step FROM attempts"
            " WHERE program = ?1 AND attempt = accounts.attempt) AS own FROM accounts"
            " WHERE program = ?1 ORDER BY attempt DESC LIMIT 1",
            program,
        )
        if not rows:
            return None
        row = rows[0]
        same_boot = self._boot_id is not None and row["boot_id"] == self._boot_id
        ago_s = _awake_s() - row["until_awake_s"] if same_boot else time.time() - row["until_wall_at"]
        open_as = TimeSpent(row["open_as"]) if row["open_as"] in list(TimeSpent) else TimeSpent.DOWN
        furthest = max(row["furthest"], row["reached"] or 0)
        spent_s = _spent(row["spent_s"])
        status = MeterReading(row["attempt"], spent_s, open_as, row["step"], furthest, row["owed_s"])
        return StoredAccount(status, max(0.0, ago_s), row["own"])

    def time_spent(self, program: str) -> dict[int, dict[TimeSpent, float]]:
        """Seconds by what they were spent on, for each stored attempt. Raises LedgerError."""
        rows = self._select("SELECT attempt, spent_s FROM accounts WHERE program = ?", program)
        return {row["attempt"]: _spent(row["spent_s"]) for row in rows}

    def began_at(self, program: str, before: int) -> float | None:
        """When the time before this attempt began (Unix time), if some was accounted for. Raises LedgerError."""
        rows = self._select(
            "SELECT until_wall_at, spent_s FROM accounts WHERE program = ? AND attempt < ? ORDER BY attempt LIMIT 1",
            program,
            before,
        )
        return rows[0]["until_wall_at"] - sum(_spent(rows[0]["spent_s"]).values()) if rows else None


def _spent(text: str) -> dict[TimeSpent, float]:
    """Decodes the column; unknown keys and damaged values are left out."""
    try:
        return decode_entries(parse_object(text), Mapping[TimeSpent, SpentSeconds], "spent_s")
    except ProtocolError:
        return {}


def _awake_s() -> float:
    """Seconds since the boot of the host, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
