"""The tables `job_states` and `longest_silences`: what a job's failures and silences taught, for the next daemon.

Facts and counters are JSON by the wire's codec. A damaged field costs that field: a damaged row must neither stop the
daemon nor fill its memory.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import structlog

from supervisor.core.program.persisted_facts import MAX_NAMES, PersistedFacts
from supervisor.host.ledger.write_queue import Statement
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol.wire.codec import ProtocolError, decode_stored, encode_record, parse_object
from supervisor.protocol.wire.limits import TEN_YEARS_S, Items

_INSERT_STATE = "INSERT OR REPLACE INTO job_states VALUES (?, ?, ?, ?, ?, ?)"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredJobState:
    """The state of a job that an earlier daemon stored `ago_s` seconds ago. `digest`: of the configuration it had then.

    `counters`: the kernel's counts of out-of-memory kills when its last attempt was last seen alive.
    """

    facts: PersistedFacts
    ago_s: float
    digest: str
    counters: tuple[OomKillCounter, ...] = ()


@dataclass(frozen=True, slots=True)
class _OomCounters:
    counters: Annotated[tuple[OomKillCounter, ...], Items(MAX_NAMES)] = ()


class JobStates:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread.

    What an earlier daemon left is read at once, with one query: a thousand programs that start would otherwise wait
    for a thousand reads.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        select: Select,
        boot_id: str | None,
        left: Iterable[Mapping[str, Any]] = (),
        newest: dict[str, Statement] | None = None,
    ) -> None:
        """`left`: the rows that an earlier daemon left. `newest`: by program, what records its state; it is kept up to
        date."""
        self._writer = writer
        self._select = select
        self._boot_id = boot_id
        self._unread = {str(row["program"]): row for row in left}
        self._stored: set[str] = set()  # by this daemon
        self._newest = {} if newest is None else newest
        self._newest |= {name: (_INSERT_STATE, tuple(row.values())) for name, row in self._unread.items()}

    def store(
        self,
        program: str,
        facts: PersistedFacts,
        digest: str,
        counters: tuple[OomKillCounter, ...] = (),
        *,
        is_reported: bool = True,
    ) -> bool:
        """Stores the present state; False if it is left out, as too much of the program waits. Never waits or raises.

        `is_reported`: a word of its worker has changed it, which can be said without end; else there is always room.
        """
        values = (
            program,
            encode_record(facts),
            encode_record(_OomCounters(counters)),
            digest,
            time.clock_gettime(time.CLOCK_BOOTTIME),
            self._boot_id,
        )
        if not self._writer.enqueue(_INSERT_STATE, *values, of=program if is_reported else None):
            return False
        self._unread.pop(program, None)
        self._stored.add(program)
        self._newest[program] = _INSERT_STATE, values
        return True

    def has_to_read(self, program: str) -> bool:
        """Whether `load` reads the file: this daemon has stored the state itself."""
        return program in self._stored

    def load(self, program: str) -> StoredJobState | None:
        """Loads the state of a job; None if there is none, or it can't be decoded. Raises LedgerError.

        After a reboot it comes without back-off and counters, as the reboot may have removed the cause of a failure.
        """
        row = self._unread.get(program)
        if self.has_to_read(program):
            rows = self._select("SELECT * FROM job_states WHERE program = ?", program)
            row = dict(rows[0]) if rows else None
        if row is None or (facts := decode_facts(row["facts"])) is None:
            return None
        if self._boot_id is None or row["boot_id"] != self._boot_id:
            return StoredJobState(facts, math.inf, row["digest"])
        ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - row["stored_awake_s"]
        return StoredJobState(facts, max(0.0, ago_s), row["digest"], decode_counters(row["oom_counters"]))

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

    def hang_history(self, program: str) -> dict[str, float]:
        """The longest silence (s) of each section, as `record_hang_history` stored it."""
        rows = self._select(
            "SELECT section, longest_s FROM longest_silences WHERE program = ? AND typeof(longest_s) = 'real'"
            " AND longest_s BETWEEN 0 AND ?",
            program,
            TEN_YEARS_S,
        )
        return {row["section"]: row["longest_s"] for row in rows}


def decode_facts(text: str) -> PersistedFacts | None:
    """Decodes the facts; None if the text is no JSON object. A damaged field has its default, which the log says."""
    try:
        facts, damaged = decode_stored(parse_object(text), PersistedFacts, "facts")
    except ProtocolError as error:
        facts, damaged = None, (str(error),)
    if damaged:
        log.warning("ledger.job_state_damaged", damaged=damaged, effect="counts as never recorded")
    return facts


def decode_counters(text: str) -> tuple[OomKillCounter, ...]:
    """Decodes the counters, without those of files that can't be any."""
    try:
        stored, _ = decode_stored(parse_object(text), _OomCounters, "counters")
    except ProtocolError:
        return ()
    return tuple(counter for counter in stored.counters if counter.is_of_cgroup)
