"""All notices that hold at present, from every source: what is new, what changed, what is over. Time is a number.

A host is as sure to go as the gravest of its notices says: of those that are certain the one with the earliest
deadline, then those that are certain and say no time, then those that are only possible.

What an earlier daemon of the same boot had heard, and what had expired then, is recalled before any source is asked,
so that a notice that is told to both daemons is one. What its source, once it answers, tells no more was withdrawn
while no daemon was there.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.core.notices.notice import Certainty, Notice

SAME_S = 0.5  # sources turn wall time into ours at every look, so the same deadline comes back a little different

Key = tuple[str, str]


class NoticeChangeKind(StrEnum):
    """What became of a notice."""

    RECEIVED = "received"
    CHANGED = "changed"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"  # its deadline passed, and the host still stands


@dataclass(frozen=True, slots=True)
class NoticeChange:
    """Something that happened to one notice."""

    kind: NoticeChangeKind
    notice: Notice


@dataclass(frozen=True, slots=True)
class ActiveNotice:
    """A notice on the board, and when it came (monotonic seconds). `program`: whom it is for; None: everybody."""

    notice: Notice
    received_at: float
    program: str | None = None


@dataclass(frozen=True, slots=True)
class RememberedNotice:
    """A notice as it is kept for the next daemon. `is_over`: it expired, but its source may go on telling it."""

    notice: Notice
    received_at: float
    is_expired: bool


class ActiveNotices:
    """The board. `grace_s`: how long after its deadline a notice is taken for over, if the host still stands."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._posted: dict[Key, ActiveNotice] = {}
        self._over: dict[Key, ActiveNotice] = {}  # expired, but their sources may go on telling them
        self._recalled: set[Key] = set()  # on the board from an earlier daemon
        self._unconfirmed: set[Key] = set()  # recalled, and not told to this daemon yet

    @property
    def by_severity(self) -> tuple[ActiveNotice, ...]:
        """What holds, the gravest first."""
        return tuple(sorted(self._posted.values(), key=lambda each: _severity(each.notice)))

    def most_severe(self, program: str) -> Notice | None:
        """The notice that decides for a program; None: it has nothing to fear."""
        return next((each.notice for each in self.by_severity if each.program in (None, program)), None)

    def add(self, notice: Notice, now: float, program: str | None = None) -> NoticeChange | None:
        """A source tells a notice, perhaps again; None if that is no news."""
        key = (notice.source, notice.id)
        known, over = self._posted.get(key), self._over.get(key)
        if key in self._unconfirmed:
            self._unconfirmed.discard(key)
            notice = _as_before(notice, (known or over or ActiveNotice(notice, now)).notice)
        if over is not None and not _is_later(notice, over.notice):
            return None
        if known is None:
            self._forget(key)
            self._posted[key] = ActiveNotice(notice, now, program)
            return NoticeChange(NoticeChangeKind.RECEIVED, notice)
        if _is_same(notice, known.notice) or (not notice.is_cancellable and _is_later(notice, known.notice)):
            return None  # who can't take a notice back can't put it off either: a clock was set, or an emulator counts
        self._posted[key] = replace(known, notice=notice)
        return NoticeChange(NoticeChangeKind.CHANGED, notice)

    def withdraw(self, source: str, id: str) -> NoticeChange | None:
        """A source says that a notice no longer holds; None if it did not hold anyway."""
        known = self._posted.get((source, id))
        self._forget((source, id))
        return None if known is None else NoticeChange(NoticeChangeKind.WITHDRAWN, known.notice)

    def expire(self, now: float) -> list[NoticeChange]:
        """Takes down what is over at `now`."""
        over = [key for key, each in self._posted.items() if self._over_at(each) <= now]
        for key in over:
            self._over[key] = self._posted.pop(key)
        return [NoticeChange(NoticeChangeKind.EXPIRED, self._over[key].notice) for key in over]

    def next_expiry_at(self) -> float | None:
        """When `expire` has something to do (monotonic seconds)."""
        earliest = min(map(self._over_at, self._posted.values()), default=math.inf)
        return None if earliest == math.inf else earliest

    def to_remember(self, sources: Iterable[str]) -> list[RememberedNotice]:
        """What the next daemon needs to know of the notices of `sources`."""
        kept = [(each, False) for each in self._posted.values()] + [(each, True) for each in self._over.values()]
        wanted = set(sources)
        return [
            RememberedNotice(each.notice, each.received_at, over) for each, over in kept if each.notice.source in wanted
        ]

    def restore(self, memories: Iterable[RememberedNotice]) -> None:
        """Takes up what an earlier daemon knew; nothing of it is news."""
        for each in memories:
            key = (each.notice.source, each.notice.id)
            (self._over if each.is_expired else self._posted)[key] = ActiveNotice(each.notice, each.received_at)
            self._recalled.add(key)
            self._unconfirmed.add(key)

    def is_restored(self, notice: Notice) -> bool:
        """Whether an earlier daemon had told the programs of it."""
        return (notice.source, notice.id) in self._recalled

    def has_unconfirmed(self, source: str) -> bool:
        """Whether something is recalled of this source that it has not told again."""
        return any(key[0] == source for key in self._unconfirmed)

    def withdraw_unconfirmed(self, source: str) -> list[NoticeChange]:
        """The source has said all that it has to say: what is recalled of it and was not among that is no more.

        A notice that can't be taken back holds until it expires, mentioned or not.
        """
        gone = [key for key in self._unconfirmed if key[0] == source]
        self._unconfirmed.difference_update(gone)
        over = [key for key in gone if key not in self._posted or self._posted[key].notice.is_cancellable]
        return [news for news in (self.withdraw(*key) for key in over) if news is not None]

    def _forget(self, key: Key) -> None:
        for kept in (self._posted, self._over):
            kept.pop(key, None)
        self._recalled.discard(key)
        self._unconfirmed.discard(key)

    def _over_at(self, posted: ActiveNotice) -> float:
        deadline_at = posted.notice.deadline_at
        return math.inf if deadline_at is None else max(deadline_at, posted.received_at) + self._grace_s


def is_more_severe(notice: Notice, other: Notice | None) -> bool:
    """Whether `notice` leaves less time, or is surer, than `other`."""
    return other is None or _severity(notice)[:2] < _severity(other)[:2]


def _severity(notice: Notice) -> tuple[int, float, str, str]:
    deadline_at = math.inf if notice.deadline_at is None else notice.deadline_at
    return (int(notice.certainty is Certainty.POSSIBLE), deadline_at, notice.source, notice.id)


def _as_before(notice: Notice, known: Notice) -> Notice:
    """`notice` with the deadline that is known, if its source names the same hour, or none, as it did then.

    To count again from now would put the end off; and where a clock was set meanwhile the hour is still the same.
    """
    if notice.deadline_wall_at != known.deadline_wall_at or (notice.deadline_at is None) != (known.deadline_at is None):
        return notice
    return replace(notice, deadline_at=known.deadline_at)


def _is_later(notice: Notice, other: Notice) -> bool:
    """Whether it leaves more time than before."""
    if other.deadline_at is None:
        return False
    return notice.deadline_at is None or notice.deadline_at > other.deadline_at + SAME_S


def _is_same(notice: Notice, other: Notice) -> bool:
    if (notice.certainty, notice.kind) != (other.certainty, other.kind):
        return False
    if (notice.deadline_at is None) != (other.deadline_at is None):
        return False
    return abs((notice.deadline_at or 0.0) - (other.deadline_at or 0.0)) <= SAME_S
