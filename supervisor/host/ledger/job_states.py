"""The table `memories`: what a job's failures taught the daemon, for the next one. One row per job.

The row is JSON. Every value is checked: a damaged row must neither stop the daemon nor fill its memory.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.core.failures.hang_detection import parse_section
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import MAX_DEATHS, Death
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.host.ledger.writer import LedgerWriter, Select
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol.damage import OlderBecause

MAX_NAMES = 1000  # more than a job ever has


@dataclass(frozen=True, slots=True)
class StoredJobState:
    """The state of a job that an earlier daemon stored `ago_s` seconds ago. `digest`: of the configuration it had then.

    `counters`: the kernel's counts of out-of-memory kills when its last attempt was last seen alive.
    """

    facts: PersistedFacts
    ago_s: float
    digest: str
    counters: tuple[OomKillCounter, ...] = ()


class JobStates:
    """Access to the table: writes go to the ledger's queue, reads happen in the caller's thread."""

    def __init__(self, writer: LedgerWriter, select: Select, boot_id: str | None) -> None:
        self._writer = writer
        self._select = select
        self._boot_id = boot_id

    def store(
        self, program: str, facts: PersistedFacts, digest: str, counters: tuple[OomKillCounter, ...] = ()
    ) -> None:
        """Stores the present state. Never waits, never raises."""
        self._writer.enqueue(
            "INSERT OR REPLACE INTO memories VALUES (?, ?, ?, ?, ?)",
            program,
            to_json(facts, counters),
            digest,
            time.clock_gettime(time.CLOCK_BOOTTIME),
            self._boot_id,
        )

    def load(self, program: str) -> StoredJobState | None:
        """Loads the state of a job; None if there is none, or it can't be decoded. Raises LedgerError.

        After a reboot it comes without back-off and counters, as the reboot may have removed the cause of a failure.
        """
        rows = self._select("SELECT * FROM memories WHERE program = ?", program)
        if not rows or (found := from_json(rows[0]["content"])) is None:
            return None
        facts, counters = found
        row = rows[0]
        if self._boot_id is None or row["boot_id"] != self._boot_id:
            return StoredJobState(facts, math.inf, row["digest"])
        ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - row["kept_awake_s"]
        return StoredJobState(facts, max(0.0, ago_s), row["digest"], counters)


def to_json(facts: PersistedFacts, counters: tuple[OomKillCounter, ...] = ()) -> str:
    """Encodes the state in one line, for `from_json`."""
    content = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
    content["by_cause"] = {str(cause): count for cause, count in facts.by_cause.items()}
    content["avoid"], content["cleared"] = sorted(facts.avoid), sorted(facts.cleared)
    content["deaths"] = [[each.name, each.from_step, each.step, each.restored, each.place] for each in facts.deaths]
    content["counters"] = [[str(each.file), each.where, each.count] for each in counters]
    return json.dumps(content)


def from_json(text: str) -> tuple[PersistedFacts, tuple[OomKillCounter, ...]] | None:
    """Decodes the state; None for invalid text. Unknown keys are ignored."""
    try:
        found = json.loads(text)
        return (_persisted_facts(found), _counters(found["counters"])) if isinstance(found, dict) else None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None


def _persisted_facts(found: Mapping[str, Any]) -> PersistedFacts:
    origin = found["origin"]
    return PersistedFacts(
        attempt=_number(found["attempt"]),
        by_cause={Cause(each): _number(n) for each, n in found["by_cause"].items() if each in tuple(Cause)},
        idle_deaths=_number(found["idle_deaths"]),
        avoid=_names(found["avoid"]),
        cleared=_names(found["cleared"]),
        unfit=tuple((str(name), str(why)) for name, why in found["unfit"][:MAX_NAMES]),
        deaths=tuple(_death(*each) for each in found["deaths"][-MAX_DEATHS:]),
        hung_step=_maybe(found["hung_step"]),
        hung_in=None if found["hung_in"] is None else parse_section(str(found["hung_in"])),
        hangs=_number(found["hangs"], 64),
        best_step=_maybe(found["best_step"]),
        ever_moved=found["ever_moved"] is True,
        microbatches=max(1, _number(found["microbatches"])),
        before=_maybe(found["before"]),
        waits=found["waits"] is True,
        reason=_text(found["reason"]),
        restoring=found["restoring"] is True,
        origin=None if origin is None else (str(origin[0]), _number(origin[1]), _text(origin[2])),
        saved=_maybe(found["saved"]),
        began_at=_maybe(found["began_at"]),
        moved=found["moved"] is True,
        start_limit_s=_seconds(found["start_limit_s"]),
        waits_s=_seconds(found["waits_s"]),
        startup_s=_seconds(found["startup_s"]),
        older=_older(found.get("older")),
        mount=_text(found.get("mount")),
        begin_at=_maybe(found.get("begin_at")),
        step=_maybe(found.get("step")),
        steps_s=tuple(s for each in found["steps_s"][:MAX_NAMES] if (s := _seconds(each)) is not None),
    )


def _death(name: Any, from_step: Any, step: Any, restored: Any, place: Any) -> Death:
    return Death(str(name), _number(from_step), _number(step), restored is True, _text(place))


def _older(found: Any) -> tuple[OlderBecause, str] | None:
    if found is None:
        return None
    because, text = found
    return OlderBecause(because), str(text)


def _counters(found: Any) -> tuple[OomKillCounter, ...]:
    return tuple(
        OomKillCounter.from_stored(str(file), str(where), _number(count)) for file, where, count in found[:MAX_NAMES]
    )


def _names(found: Any) -> frozenset[str]:
    return frozenset(str(each) for each in found[:MAX_NAMES])


def _number(found: Any, most: int = 1 << 62) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
        raise ValueError(f"not a number from 0 to {most}")
    return found


def _maybe(found: Any) -> int | None:
    return None if found is None else _number(found)


def _seconds(found: Any) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        return None
    return float(found)


def _text(found: Any) -> str | None:
    return found if isinstance(found, str) else None
