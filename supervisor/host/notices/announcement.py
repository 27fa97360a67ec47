"""What a source says, before it is a notice: with the source's own clock, and the limits its documentation gives."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.core.notices.notice import Certainty, Notice, NoticeKind


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Now, on both clocks. `monotonic_at`: seconds; `wall`: aware."""

    monotonic_at: float
    wall_at: datetime


def read_clocks() -> ClockReading:
    """The present moment."""
    return ClockReading(time.monotonic(), datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class RawNotice:
    """One event as its source describes it.

    `slot`: what there is at most one of at a time; a source without ids of its own says the same event again under the
    same slot. `gone_wall`: when the host may be gone, by the source's clock. `lead_s`: the longest warning the source
    documents, which bounds what a wrong clock can do; where the source says no time, the warning itself. Both None:
    nothing is known about when.
    """

    slot: str
    id: str
    kind: NoticeKind
    certainty: Certainty
    gone_wall_at: datetime | None
    warning_s: float | None
    is_cancellable: bool
    text: str

    def deadline_at(self, received: ClockReading) -> float | None:
        """When the host may be gone (monotonic seconds); never before `received`, never later than the lead allows."""
        if self.warning_s is None:
            return None
        remaining_s = self.warning_s
        if self.gone_wall_at is not None:
            remaining_s = min(max(0.0, (self.gone_wall_at - received.wall_at).total_seconds()), self.warning_s)
        return received.monotonic_at + remaining_s

    def notice(self, source: str, received: ClockReading) -> Notice:
        """The notice it amounts to when heard for the first time at `received`."""
        return Notice(
            source=source,
            id=self.id,
            kind=self.kind,
            certainty=self.certainty,
            deadline_at=self.deadline_at(received),
            is_cancellable=self.is_cancellable,
            text=self.text,
            deadline_wall_at=None if self.gone_wall_at is None else self.gone_wall_at.timestamp(),
        )


@dataclass(frozen=True, slots=True)
class NoticeReport:
    """Everything one question got as its answer.

    `problem`: what in it could not be understood, "" if all was. What is missing may be there all the same: under one
    of the slots in `unclear`, or under any if that is None.
    """

    notices: tuple[RawNotice, ...] = ()
    problem: str = ""
    unclear: frozenset[str] | None = None


NO_NOTICES = NoticeReport()
"""The answer that nothing is going to happen."""
