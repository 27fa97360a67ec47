"""When a periodic save is due."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisor.protocol.wire.launch import Interval
from worker.saving.cadence import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    AutoInterval,
    Cadence,
    StepPace,
    best_interval_s,
)


def every(steps: int | None = None, seconds: float | None = None, saved_step: int = 0) -> Cadence:
    return Cadence(Interval(steps=steps, seconds=seconds), saved_step, saved_at=100.0)


@pytest.mark.parametrize(("saved_step", "step", "due"), [(0, 9, False), (0, 10, True), (7, 10, True), (10, 19, False)])
def test_steps_are_due_at_multiples_whenever_the_last_save_was(saved_step: int, step: int, due: bool) -> None:
    assert every(steps=10, saved_step=saved_step).is_due(step, now=100.0) is due


def test_seconds_count_from_the_last_save() -> None:
    cadence = every(seconds=60.0)
    cadence.restart_interval(step=5, now=130.0)

    assert not cadence.is_due(6, now=189.0)
    assert cadence.is_due(6, now=190.0)


def test_failed_save_is_tried_again_after_a_pause_that_grows() -> None:
    cadence = every(steps=1)
    cadence.record_failure(now=100.0)
    first = cadence.is_due(2, now=100.0 + FIRST_PAUSE_S - 1), cadence.is_due(2, now=100.0 + FIRST_PAUSE_S)
    cadence.record_failure(now=200.0)
    second = cadence.is_due(3, now=200.0 + FIRST_PAUSE_S), cadence.is_due(3, now=200.0 + 2 * FIRST_PAUSE_S)

    assert (first, second) == ((False, True), (False, True))


def test_pause_after_many_failures_has_an_end() -> None:
    cadence = every(steps=1)
    for _ in range(5000):
        cadence.record_failure(now=0.0)

    assert cadence.is_due(2, now=MAX_PAUSE_S)


# --- the automatic interval ----------------------------------------------------------------------------------------


def overhead(interval_s: float, cost_s: float, between_failures_s: float) -> float:
    """Share of time lost: Daly's exact model without restarts, per second of work done."""
    return between_failures_s * math.expm1((interval_s + cost_s) / between_failures_s) / interval_s - 1


@given(
    cost_s=st.floats(0.001, 100.0),
    between_failures_s=st.floats(60.0, 1e7),
    other=st.floats(0.1, 10.0),
)
def test_no_other_interval_loses_noticeably_less(cost_s: float, between_failures_s: float, other: float) -> None:
    assume(cost_s < between_failures_s / 4)
    best = best_interval_s(cost_s, between_failures_s)

    assert overhead(best, cost_s, between_failures_s) <= overhead(best * other, cost_s, between_failures_s) * 1.05


def test_interval_is_youngs_square_root_where_saves_are_cheap() -> None:
    assert best_interval_s(cost_s=0.02, between_failures_s=36_000) == pytest.approx(
        (2 * 0.02 * 36_000) ** 0.5, rel=0.01
    )


def test_saves_dearer_than_failures_are_frequent_are_taken_once_a_failure() -> None:
    assert best_interval_s(cost_s=500.0, between_failures_s=100.0) == 100.0


@pytest.mark.parametrize("wrong", [(-1.0, 100.0), (1.0, 0.0)])
def test_impossible_durations_have_no_interval(wrong: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no interval"):
        best_interval_s(*wrong)


def test_first_automatic_save_comes_at_the_lowest_bound_to_be_measured() -> None:
    cadence = Cadence(None, 0, 100.0, AutoInterval(lowest_s=5.0))

    assert not cadence.is_due(1000, now=104.0)
    assert cadence.is_due(1, now=105.0)


@pytest.mark.parametrize(
    ("cost_s", "save_s", "interval_s"),
    [
        (0.0, 0.0, 10.0),  # free saves: the lower bound
        (1.0, 1.0, pytest.approx(99.3, abs=0.2)),
        (0.0, 30.0, 60.0),  # the disk is given as much rest as work
        (1000.0, 1.0, 400.0),  # the upper bound
    ],
)
def test_automatic_interval_follows_cost_within_bounds(cost_s: float, save_s: float, interval_s: float) -> None:
    auto = AutoInterval(between_failures_s=5000.0, lowest_s=10.0, highest_s=400.0)
    for _ in range(2):
        auto.record_save(cost_s, save_s)

    assert auto.interval_s == interval_s


def test_first_save_of_a_process_does_not_decide_the_interval() -> None:
    first, later = AutoInterval(lowest_s=1.0), AutoInterval(lowest_s=1.0)
    first.record_save(0.05, 0.1)
    assert first.interval_s == 1.0
    for each in (first, later, later):
        each.record_save(0.02, 0.04)

    assert first.interval_s == later.interval_s


def test_second_save_waits_if_the_first_one_stalled_training_for_long() -> None:
    auto = AutoInterval(lowest_s=30.0)
    auto.record_save(20.0, 25.0)

    assert auto.interval_s == 200.0


def test_single_slow_save_does_not_decide_the_interval() -> None:
    auto = AutoInterval(lowest_s=1.0)
    for _ in range(2):
        auto.record_save(1.0, 1.0)
    usual = auto.interval_s
    auto.record_save(9.0, 1.0)

    assert usual < auto.interval_s < usual * 2.2


def test_given_interval_is_not_chosen() -> None:
    cadence = every(seconds=60.0)
    cadence.auto.record_save(100.0, 100.0)

    assert (cadence.interval.seconds, cadence.chosen_interval_s) == (60.0, None)


def pace(quiet: list[float], beside: list[float]) -> StepPace:
    """Steps of these lengths, the latter with a save beside them."""
    found, at = StepPace(), 0.0
    found.record_step(at, beside=False)
    for length in quiet:
        at += length
        found.record_step(at, beside=False)
    for length in beside:
        at += length
        found.record_step(at, beside=True)
    return found


def test_slower_steps_beside_a_save_are_part_of_its_cost() -> None:
    assert pace([1.0] * 10, [1.5] * 4).pop_slowdown_s() == pytest.approx(2.0)


def test_a_step_that_holds_something_else_is_no_cost_of_a_save() -> None:
    assert pace([30.0, *[1.0] * 10], [1.0, 20.0, 1.0]).pop_slowdown_s() == 0.0


def test_too_few_steps_tell_no_cost() -> None:
    assert pace([1.0, 1.0], [5.0]).pop_slowdown_s() == 0.0


def test_cost_of_one_save_is_not_counted_for_the_next() -> None:
    steps = pace([1.0] * 10, [1.5] * 4)
    steps.pop_slowdown_s()

    assert steps.pop_slowdown_s() == 0.0
