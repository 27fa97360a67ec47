"""When to ask, and how long a save takes beside others."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.flush import (
    SPREAD,
    Saved,
    alone_s,
    expected_s,
    in_turn,
    latest_ask,
)

SAVES = st.lists(st.builds(Saved, ended_at=st.floats(0, 50), save_s=st.floats(0, 20)), min_size=1, max_size=4)


def test_the_last_ask_leaves_margin_save_and_one_step():
    assert latest_ask(gone_at=100.0, step_s=2.0, save_s=10.0, margin_s=1.0) == 87.0


def test_a_negative_time_is_refused():
    with pytest.raises(ValueError, match="save -1"):
        latest_ask(100.0, 1.0, -1.0, 1.0)


def test_a_save_alone_took_what_it_took():
    assert alone_s(Saved(10.0, 4.0), [Saved(6.0, 3.0), Saved(20.0, 10.0)]) == 4.0


def test_what_was_measured_side_by_side_is_divided_by_those_who_shared_the_disk():
    together = [Saved(10.0, 8.0)] * 7

    assert alone_s(Saved(10.0, 8.0), together) == 1.0


def test_only_the_time_spent_together_is_shared():
    assert alone_s(Saved(10.0, 4.0), [Saved(8.0, 2.0)]) == 3.0


def test_saves_of_an_earlier_daemon_count_as_alone():
    assert alone_s(Saved(-math.inf, 4.0), [Saved(-math.inf, 4.0), Saved(3.0, 4.0)]) == 4.0


def test_jobs_of_one_size_each_wait_for_all_others():
    saves = {name: [Saved(-math.inf, 1.0)] for name in "abcdefgh"}

    assert expected_s(saves, "abcdefgh") == pytest.approx(dict.fromkeys("abcdefgh", 8.0 * SPREAD))


def test_a_small_save_waits_for_a_large_one_no_longer_than_it_takes_itself():
    expected = expected_s({"small": [Saved(-math.inf, 1.0)], "large": [Saved(-math.inf, 20.0)]}, ["small", "large"])

    assert expected == pytest.approx({"small": 2.0 * SPREAD, "large": 21.0 * SPREAD})


def test_the_slowest_of_the_last_few_counts():
    assert expected_s({"a": [Saved(9.0, 1.0), Saved(20.0, 5.0), Saved(30.0, 1.0)]}, []) == {"a": 5.0 * SPREAD}


def test_a_job_that_never_saved_is_not_known():
    assert expected_s({"a": []}, ["a"]) == {}


@given(st.dictionaries(st.sampled_from("abcd"), SAVES, min_size=1))
def test_more_company_never_makes_a_save_faster_and_sharing_never_makes_it_slower_than_measured(saves):
    alone, together = expected_s(saves, []), expected_s(saves, saves)

    for name, measured in saves.items():
        assert alone[name] <= together[name]
        assert alone[name] <= SPREAD * max(each.save_s for each in measured) + 1e-9


def test_a_save_that_waited_for_the_one_before_it_is_as_long_as_its_own_part():
    before, after = Saved(100.0, 8.0), Saved(105.0, 7.0)

    assert in_turn(after, before) == Saved(105.0, 5.0), "7 s from its decision, 2 of them behind the other"
    assert in_turn(before, None) == before
    assert in_turn(Saved(120.0, 7.0), before) == Saved(120.0, 7.0)


@given(st.floats(0, 100), st.floats(0, 50), st.floats(0, 100), st.floats(0, 50))
def test_no_order_of_two_saves_makes_one_shorter_than_nothing_or_longer_than_it_was(end, took, end_before, took_before):
    own = in_turn(Saved(end, took), Saved(end_before, took_before))

    assert 0.0 <= own.save_s <= took
