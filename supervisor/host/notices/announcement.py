"""What a source says, before it is a notice: with the source's own clock, and the limits its documentation gives."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.core.notices.notice import Certainty, Kind, Notice


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on both clocks. `monotonic_at`: seconds; `wall`: aware."""

    monotonic_at: float
    wall: datetime


def read_clocks() -> Moment:
    """The present moment."""
    return Moment(time.monotonic(), datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Announcement:
    """One event as its source describes it.

    `slot`: what there is at most one of at a time; a source without ids of its own says the same event again under the
    same slot. `gone_wall`: when the host may be gone, by the source's clock. `lead_s`: the longest warning the source
    documents, which bounds what a wrong clock can do; where the source says no time, the warning itself. Both None:
    nothing is known about when.
    """

    slot: str
    id: str
    kind: Kind
    certainty: Certainty
    gone_wall: datetime | None
    lead_s: float | None
    is_cancellable: bool
    text: str

    def deadline_at(self, received: Moment) -> float | None:
        """When the host may be gone (monotonic seconds); never before `received`, never later than the lead allows."""
        if self.lead_s is None:
            return None
        remaining_s = self.lead_s
        if self.gone_wall is not None:
            remaining_s = min(max(0.0, (self.gone_wall - received.wall).total_seconds()), self.lead_s)
        return received.monotonic_at + remaining_s

    def notice(self, source: str, received: Moment) -> Notice:
        """The notice it amounts to when heard for the first time at `received`."""
        return Notice(
            source=source,
            id=self.id,
            kind=self.kind,
            certainty=self.certainty,
            deadline_at=self.deadline_at(received),
            is_cancellable=self.is_cancellable,
            text=self.text,
            said_wall=None if self.gone_wall is None else self.gone_wall.timestamp(),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything one question got as its answer.

    `problem`: what in it could not be understood, "" if all was. What is missing may be there all the same: under one
    of the slots in `unclear`, or under any if that is None.
    """

    announced: tuple[Announcement, ...] = ()
    problem: str = ""
    unclear: frozenset[str] | None = None


NOTHING = Reading()
"""The answer that nothing is going to happen."""
