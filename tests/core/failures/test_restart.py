"""What follows from a cause is said once, with the cause."""

import pytest

from supervisor.core.failures.reliability import LOSING
from supervisor.core.failures.restart import Cause, allowed_retries


@pytest.mark.parametrize("cause", Cause)
def test_a_cause_is_its_word_and_is_found_by_it(cause: Cause):
    assert Cause(str(cause)) is cause
    assert cause == cause.value == str(cause)


@pytest.mark.parametrize("cause", Cause)
def test_only_what_is_charged_has_a_limit_of_its_own(cause: Cause):
    limit = cause.traits.retry_limit

    assert limit is None or cause.traits.is_charged
    assert allowed_retries(cause, 10) == (10 if limit is None else limit)
    assert allowed_retries(cause, 1) == 1


def test_what_people_decided_is_no_failure():
    for cause in (Cause.DONE, Cause.STOPPED, Cause.PREEMPTION, Cause.STORAGE, Cause.SETUP, Cause.LOST):
        assert not cause.traits.is_charged


def test_an_end_that_was_meant_is_no_failure_and_leaves_no_suspect():
    meant = [cause.traits for cause in Cause if cause.traits.is_meant]

    assert meant
    assert not any(traits.is_charged or traits.blames_checkpoint or traits.is_sudden for traits in meant)


def test_a_job_saves_more_often_after_deaths_without_warning():
    assert {Cause.CRASH, Cause.HANG, Cause.LOST, Cause.GPU} == LOSING
