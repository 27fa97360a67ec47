"""Where a proof ends its runs, and where it kills: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.proof import KillPlace
from supervisor.prove import plan
from supervisor.prove.outside import MOST_STEPS, undisturbed_record
from supervisor.prove.plan import ProofOptions, TrainedSoFar

LENGTHS = st.integers(3, 3000)


def kills(last: int, edges: list[int], count: int = 3):
    interval = plan.steps_between_saves(last, count, 0.01)
    return plan.plan_kills(range(1, last + 1), edges, count, interval, is_whole=True)


def test_a_run_without_end_goes_on_for_a_minute_and_over_an_end_of_an_epoch():
    before_the_edge = TrainedSoFar(500, 100.0)
    at_the_edge = TrainedSoFar(600, 100.0, edges=(599,))
    behind_it = TrainedSoFar(605, 100.0, edges=(599,))

    ends = [plan.end_of_training(each, ProofOptions()) for each in (before_the_edge, at_the_edge, behind_it)]

    assert ends[:2] == [None, None]
    assert ends[2] == 605 + 7  # a second's steps ahead, for the worker to take notice


def test_an_epoch_that_takes_too_long_is_not_waited_for():
    assert plan.end_of_training(TrainedSoFar(40, plan.EDGE_S + 1), ProofOptions()) is not None


def test_slow_steps_are_at_least_twenty():
    assert plan.end_of_training(TrainedSoFar(19, 4000.0), ProofOptions()) is None
    assert plan.end_of_training(TrainedSoFar(20, 4000.0), ProofOptions()) == 22


def test_epochs_are_counted_by_the_first_one():
    wanted = ProofOptions(epochs=1.5)

    assert plan.end_of_training(TrainedSoFar(90, 1.0), wanted) is None
    assert plan.end_of_training(TrainedSoFar(101, 200.0, edges=(100,)), wanted) == 150


def test_three_kills_are_in_a_step_at_an_edge_and_in_a_save():
    found = kills(300, list(range(50, 300, 50)))

    assert sorted(kill.place for kill in found) == sorted(KillPlace)
    assert [kill.place for kill in found if kill.damages] == [KillPlace.STEP]


def test_where_epochs_are_unknown_the_end_of_training_is_the_edge():
    found = kills(200, [])

    assert [kill.step for kill in found if kill.place is KillPlace.EPOCH_EDGE] == [200]


def test_no_save_but_that_of_the_end_is_at_the_last_step():
    assert not [last for last in range(3, 2000) if last % plan.steps_between_saves(last, 3, 0.001) == 0]


@pytest.mark.parametrize("cycle", [2, 4, 8])
def test_a_restart_is_within_every_short_cycle(cycle: int):
    """A loop that counts anew would otherwise be at the same place by chance."""
    for last in range(60, 600, 7):
        interval = plan.steps_between_saves(last, 1, 0.01)
        (kill,) = plan.plan_kills(range(1, last + 1), [], 1, interval, is_whole=True)

        assert (kill.step - 1) // interval * interval % cycle != 0


@given(LENGTHS, st.integers(1, 9), st.data())
def test_kills_are_in_order_and_each_has_a_step_of_its_own(last: int, count: int, data: st.DataObject):
    edges = sorted(data.draw(st.sets(st.integers(1, last), max_size=8)))

    found = kills(last, edges, count)

    steps = [kill.step for kill in found]
    assert 1 <= len(found) <= count
    assert steps == sorted(set(steps))
    assert all(1 <= step <= last for step in steps)
    assert all(kill.place is KillPlace.EPOCH_EDGE for kill in found if kill.step == last)
    assert sum(kill.damages for kill in found) <= 1
    assert all(kill.saves for kill in found if kill.damages)


@given(LENGTHS, st.integers(1, 9), st.floats(1e-5, 100.0))
def test_saves_are_between_kills(last: int, count: int, step_s: float):
    interval = plan.steps_between_saves(last, count, step_s)

    assert 2 <= interval <= last + 1
    assert last % interval != 0


def test_a_killed_run_may_train_longer_only_if_the_script_ends_it():
    assert plan.end_of_killed_run(100, is_whole=True) > 100
    assert plan.end_of_killed_run(100, is_whole=False) == 100


@pytest.mark.parametrize("last", [0, 1, 1_000_000])
def test_record_of_a_run_that_was_only_seen_to_end_has_its_last_step(last: int):
    record = undisturbed_record(last, 10.0)

    assert record.last == last
    assert len(record.steps) <= 2 * MOST_STEPS
