"""Which nodes train: every rank once, spare nodes for those that failed, and none that failed twice."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gang.roster import GRACE_S, MAX_FAILURES, Roster

SIZE, WANTED = 6, 4

happenings = st.lists(
    st.tuples(
        st.sampled_from(["failed", "came"]), st.integers(1, SIZE - 1), st.sets(st.integers(1, SIZE - 1)), st.booleans()
    ),
    max_size=30,
)


@given(happenings)
def test_no_rank_is_held_twice_and_none_is_empty_while_a_healthy_node_is_there(
    events: list[tuple[str, int, set[int], bool]],
):
    roster = Roster(SIZE, WANTED)
    for event, node, others, is_late in events:
        (roster.failed if event == "failed" else roster.came)(node)
        ready = {0, *others}
        before, healthy = roster.ranks, {one for one in ready if not roster.is_out(one)}
        chosen = roster.choose(ready, GRACE_S if is_late else 0.0)
        if chosen is None:
            assert len(healthy) < WANTED or (not is_late and any(one not in healthy for one in before))
            continue
        assert len(set(chosen)) == len(chosen) == WANTED
        assert set(chosen) <= healthy and chosen[0] == 0
        assert all(new == old for new, old in zip(chosen, before, strict=True) if old in healthy)


def test_a_node_that_failed_twice_is_not_taken_again():
    roster = Roster(3, 2)
    for _ in range(MAX_FAILURES):
        roster.failed(1)
        roster.came(1)
    assert roster.is_out(1)
    assert roster.choose({0, 1, 2}, 0.0) == (0, 2)
    assert roster.choose({0, 1}, GRACE_S) is None


def test_a_loss_that_is_heard_of_twice_counts_once():
    roster = Roster(3, 2)
    roster.failed(1)
    roster.failed(1)
    assert not roster.is_out(1)


def test_the_spare_node_that_failed_less_is_taken_first():
    roster = Roster(4, 2)
    roster.failed(2)
    roster.came(2)
    roster.failed(1)
    assert roster.choose({0, 2, 3}, 0.0) == (0, 3)


def test_a_node_with_a_rank_is_waited_for_before_a_spare_one_takes_it():
    roster = Roster(3, 2)
    assert roster.choose({0, 2}, GRACE_S - 1) is None
    assert roster.choose({0, 2}, GRACE_S) == (0, 2)
    assert roster.failures == {1: 1}
