"""Metrics over steps: bounded, even, with the first and last step, spikes, and steps that were done again."""

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.series import LOSS, MAX_BUCKETS, MAX_METRICS, MAX_NAME, SPEED, MetricSeries, Series

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)
ATTEMPTS = st.lists(st.tuples(st.integers(0, 3000), st.lists(VALUES, max_size=700)), max_size=5)


@given(ATTEMPTS)
def test_series_is_bounded_and_keeps_what_matters(attempts: list[tuple[int, list[float]]]):
    series, reported = Series(), []
    for attempt, (first, values) in enumerate(attempts, 1):
        for step, value in enumerate(values, first):
            series.add(step, float(len(reported)), attempt, value)
            if math.isfinite(value):
                reported.append((attempt, step, value))
    buckets = series.buckets

    assert len(buckets) <= MAX_BUCKETS
    assert bool(buckets) == bool(reported)
    if reported:
        assert (buckets[-1].attempt, buckets[-1].step) == reported[-1][:2]
        assert [bucket.wall_at for bucket in buckets] == sorted(bucket.wall_at for bucket in buckets)
        assert all(bucket.first_step <= bucket.step and bucket.least <= bucket.greatest for bucket in buckets)
    if len(reported) <= MAX_BUCKETS:
        assert [(bucket.attempt, bucket.step, bucket.mean) for bucket in buckets] == reported


@given(st.integers(MAX_BUCKETS, 20_000))
def test_long_training_is_shown_evenly_from_its_first_step_to_its_last(steps: int):
    series = Series()
    for step in range(steps):
        series.add(step, float(step), 1, 100.0 if step == steps // 3 else 1.0)
    buckets = series.buckets

    assert MAX_BUCKETS // 4 <= len(buckets) <= MAX_BUCKETS
    assert (buckets[0].first_step, buckets[-1].step, sum(bucket.count for bucket in buckets)) == (0, steps - 1, steps)
    assert max(bucket.greatest for bucket in buckets) == 100.0, "a spike stays visible"
    assert max(bucket.count for bucket in buckets) <= series.per_bucket


def test_thousands_of_attempts_of_one_step_stay_within_the_bound():
    series = Series()
    for attempt in range(1, 5000):
        series.add(7, float(attempt), attempt, 1.0)

    assert len(series.buckets) <= MAX_BUCKETS
    assert series.buckets[-1].attempt == 4999


def test_many_short_attempts_leave_later_ones_their_steps():
    series = Series()
    for attempt in range(1, 2001):
        series.add(attempt, 0.0, attempt, 1.0)
    for step in range(1000):
        series.add(step, 0.0, 2001, 1.0)
    last = [bucket for bucket in series.buckets if bucket.attempt == 2001]

    assert len(last) >= MAX_BUCKETS // 8
    assert sum(bucket.count for bucket in last) == 1000


@given(st.randoms(use_true_random=False))
def test_steps_that_go_back_within_an_attempt_leave_true_bounds(chance: Random):
    steps = [chance.randint(0, 1000) for _ in range(2 * MAX_BUCKETS)]
    series = Series()
    for step in steps:
        series.add(step, 0.0, 1, 1.0)
    buckets = series.buckets

    assert min(bucket.first_step for bucket in buckets) == min(steps)
    assert max(bucket.step for bucket in buckets) == max(steps)
    assert all(bucket.first_step <= bucket.step for bucket in buckets)


def test_steps_that_are_done_again_stay_under_the_number_of_their_attempt():
    series = Series()
    for attempt, steps in ((1, range(10)), (2, range(6, 12))):
        for step in steps:
            series.add(step, 0.0, attempt, step / attempt)

    assert [(bucket.attempt, bucket.step) for bucket in series.buckets if bucket.step == 8] == [(1, 8), (2, 8)]


def test_worker_that_reports_names_without_end_costs_a_bounded_amount():
    series = MetricSeries()
    for number in range(10_000):
        series.add(number, 0.0, 1, {f"metric {number}": 1.0, "x" * (MAX_NAME + 1): 1.0, SPEED: 3.0}, step_s=0.5)

    assert len(series.by_name) == MAX_METRICS
    assert [bucket.mean for bucket in series.by_name[SPEED].buckets][-1] == 2.0, "the speed is measured, not reported"


def test_loss_comes_first_and_the_speed_last():
    series = MetricSeries()
    series.add(1, 0.0, 1, {"accuracy": 1.0, LOSS: 1.0, "z": 1.0}, step_s=0.5)

    assert list(series.by_name) == [LOSS, "accuracy", "z", SPEED]
