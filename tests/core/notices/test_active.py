"""Which notices hold, and which one decides."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.active import ActiveNotices, NoticeChange, NoticeChangeKind
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind


def notice(id: str = "1", deadline_at: float | None = 100.0, **values: object) -> Notice:
    given = {"certainty": Certainty.CERTAIN, "is_cancellable": True, "source": "aws", **values}
    return Notice(id=id, kind=NoticeKind.PREEMPTION, deadline_at=deadline_at, text="", **given)  # type: ignore[arg-type]


def board(*notices: Notice, grace_s: float = 60.0) -> ActiveNotices:
    made = ActiveNotices(grace_s)
    for active in notices:
        made.add(active, 0.0)
    return made


def test_repeated_notice_is_no_change():
    made = ActiveNotices(60.0)

    assert made.add(notice(), 0.0) == NoticeChange(NoticeChangeKind.RECEIVED, notice())
    assert made.add(notice(), 1.0) is None
    assert made.add(notice(deadline_at=100.3), 2.0) is None, "the same deadline, read from another clock"


def test_a_cancellable_notice_moves_either_way():
    made = board(notice())

    assert made.add(notice(deadline_at=50.0), 1.0) == NoticeChange(NoticeChangeKind.CHANGED, notice(deadline_at=50.0))
    assert made.add(notice(deadline_at=200.0), 1.0) == NoticeChange(NoticeChangeKind.CHANGED, notice(deadline_at=200.0))


def test_a_final_notice_moves_only_earlier():
    made = board(notice(is_cancellable=False))

    assert made.add(notice(deadline_at=200.0, is_cancellable=False), 1.0) is None
    assert made.add(notice(deadline_at=50.0, is_cancellable=False), 1.0) is not None


def test_a_possible_notice_that_becomes_certain_is_news():
    made = board(notice(certainty=Certainty.POSSIBLE))

    assert made.add(notice(), 1.0) == NoticeChange(NoticeChangeKind.CHANGED, notice())


def test_the_earliest_certain_deadline_decides():
    late, early = notice("late", 200.0), notice("early", 100.0)
    possible, timeless = notice("possible", 10.0, certainty=Certainty.POSSIBLE), notice("timeless", None)

    made = board(possible, late, timeless, early)

    assert [active.notice.id for active in made.by_severity] == ["early", "late", "timeless", "possible"]
    assert made.most_severe("digits") == early


def test_next_notice_decides_after_a_withdrawal():
    made = board(notice("a", 100.0), notice("b", 200.0))

    assert made.withdraw("aws", "a") == NoticeChange(NoticeChangeKind.WITHDRAWN, notice("a", 100.0))
    assert made.most_severe("digits") == notice("b", 200.0)
    assert made.withdraw("aws", "a") is None


def test_notice_for_one_program_concerns_no_other():
    made = ActiveNotices(60.0)
    made.add(notice(), 0.0, program="digits")

    assert made.most_severe("digits") == notice()
    assert made.most_severe("charlm") is None


def test_notice_expires_a_grace_after_its_deadline():
    made = board(notice())

    assert made.next_expiry_at() == 160.0
    assert made.expire(159.9) == []
    assert made.expire(160.0) == [NoticeChange(NoticeChangeKind.EXPIRED, notice())]
    assert made.next_expiry_at() is None


def test_late_notice_expires_a_grace_after_it_was_received():
    made = ActiveNotices(60.0)

    assert made.add(notice(deadline_at=-500.0), 0.0) is not None
    assert made.next_expiry_at() == 60.0


def test_repeated_expired_notice_stays_expired_unless_its_deadline_is_later():
    made = board(notice())
    made.expire(160.0)

    assert made.add(notice(), 161.0) is None
    assert made.add(notice(deadline_at=300.0), 162.0) == NoticeChange(
        NoticeChangeKind.RECEIVED, notice(deadline_at=300.0)
    )


def test_an_expired_notice_that_was_withdrawn_may_come_again():
    made = board(notice())
    made.expire(160.0)
    made.withdraw("aws", "1")

    assert made.add(notice(deadline_at=170.0), 165.0) is not None


def test_host_that_was_suspended_is_nearer_to_its_deadlines():
    made = board(notice(), notice("timeless", None))

    assert made.host_slept(30.0) == [NoticeChange(NoticeChangeKind.CHANGED, notice(deadline_at=70.0))]
    assert made.next_expiry_at() == 70.0 + 60.0
    assert [active.notice.deadline_at for active in made.by_severity] == [70.0, None]


def test_a_notice_without_a_time_holds_until_it_is_withdrawn():
    made = board(notice(deadline_at=None))

    assert made.next_expiry_at() is None
    assert made.expire(1e9) == []


def followed(made: ActiveNotices, grace_s: float = 60.0) -> ActiveNotices:
    """The board of the next daemon."""
    later = ActiveNotices(grace_s)
    later.restore(made.to_remember(["aws"]))
    return later


def test_restored_notice_that_is_reported_again_is_no_change():
    made = followed(board(notice()))

    assert made.most_severe("digits") == notice()
    assert made.add(notice(), 50.0) is None
    assert made.is_restored(notice())
    assert made.next_expiry_at() == 160.0


def test_relative_deadline_does_not_restart_for_the_next_daemon():
    made = followed(board(notice()))

    assert made.add(notice(deadline_at=150.0), 50.0) is None
    assert made.most_severe("digits") == notice()
    assert made.add(notice(deadline_at=130.0), 51.0) == NoticeChange(
        NoticeChangeKind.CHANGED, notice(deadline_at=130.0)
    )


def test_restored_deadline_moves_only_if_the_source_names_another_time():
    said = notice(deadline_wall_at=5000.0)

    assert followed(board(said)).add(notice(deadline_at=700.0, deadline_wall_at=5000.0), 50.0) is None
    moved = notice(deadline_at=700.0, deadline_wall_at=5600.0)
    assert followed(board(said)).add(moved, 50.0) == NoticeChange(NoticeChangeKind.CHANGED, moved)


def test_notice_that_expired_in_an_earlier_daemon_stays_expired():
    expired = board(notice())
    expired.expire(160.0)
    made = followed(expired)

    assert made.add(notice(deadline_at=230.0), 200.0) is None
    assert made.most_severe("digits") is None
    assert followed(made).add(notice(deadline_at=330.0), 300.0) is None, "nor for the daemon after that"


def test_a_late_notice_that_no_daemon_has_seen_is_acted_on():
    assert followed(board()).add(notice(deadline_at=-500.0), 0.0) is not None


def test_restored_notice_that_is_not_reported_again_is_withdrawn():
    kept, gone, final = notice("kept"), notice("gone"), notice("final", is_cancellable=False)
    made = followed(board(kept, gone, final))
    made.add(kept, 1.0)

    assert made.withdraw_unconfirmed("aws") == [NoticeChange(NoticeChangeKind.WITHDRAWN, gone)]
    assert {active.notice.id for active in made.by_severity} == {"kept", "final"}
    assert made.add(gone, 2.0) == NoticeChange(NoticeChangeKind.RECEIVED, gone), "and may come again"
    assert not made.is_restored(gone)


def test_expired_notice_that_is_not_reported_again_is_forgotten():
    expired = board(notice())
    expired.expire(160.0)
    made = followed(expired)
    made.withdraw_unconfirmed("aws")

    assert made.add(notice(deadline_at=230.0), 200.0) is not None


def test_only_notices_of_watched_sources_are_remembered():
    assert board(notice(), notice(source="drill")).to_remember(["aws"])[0].notice == notice()
    assert len(board(notice(), notice(source="drill")).to_remember(["aws"])) == 1


TOLD = st.tuples(st.sampled_from("ab"), st.none() | st.floats(0, 300), st.sampled_from(Certainty), st.booleans())


@given(
    st.lists(
        st.tuples(st.sampled_from(["receive", "withdraw", "expire", "restart"]), TOLD, st.floats(0, 50)), max_size=30
    )
)
def test_each_notice_is_received_once_before_it_ends_whatever_sources_say(story):
    made, now, holding = ActiveNotices(20.0), 0.0, set()
    for what, (id, deadline_at, certainty, cancellable), pause in story:
        now += pause
        repeated = notice(id, deadline_at, certainty=certainty, is_cancellable=cancellable)
        if what == "restart":
            made = followed(made, 20.0)
        if what == "receive":
            news = [made.add(repeated, now)]
        else:
            news = [made.withdraw("aws", id)] if what == "withdraw" else list(made.expire(now))
        for change in filter(None, news):
            assert (change.notice.id in holding) == (change.kind is not NoticeChangeKind.RECEIVED)
            (holding.add if change.kind in (NoticeChangeKind.RECEIVED, NoticeChangeKind.CHANGED) else holding.discard)(
                change.notice.id
            )
        assert {active.notice.id for active in made.by_severity} == holding
        assert (made.most_severe("x") is None) == (not holding)
