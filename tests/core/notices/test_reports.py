"""From wall time to a deadline on the monotonic clock, and from repeated reports to one notice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.active import ActiveNotices, NoticeChange, NoticeChangeKind
from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind, NoticeReport, RawNotice

WALL = datetime(2026, 11, 21, 0, 50, 0, tzinfo=UTC)
WITHDRAWN = NoticeChangeKind.WITHDRAWN
NOW = ClockReading(1000.0, WALL)
SPOT = RawNotice(
    slot="spot",
    id="spot-1",
    kind=NoticeKind.PREEMPTION,
    certainty=Certainty.CERTAIN,
    gone_wall_at=WALL + timedelta(seconds=100),
    warning_s=120.0,
    is_cancellable=False,
    text="spot",
)
MAINTENANCE = replace(
    SPOT, slot="event", id="event-1", kind=NoticeKind.MAINTENANCE, is_cancellable=True, warning_s=86400.0
)


def later(seconds: float) -> ClockReading:
    return ClockReading(NOW.monotonic_at + seconds, WALL + timedelta(seconds=seconds))


@given(st.integers(-400_000, 400_000), st.floats(0, 10_000))
def test_wrong_clock_gives_no_more_than_the_documented_warning(skew_s: int, warning_s: float) -> None:
    raw = replace(SPOT, warning_s=warning_s)

    deadline_at = raw.deadline_at(ClockReading(1000.0, WALL + timedelta(seconds=skew_s)))

    assert deadline_at is not None
    assert 1000.0 <= deadline_at <= 1000.0 + warning_s


def received(changes: list[NoticeChange]) -> list[tuple[str, float | None]]:
    """The id and deadline of each notice that is new or has changed."""
    return [(change.notice.id, change.notice.deadline_at) for change in changes if change.kind is not WITHDRAWN]


def withdrawn(changes: list[NoticeChange]) -> list[str]:
    return [change.notice.id for change in changes if change.kind is WITHDRAWN]


def test_wall_clock_that_is_set_meanwhile_moves_nothing() -> None:
    notices, changes = ActiveNotices(60.0), []

    for seconds, skew_s in ((0, 0), (5, 3600), (10, -3600)):
        at = ClockReading(NOW.monotonic_at + seconds, WALL + timedelta(seconds=seconds + skew_s))
        changes += notices.update("aws", "q", NoticeReport((SPOT, MAINTENANCE)), at)

    assert received(changes) == [("spot-1", 1100.0), ("event-1", 1100.0)]


def test_final_notice_moves_only_nearer_and_a_cancellable_one_both_ways() -> None:
    notices = ActiveNotices(60.0)
    changes = notices.update("aws", "q", NoticeReport((SPOT, MAINTENANCE)), NOW)

    for seconds in (110, 50):
        gone = WALL + timedelta(seconds=seconds)
        moved = (replace(SPOT, gone_wall_at=gone), replace(MAINTENANCE, gone_wall_at=gone))
        changes += notices.update("aws", "q", NoticeReport(moved), NOW)

    assert received(changes) == [
        ("spot-1", 1100.0),
        ("event-1", 1100.0),
        ("event-1", 1110.0),
        ("spot-1", 1050.0),
        ("event-1", 1050.0),
    ]


def test_id_that_contains_a_moved_time_is_the_same_notice() -> None:
    notices = ActiveNotices(60.0)
    notices.update("aws", "q", NoticeReport((SPOT,)), NOW)

    sooner = replace(SPOT, id="spot-sooner", gone_wall_at=WALL + timedelta(seconds=50))
    changes = notices.update("aws", "q", NoticeReport((sooner,)), NOW)

    assert received(changes) == [("spot-1", 1050.0)]


def test_second_event_after_the_first_one_passed_is_another_notice() -> None:
    notices = ActiveNotices(60.0)
    changes = notices.update("aws", "q", NoticeReport((SPOT,)), NOW)

    second = replace(SPOT, id="spot-2", gone_wall_at=WALL + timedelta(seconds=600))
    changes += notices.update("aws", "q", NoticeReport((second,)), later(500))

    assert received(changes) == [("spot-1", 1100.0), ("spot-2", 1600.0)]


def test_report_of_one_endpoint_says_nothing_about_another() -> None:
    notices = ActiveNotices(60.0)
    notices.update("aws", "one", NoticeReport((MAINTENANCE,)), NOW)

    assert notices.update("aws", "other", NoticeReport(), NOW) == []
    assert notices.update("azure", "one", NoticeReport(), NOW) == []
    assert withdrawn(notices.update("aws", "one", NoticeReport(), NOW)) == ["event-1"]


def test_final_notice_that_is_not_mentioned_any_more_holds_until_it_expires() -> None:
    notices = ActiveNotices(60.0)
    notices.update("aws", "q", NoticeReport((SPOT,)), NOW)

    assert notices.update("aws", "q", NoticeReport(), later(1)) == []
    assert [active.notice.id for active in notices.by_severity] == ["spot-1"]


def test_report_parsed_in_part_withdraws_only_what_it_surely_lacks() -> None:
    notices = ActiveNotices(60.0)
    notices.update("file", "q", NoticeReport((MAINTENANCE, replace(MAINTENANCE, slot="b", id="b"))), NOW)

    assert notices.update("file", "q", NoticeReport(problem="garbled"), NOW) == []
    changes = notices.update("file", "q", NoticeReport(problem="garbled", unclear=frozenset({"b"})), NOW)
    assert withdrawn(changes) == ["event-1"]


def test_expired_notice_that_is_reported_on_stays_silent() -> None:
    notices = ActiveNotices(60.0)
    notices.update("aws", "q", NoticeReport((SPOT,)), NOW)
    notices.expire(1160.0)

    assert notices.update("aws", "q", NoticeReport((SPOT,)), later(200)) == []


def test_notice_whose_words_change_without_a_consequence_is_not_reported_again() -> None:
    notices = ActiveNotices(60.0)
    notices.update("aws", "q", NoticeReport((SPOT,)), NOW)

    assert notices.update("aws", "q", NoticeReport((replace(SPOT, text="other words"),)), later(1)) == []


def test_restored_notice_keeps_its_deadline_when_its_source_reports_it_again() -> None:
    before, after = ActiveNotices(60.0), ActiveNotices(60.0)
    timeless = replace(SPOT, gone_wall_at=None)
    before.update("google", "q", NoticeReport((timeless,)), NOW)
    after.restore(before.to_remember(["google"]))

    assert after.confirmed("google") == []
    assert after.update("google", "q", NoticeReport((timeless,)), later(50)) == []
    assert after.confirmed("google") == [timeless.to_notice("google", NOW)]
