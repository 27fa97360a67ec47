"""What is assumed about the time between two failures."""

import pytest

from supervisor.core.failures.reliability import PRIOR_S, Reliability
from supervisor.core.failures.restart import Cause


def test_nothing_known_is_one_failure_in_an_hour() -> None:
    assert Reliability().between_failures_s == PRIOR_S


def test_much_seen_outweighs_what_was_assumed() -> None:
    seen = Reliability()
    for _ in range(100):
        seen = seen.with_attempt(300.0, Cause.CRASH)

    assert seen.between_failures_s == pytest.approx(300.0, rel=0.12)


def test_single_early_crash_does_not_make_failures_frequent() -> None:
    assert Reliability().with_attempt(5.0, Cause.CRASH).between_failures_s > PRIOR_S / 5


def test_failures_every_minute_are_known_after_a_few_of_them() -> None:
    seen = Reliability()
    for _ in range(5):
        seen = seen.with_attempt(60.0, Cause.CRASH)

    assert 60.0 < seen.between_failures_s < 4 * 60.0


@pytest.mark.parametrize("cause", [Cause.CRASH, Cause.HANG, Cause.LOST])
def test_end_without_warning_is_a_failure(cause: str) -> None:
    assert Reliability().with_attempt(60.0, cause).failures == 1


@pytest.mark.parametrize("cause", [Cause.STOPPED, Cause.DONE, Cause.SETUP])
def test_end_that_loses_nothing_is_time_without_a_failure(cause: str) -> None:
    assert Reliability().with_attempt(60.0, cause) == Reliability(ran_s=60.0, failures=0)


def test_clock_set_back_counts_as_no_time() -> None:
    assert Reliability().with_attempt(-60.0, Cause.CRASH).ran_s == 0.0
