"""From a time on a wall to a deadline on our own clock, and from repeated words to one notice."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.notice import Certainty, NoticeKind
from supervisor.host.notices.announcement import ClockReading, NoticeReport, RawNotice
from supervisor.host.notices.heard import Heard
from supervisor.host.notices.polling import retry_s
from tests.host.notices.recorder import Recorder

WALL = datetime(2026, 11, 21, 0, 50, 0, tzinfo=UTC)
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
def test_no_clock_however_wrong_gives_more_than_the_documented_warning(skew_s: int, lead_s: float) -> None:
    announced = replace(SPOT, warning_s=lead_s)

    deadline_at = announced.deadline_at(ClockReading(1000.0, WALL + timedelta(seconds=skew_s)))

    assert deadline_at is not None
    assert 1000.0 <= deadline_at <= 1000.0 + lead_s


@given(st.floats(0.01, 100), st.integers(0, 10_000))
def test_retry_is_never_faster_than_the_pace_and_never_much_slower_than_its_cap(every_s: float, failures: int) -> None:
    assert every_s <= retry_s(every_s, failures, 10.0) <= max(10.0, every_s) * 1.25


def test_wall_clock_that_is_set_meanwhile_moves_nothing() -> None:
    recorder = Recorder()
    heard = Heard("aws", recorder)

    for seconds, skew_s in ((0, 0), (5, 3600), (10, -3600)):
        at = ClockReading(NOW.monotonic_at + seconds, WALL + timedelta(seconds=seconds + skew_s))
        heard.hear("q", NoticeReport((SPOT, MAINTENANCE)), at)

    assert [each.id for each in recorder.received_all] == ["spot-1", "event-1"]


def test_final_notice_moves_only_nearer_and_a_cancellable_one_both_ways() -> None:
    recorder = Recorder()
    heard = Heard("aws", recorder)
    heard.hear("q", NoticeReport((SPOT, MAINTENANCE)), NOW)

    for seconds in (110, 50):
        gone = WALL + timedelta(seconds=seconds)
        heard.hear("q", NoticeReport((replace(SPOT, gone_wall_at=gone), replace(MAINTENANCE, gone_wall_at=gone))), NOW)

    deadlines = [(each.id, each.deadline_at) for each in recorder.received_all]
    assert deadlines == [
        ("spot-1", 1100.0),
        ("event-1", 1100.0),
        ("event-1", 1110.0),
        ("spot-1", 1050.0),
        ("event-1", 1050.0),
    ]


def test_second_event_after_the_first_one_passed_is_another_notice() -> None:
    recorder = Recorder()
    heard = Heard("aws", recorder)
    heard.hear("q", NoticeReport((SPOT,)), NOW)

    second = replace(SPOT, id="spot-2", gone_wall_at=WALL + timedelta(seconds=600))
    heard.hear("q", NoticeReport((second,)), later(500))

    assert [(each.id, each.deadline_at) for each in recorder.received_all] == [("spot-1", 1100.0), ("spot-2", 1600.0)]


def test_answer_to_one_question_says_nothing_about_another() -> None:
    recorder = Recorder()
    heard = Heard("aws", recorder)
    heard.hear("one", NoticeReport((MAINTENANCE,)), NOW)

    heard.hear("other", NoticeReport(), NOW)
    assert recorder.withdrawn_ids == []

    heard.hear("one", NoticeReport(), NOW)
    assert recorder.withdrawn_ids == ["event-1"]


def test_answer_understood_in_part_withdraws_only_what_it_surely_lacks() -> None:
    recorder = Recorder()
    heard = Heard("file", recorder)
    heard.hear("q", NoticeReport((MAINTENANCE, replace(MAINTENANCE, slot="b", id="b"))), NOW)

    heard.hear("q", NoticeReport(problem="garbled"), NOW)
    assert recorder.withdrawn_ids == []

    heard.hear("q", NoticeReport(problem="garbled", unclear=frozenset({"b"})), NOW)
    assert recorder.withdrawn_ids == ["event-1"]
