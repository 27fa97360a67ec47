"""When to ask, and how long a save takes beside others."""

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.flush import (
    SAVE_SPREAD,
    MeasuredSave,
    expected_claimed_save_s,
    expected_save_s,
    latest_flush_at,
    unshared_saves_s,
    without_queueing,
)

SAVES = st.lists(st.builds(MeasuredSave, ended_at=st.floats(0, 50), save_s=st.floats(0, 20)), min_size=1, max_size=4)


def test_last_flush_leaves_margin_save_and_one_step():
    assert latest_flush_at(gone_at=100.0, step_s=2.0, save_s=10.0, margin_s=1.0) == 87.0


def test_a_negative_time_is_refused():
    with pytest.raises(ValueError, match="save -1"):
        latest_flush_at(100.0, 1.0, -1.0, 1.0)


def unshared_save_s(save: MeasuredSave, others: Iterable[MeasuredSave]) -> float:
    return unshared_saves_s([save, *others])[0]


def test_unshared_save_counts_in_full():
    assert unshared_save_s(MeasuredSave(10.0, 4.0), [MeasuredSave(6.0, 3.0), MeasuredSave(20.0, 10.0)]) == 4.0


def test_shared_time_is_divided_by_the_number_of_saves():
    together = [MeasuredSave(10.0, 8.0)] * 7

    assert unshared_save_s(MeasuredSave(10.0, 8.0), together) == 1.0


def test_only_the_time_spent_together_is_shared():
    assert unshared_save_s(MeasuredSave(10.0, 4.0), [MeasuredSave(8.0, 2.0)]) == 3.0


def test_saves_of_an_earlier_daemon_count_as_alone():
    assert unshared_save_s(MeasuredSave(-math.inf, 4.0), [MeasuredSave(-math.inf, 4.0), MeasuredSave(3.0, 4.0)]) == 4.0


def shared_bit_by_bit(save: MeasuredSave, others: list[MeasuredSave]) -> float:
    """Between every two moments at which anything begins or ends, the saves that write share the disk evenly."""
    edges = sorted({at for measured in (save, *others) for at in (measured.began_at, measured.ended_at)})
    spans = [(begin, end) for begin, end in pairwise(edges) if save.began_at <= begin and end <= save.ended_at]
    return sum(
        (end - begin) / (1 + sum(other.began_at <= begin and end <= other.ended_at for other in others))
        for begin, end in spans
    )


def one_by_one(lengths: list[tuple[int, int]]) -> list[MeasuredSave]:
    """Saves of one job, from the pauses before them and their durations, in eighths of a second: exact floats."""
    ends = accumulate(pause + took for pause, took in lengths)
    return [MeasuredSave(end / 8, took / 8) for end, (_, took) in zip(ends, lengths, strict=True)]


JOBS = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4).map(one_by_one),
    min_size=1,
    max_size=4,
)


@given(JOBS)
def test_saves_of_all_jobs_are_unshared_at_once_as_each_by_itself(jobs: list[list[MeasuredSave]]):
    unshared = iter(unshared_saves_s([measured for own in jobs for measured in own]))

    for number, own in enumerate(jobs):
        others = [measured for other in (*jobs[:number], *jobs[number + 1 :]) for measured in other]
        for save in own:
            assert next(unshared) == pytest.approx(shared_bit_by_bit(save, others), abs=1e-9)


@given(JOBS, st.sets(st.integers(0, 6)))
def test_delay_by_all_others_is_the_sum_of_the_delays_by_each(jobs: list[list[MeasuredSave]], finishing: set[int]):
    """Job 4 and above were never measured."""
    saves = {str(number): own for number, own in enumerate(jobs)}
    alone = {name: value / SAVE_SPREAD for name, value in expected_save_s(saves, []).items()}

    expected = expected_save_s(saves, {str(number) for number in finishing})

    for name, own_s in alone.items():
        beside = [alone.get(str(number), own_s) for number in finishing if str(number) != name]
        assert expected[name] == pytest.approx(SAVE_SPREAD * (own_s + sum(min(own_s, other_s) for other_s in beside)))


def test_equal_saves_each_wait_for_all_others():
    saves = {name: [MeasuredSave(-math.inf, 1.0)] for name in "abcdefgh"}

    assert expected_save_s(saves, "abcdefgh") == pytest.approx(dict.fromkeys("abcdefgh", 8.0 * SAVE_SPREAD))


def test_small_save_waits_for_a_large_one_no_longer_than_its_own_time():
    expected = expected_save_s(
        {"small": [MeasuredSave(-math.inf, 1.0)], "large": [MeasuredSave(-math.inf, 20.0)]}, ["small", "large"]
    )

    assert expected == pytest.approx({"small": 2.0 * SAVE_SPREAD, "large": 21.0 * SAVE_SPREAD})


def test_slowest_recent_save_counts():
    assert expected_save_s({"a": [MeasuredSave(9.0, 1.0), MeasuredSave(20.0, 5.0), MeasuredSave(30.0, 1.0)]}, []) == {
        "a": 5.0 * SAVE_SPREAD
    }


def test_job_without_a_save_has_no_expectation():
    assert expected_save_s({"a": []}, ["a"]) == {}


@given(st.dictionaries(st.sampled_from("abcd"), SAVES, min_size=1))
def test_more_savers_never_shorten_the_expectation_and_sharing_never_exceeds_the_measurement(saves):
    alone, together = expected_save_s(saves, []), expected_save_s(saves, saves)

    for name, measured in saves.items():
        assert alone[name] <= together[name]
        assert alone[name] <= SAVE_SPREAD * max(save.save_s for save in measured) + 1e-9


def test_time_waited_for_the_save_before_is_subtracted():
    before, after = MeasuredSave(100.0, 8.0), MeasuredSave(105.0, 7.0)

    assert without_queueing(after, before) == MeasuredSave(105.0, 5.0), (
        "7 s from its decision, 2 of them behind the other"
    )
    assert without_queueing(before, None) == before
    assert without_queueing(MeasuredSave(120.0, 7.0), before) == MeasuredSave(120.0, 7.0)


@given(st.floats(0, 100), st.floats(0, 50), st.floats(0, 100), st.floats(0, 50))
def test_corrected_save_is_between_zero_and_what_was_measured(end, took, end_before, took_before):
    own = without_queueing(MeasuredSave(end, took), MeasuredSave(end_before, took_before))

    assert 0.0 <= own.save_s <= took


# --- where times are the jobs' own words ------------------------------------------------------------------------------

GB = 1e9
VICTIM = [MeasuredSave(100.0, 44.0), MeasuredSave(900.0, 42.0), MeasuredSave(1800.0, 43.0)]
CLAIMS = st.lists(
    st.builds(MeasuredSave, ended_at=st.floats(0, 2000) | st.just(-math.inf), save_s=st.floats(0, 3.2e8)),
    max_size=8,
)


@given(CLAIMS, st.booleans(), st.sampled_from([0.0, 1.0, 4096.0, 10e6]))
def test_what_another_job_claims_moves_the_ask_by_less_than_a_twentieth(
    claims: list[MeasuredSave], ends: bool, size: float
):
    sizes = {"victim": 10 * GB, "liar": size}

    alone = expected_claimed_save_s({"victim": VICTIM}, {"victim": 10 * GB}, ["victim"])["victim"]
    beside = expected_claimed_save_s(
        {"victim": VICTIM, "liar": claims}, sizes, ["victim", "liar"] if ends else ["victim"]
    )["victim"]

    assert alone == pytest.approx(SAVE_SPREAD * 44.0)
    assert beside == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("claim_s", [0.0, 1000.0, 3.2e8, 1e18])
def test_a_job_that_claims_any_time_for_bytes_that_nobody_finds_changes_nothing(claim_s: float):
    liar = [MeasuredSave(float(at), claim_s) for at in (95, 895, 1795, 1801)]

    expected = expected_claimed_save_s(
        {"victim": VICTIM, "liar": liar}, {"victim": 10 * GB, "liar": 0.0}, ["victim", "liar"]
    )

    assert expected["victim"] == pytest.approx(SAVE_SPREAD * 44.0)


def test_jobs_that_write_as_much_at_once_share_the_disk():
    """Each took three times as long as alone, and will again."""
    saves = {name: [MeasuredSave(100.0, 30.0)] for name in "abc"}
    sizes = dict.fromkeys("abc", 10 * GB)

    assert expected_claimed_save_s(saves, sizes, "abc") == pytest.approx(dict.fromkeys("abc", SAVE_SPREAD * 30.0))
    assert expected_claimed_save_s(saves, sizes, "a")["a"] == pytest.approx(SAVE_SPREAD * 10.0)


def test_a_small_checkpoint_beside_a_large_one_delays_it_by_its_share():
    saves = {"small": [MeasuredSave(-math.inf, 1.0)], "large": [MeasuredSave(-math.inf, 20.0)]}

    expected = expected_claimed_save_s(saves, {"small": GB, "large": 20 * GB}, ["small", "large"])

    assert expected == pytest.approx({"small": SAVE_SPREAD * 2.0, "large": SAVE_SPREAD * 21.0})


def test_a_job_whose_bytes_are_not_known_delays_a_save_by_as_long_as_itself():
    saves = {"known": [MeasuredSave(-math.inf, 4.0)], "claims": [MeasuredSave(-math.inf, 0.0)]}

    expected = expected_claimed_save_s(saves, {"known": GB}, ["known", "claims", "never saved"])

    assert expected["known"] == pytest.approx(SAVE_SPREAD * 12.0)


@given(JOBS)
def test_where_all_is_measured_nothing_is_lost_by_not_believing_it(jobs: list[list[MeasuredSave]]):
    """With equal bytes, never below what the believing plan has for the slowest, and never above what was measured."""
    saves = {str(number): own for number, own in enumerate(jobs)}
    expected = expected_claimed_save_s(saves, dict.fromkeys(saves, 100 * GB), [])

    for name, measured in saves.items():
        longest_s = max(save.save_s for save in measured)
        assert SAVE_SPREAD * longest_s / len(jobs) - 1e-9 <= expected[name] <= SAVE_SPREAD * longest_s + 1e-9
