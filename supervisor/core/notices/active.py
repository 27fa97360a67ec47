"""Which notices hold at present: decides what is new, changed, withdrawn or expired, and which one is most severe.

Sources report what they see, again and again, and remember nothing. All comparing is done here, once:

1. A report covers one endpoint of one source (`update`). Each raw notice in it has a slot. A slot that was reported
   before is the same notice, with the id of its first report, even if the provider's id contains a time that has moved
   since. Only when its deadline has passed and another id is reported in its slot, it is a second event.
2. The deadline is converted to this host's monotonic clock once. The same words later keep it, whatever the wall clock
   did meanwhile; only while the host is suspended that clock stands still, so that the time asleep is subtracted
   (`host_slept`). Other words move it: in both directions if the source can withdraw the notice, else only to earlier,
   because some sources name a later time at every poll.
3. A slot that is missing from a report was withdrawn, if its source can withdraw notices; a final notice holds until it
   expires. Nothing is withdrawn that may be in a part of the answer that could not be parsed.
4. A notice expires `grace_s` after its deadline, if the host is still there. Its source may go on reporting it; that
   stays silent unless the deadline moves to later.
5. What an earlier daemon of the same boot knew is restored before any source is watched, so that a notice that is
   reported to both daemons is acted on once. What a source does not report again, once it works, was withdrawn while no
   daemon was running (`withdraw_unconfirmed`).

A host is as sure to go as its most severe notice says: of the certain ones the one with the earliest deadline, then
certain ones without a time, then those that are only possible. Time is a number that comes in.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.core.notices.notice import Certainty, ClockReading, Notice, NoticeReport, RawNotice

SLEPT_S = 0.5  # the clocks that tell how long the host was suspended are read one after the other
TOLERANCE_S = 0.5  # wall time is converted to monotonic time at each report, so an unchanged deadline varies a little

NoticeKey = tuple[str, str]  # source, id
Slot = tuple[str, str, str]  # source, endpoint, slot of the raw notice


class NoticeChangeKind(StrEnum):
    """What became of a notice."""

    RECEIVED = "received"
    CHANGED = "changed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"  # its deadline passed, and the host is still there


@dataclass(frozen=True, slots=True)
class NoticeChange:
    """Something that happened to one notice."""

    kind: NoticeChangeKind
    notice: Notice


@dataclass(frozen=True, slots=True)
class ActiveNotice:
    """A notice that holds. `received_at`: monotonic seconds. `program`: the only one that it concerns; None: all."""

    notice: Notice
    received_at: float
    program: str | None = None


@dataclass(frozen=True, slots=True)
class RememberedNotice:
    """A notice as it is stored for the next daemon. `is_expired`: its source may go on reporting it."""

    notice: Notice
    received_at: float
    is_expired: bool


class ActiveNotices:
    """All notices, from every source. `grace_s`: how long after its deadline a notice expires."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._active: dict[NoticeKey, ActiveNotice] = {}
        self._expired: dict[NoticeKey, ActiveNotice] = {}
        self._slots: dict[Slot, tuple[str, RawNotice]] = {}  # the id in use, and the latest words
        self._restored: set[NoticeKey] = set()  # known from an earlier daemon
        self._unconfirmed: set[NoticeKey] = set()  # restored, and not reported to this daemon yet

    # --- what holds ---------------------------------------------------------------------------------------------------

    @property
    def by_severity(self) -> tuple[ActiveNotice, ...]:
        """The notices that hold, the most severe first."""
        return tuple(sorted(self._active.values(), key=lambda active: _severity(active.notice)))

    def most_severe(self, program: str) -> Notice | None:
        """The notice that decides for a program; None: no notice concerns it."""
        return next((notice.notice for notice in self.by_severity if notice.program in (None, program)), None)

    def is_restored(self, notice: Notice) -> bool:
        """Whether an earlier daemon already acted on it."""
        return (notice.source, notice.id) in self._restored

    def confirmed(self, source: str) -> list[Notice]:
        """The notices of a source that hold and that it reported to this daemon."""
        return [
            notice.notice for key, notice in self._active.items() if key[0] == source and key not in self._unconfirmed
        ]

    def has_unconfirmed(self, source: str) -> bool:
        """Whether a restored notice of this source was not reported again yet."""
        return any(key[0] == source for key in self._unconfirmed)

    # --- what is reported ---------------------------------------------------------------------------------------------

    def update(self, source: str, endpoint: str, report: NoticeReport, now: ClockReading) -> list[NoticeChange]:
        """Compares a report with what is known; usually nothing has changed."""
        changes = [self._update_slot((source, endpoint, raw.slot), raw, now) for raw in report.notices]
        for slot in list(self._missing_slots(source, endpoint, report)):
            id, raw = self._slots.pop(slot)
            if raw.is_cancellable:
                changes.append(self.withdraw(source, id))
        return [change for change in changes if change is not None]

    def add(self, notice: Notice, now: float, program: str | None = None) -> NoticeChange | None:
        """Adds a notice, or updates it; None if that changes nothing."""
        key = (notice.source, notice.id)
        known, expired = self._active.get(key), self._expired.get(key)
        if key in self._unconfirmed:
            self._unconfirmed.discard(key)
            notice = _with_restored_deadline(notice, (known or expired or ActiveNotice(notice, now)).notice)
        if expired is not None and not _is_later(notice, expired.notice):
            return None
        if known is None:
            self._forget(key)
            self._active[key] = ActiveNotice(notice, now, program)
            return NoticeChange(NoticeChangeKind.RECEIVED, notice)
        is_postponed = not notice.is_cancellable and _is_later(notice, known.notice)
        if is_postponed or _is_same(notice, known.notice):
            return None
        self._active[key] = replace(known, notice=notice)
        return NoticeChange(NoticeChangeKind.CHANGED, notice)

    def withdraw(self, source: str, id: str) -> NoticeChange | None:
        """Removes a notice; None if it did not hold."""
        known = self._active.get((source, id))
        self._forget((source, id))
        return None if known is None else NoticeChange(NoticeChangeKind.WITHDRAWN, known.notice)

    def expire(self, now: float) -> list[NoticeChange]:
        """Removes the notices that have expired at `now`."""
        keys = [key for key, notice in self._active.items() if self._expires_at(notice) <= now]
        for key in keys:
            self._expired[key] = self._active.pop(key)
        return [NoticeChange(NoticeChangeKind.EXPIRED, self._expired[key].notice) for key in keys]

    def host_slept(self, slept_s: float) -> list[NoticeChange]:
        """The host was suspended for so long, in which no clock of ours ran: every deadline is that much nearer."""
        for notices in (self._active, self._expired):
            for key, active in notices.items():
                notices[key] = replace(
                    active, notice=active.notice.moved(-slept_s), received_at=active.received_at - slept_s
                )
        return [
            NoticeChange(NoticeChangeKind.CHANGED, active.notice)
            for active in self._active.values()
            if active.notice.deadline_at is not None
        ]

    def next_expiry_at(self) -> float | None:
        """When `expire` has something to do (monotonic seconds)."""
        earliest = min(map(self._expires_at, self._active.values()), default=math.inf)
        return None if earliest == math.inf else earliest

    # --- across daemons -----------------------------------------------------------------------------------------------

    def to_remember(self, sources: Iterable[str]) -> list[RememberedNotice]:
        """What the next daemon needs to know of the notices of `sources`."""
        names = set(sources)
        return [
            RememberedNotice(notice.notice, notice.received_at, is_expired)
            for notices, is_expired in ((self._active, False), (self._expired, True))
            for notice in notices.values()
            if notice.notice.source in names
        ]

    def restore(self, remembered: Iterable[RememberedNotice]) -> None:
        """Continues with what an earlier daemon knew; none of it counts as a change."""
        for notice in remembered:
            key = (notice.notice.source, notice.notice.id)
            (self._expired if notice.is_expired else self._active)[key] = ActiveNotice(
                notice.notice, notice.received_at
            )
            self._restored.add(key)
            self._unconfirmed.add(key)

    def withdraw_unconfirmed(self, source: str) -> list[NoticeChange]:
        """The source has reported all that it has: removes what was restored and is not in its reports.

        A notice that can't be withdrawn holds until it expires.
        """
        missing = [key for key in self._unconfirmed if key[0] == source]
        self._unconfirmed.difference_update(missing)
        over = [key for key in missing if key not in self._active or self._active[key].notice.is_cancellable]
        return [change for change in (self.withdraw(*key) for key in over) if change is not None]

    def _update_slot(self, slot: Slot, raw: RawNotice, now: ClockReading) -> NoticeChange | None:
        notice = raw.to_notice(slot[0], now)
        if slot in self._slots:
            id, last = self._slots[slot]
            known = self._active.get((slot[0], id)) or self._expired.get((slot[0], id))
            if known is not None and not _is_second_event(known.notice, raw, now):
                notice = replace(notice, id=id, deadline_at=_moved_deadline(known.notice, last, raw, now))
        self._slots[slot] = (notice.id, raw)
        return self.add(notice, now.monotonic_at)

    def _missing_slots(self, source: str, endpoint: str, report: NoticeReport) -> Iterator[Slot]:
        if report.problem and report.unclear is None:
            return
        reported = {raw.slot for raw in report.notices} | (report.unclear or frozenset())
        for slot in self._slots:
            if slot[:2] == (source, endpoint) and slot[2] not in reported:
                yield slot

    def _forget(self, key: NoticeKey) -> None:
        for notices in (self._active, self._expired):
            notices.pop(key, None)
        self._restored.discard(key)
        self._unconfirmed.discard(key)

    def _expires_at(self, active: ActiveNotice) -> float:
        deadline_at = active.notice.deadline_at
        return math.inf if deadline_at is None else max(deadline_at, active.received_at) + self._grace_s


def is_more_severe(notice: Notice, other: Notice | None) -> bool:
    """Whether `notice` leaves less time, or is surer, than `other`."""
    return other is None or _severity(notice)[:2] < _severity(other)[:2]


def _severity(notice: Notice) -> tuple[int, float, str, str]:
    """Sorts before that of a less severe notice."""
    deadline_at = math.inf if notice.deadline_at is None else notice.deadline_at
    return (int(notice.certainty is Certainty.POSSIBLE), deadline_at, notice.source, notice.id)


def _is_second_event(known: Notice, raw: RawNotice, now: ClockReading) -> bool:
    """Whether a slot now has another event: the deadline of the first one has passed, and the id differs."""
    return known.id != raw.id and known.deadline_at is not None and now.monotonic_at > known.deadline_at


def _moved_deadline(known: Notice, last: RawNotice, raw: RawNotice, now: ClockReading) -> float | None:
    """The deadline of a known notice that is reported again; `last`: the report before."""
    before = known.deadline_at
    if (raw.gone_wall_at, raw.warning_s) == (last.gone_wall_at, last.warning_s):
        return before
    after = raw.deadline_at(now)
    if raw.is_cancellable or before is None or after is None:
        return after if after is not None else before
    return min(before, after)


def _with_restored_deadline(notice: Notice, known: Notice) -> Notice:
    """`notice` with the deadline that an earlier daemon knew, if its source names the same time, or none, as then.

    Counting again from now would postpone the deadline; and a clock may have been set meanwhile.
    """
    if notice.deadline_wall_at != known.deadline_wall_at or (notice.deadline_at is None) != (known.deadline_at is None):
        return notice
    return replace(notice, deadline_at=known.deadline_at)


def _is_later(notice: Notice, other: Notice) -> bool:
    """Whether it leaves more time than `other`."""
    if other.deadline_at is None:
        return False
    return notice.deadline_at is None or notice.deadline_at > other.deadline_at + TOLERANCE_S


def _is_same(notice: Notice, other: Notice) -> bool:
    """Whether nothing differs that anybody would act on."""
    if (notice.certainty, notice.kind) != (other.certainty, other.kind):
        return False
    if (notice.deadline_at is None) != (other.deadline_at is None):
        return False
    return abs((notice.deadline_at or 0.0) - (other.deadline_at or 0.0)) <= TOLERANCE_S
