"""What a source has told so far: turns answer after answer into what is new, moved or withdrawn."""

from dataclasses import dataclass, replace
from datetime import datetime

from supervisor.core.notices.notice import Notice
from supervisor.host.notices.announcement import ClockReading, NoticeReport, RawNotice
from supervisor.host.notices.source import NoticeSink


@dataclass(frozen=True, slots=True)
class _Told:
    """A notice, and the words from which its deadline was worked out."""

    notice: Notice
    gone_wall: datetime | None
    lead_s: float | None


class Heard:
    """The active notices of one source. It may ask several questions; each answer speaks for its question only."""

    def __init__(self, source: str, sink: NoticeSink) -> None:
        self._source = source
        self._sink = sink
        self._active: dict[tuple[str, str], _Told] = {}

    def hear(self, question: str, reading: NoticeReport, at: ClockReading) -> None:
        """Takes the newest answer to `question` and tells the sink what differs from the one before.

        Nothing is withdrawn that the answer may have said in words that were not understood.
        """
        present = {(question, slot) for slot in reading.unclear or ()}
        for announced in reading.notices:
            slot = (question, announced.slot)
            present.add(slot)
            self._hear_one(slot, announced, at)
        if reading.problem and reading.unclear is None:
            return
        for slot in [each for each in self._active if each[0] == question and each not in present]:
            notice = self._active.pop(slot).notice
            if notice.is_cancellable:  # a final one is not called off because it is no longer mentioned
                self._sink.withdrawn(notice.source, notice.id)

    def _hear_one(self, slot: tuple[str, str], announced: RawNotice, at: ClockReading) -> None:
        told = self._active.get(slot)
        notice = announced.notice(self._source, at)
        if told is not None and not _is_another(told.notice, announced, at):
            notice = replace(notice, id=told.notice.id, deadline_at=_moved(told, announced, at))
            if not _is_news(notice, told.notice):
                notice = told.notice  # with its words, which agree with its deadline
        self._active[slot] = _Told(notice, announced.gone_wall_at, announced.warning_s)
        if told is None or notice != told.notice:
            self._sink.received(notice)


def _is_news(notice: Notice, before: Notice) -> bool:
    """Whether anything differs by which somebody would act."""
    return (notice.deadline_at, notice.kind, notice.certainty) != (before.deadline_at, before.kind, before.certainty)


def _is_another(notice: Notice, announced: RawNotice, at: ClockReading) -> bool:
    """Whether this is a second event in the same slot: the first one's time has passed, and here is another."""
    return notice.id != announced.id and notice.deadline_at is not None and at.monotonic_at > notice.deadline_at


def _moved(told: _Told, announced: RawNotice, at: ClockReading) -> float | None:
    """The deadline after a repeat.

    The same words keep it, whatever the wall clock did meanwhile. Other words move it: either way if the source can
    reschedule, else only to earlier, because some sources name a later time at every question.
    """
    before = told.notice.deadline_at
    if (announced.gone_wall_at, announced.warning_s) == (told.gone_wall, told.lead_s):
        return before
    after = announced.deadline_at(at)
    if announced.is_cancellable or before is None or after is None:
        return after if after is not None else before
    return min(before, after)
