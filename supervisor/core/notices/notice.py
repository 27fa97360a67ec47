"""What a notice is: somebody says that this host is going away. And what a source reports, from which notices are made.

A source reports raw notices: what its provider says at this moment, in the provider's wall time. A notice is what is
known after comparing the reports of a source with each other (`active.py`), with its deadline on this host's own clock.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class NoticeKind(StrEnum):
    """What is going to happen."""

    PREEMPTION = "preemption"  # the provider takes the host back
    MAINTENANCE = "maintenance"  # the provider restarts it, or moves it with an interruption
    FREEZE = "freeze"  # the provider pauses it for a moment
    REBALANCE = "rebalance"  # the provider expects to take it back, and gives no time
    SHUTDOWN = "shutdown"  # somebody powers it off or reboots it
    DRILL = "drill"  # nothing: somebody practises


class Certainty(StrEnum):
    """How sure it is; only a certain notice is worth stopping for."""

    POSSIBLE = "possible"  # a checkpoint now, and training goes on
    CERTAIN = "certain"


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice of one source. `source` and `id` identify it; its deadline may move.

    `deadline_at`: when the host may be gone (monotonic seconds), None where the source gives no time. `is_cancellable`:
    the source may withdraw it. `text`: one line for people. `deadline_wall_at`: the time that the source named (Unix
    seconds), None where it named none and the deadline counts from the first report.
    """

    source: str
    id: str
    kind: NoticeKind
    certainty: Certainty
    deadline_at: float | None
    is_cancellable: bool
    text: str
    deadline_wall_at: float | None = None

    def moved(self, by_s: float) -> "Notice":
        """The same with a later deadline, or an earlier one, if it has one."""
        return self if self.deadline_at is None else replace(self, deadline_at=self.deadline_at + by_s)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One moment on both clocks. `monotonic_at`: seconds; `wall_at`: aware.

    `asleep_s`: how long the host has been suspended since its boot, which the monotonic clock leaves out.
    """

    monotonic_at: float
    wall_at: datetime
    asleep_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RawNotice:
    """One event as its source describes it at present.

    `slot`: a place for at most one event at a time; what a source without ids of its own reports under the same slot is
    taken to be the same event. `gone_wall_at`: when the host may be gone, by the source's clock. `warning_s`: the
    longest warning that the source documents, which limits the damage of a wrong clock; where the source gives no time,
    the warning itself. Both None: nothing is known about the time.
    """

    slot: str
    id: str
    kind: NoticeKind
    certainty: Certainty
    gone_wall_at: datetime | None
    warning_s: float | None
    is_cancellable: bool
    text: str

    def deadline_at(self, now: ClockReading) -> float | None:
        """When the host may be gone (monotonic seconds): never before `now`, never later than the longest warning."""
        if self.warning_s is None:
            return None
        remaining_s = self.warning_s
        if self.gone_wall_at is not None:
            remaining_s = min(max(0.0, (self.gone_wall_at - now.wall_at).total_seconds()), self.warning_s)
        return now.monotonic_at + remaining_s

    def to_notice(self, source: str, now: ClockReading) -> Notice:
        """The notice that this is if it is reported for the first time at `now`."""
        return Notice(
            source=source,
            id=self.id,
            kind=self.kind,
            certainty=self.certainty,
            deadline_at=self.deadline_at(now),
            is_cancellable=self.is_cancellable,
            text=self.text,
            deadline_wall_at=None if self.gone_wall_at is None else self.gone_wall_at.timestamp(),
        )


@dataclass(frozen=True, slots=True)
class NoticeReport:
    """Everything that one endpoint of a source says at present; what it does not mention no longer holds.

    `problem`: the part of the answer that could not be parsed, "" if there was none. Events that are missing from
    `notices` may be in that part: those of the slots in `unclear`, or any event if `unclear` is None.
    """

    notices: tuple[RawNotice, ...] = ()
    problem: str = ""
    unclear: frozenset[str] | None = None


NO_NOTICES = NoticeReport()
"""The report that nothing is going to happen."""
