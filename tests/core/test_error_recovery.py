"""An error of our own in the table: nothing has changed, and what follows is defined."""

import dataclasses
from typing import Any, cast

import pytest

from supervisor.core.error_recovery import AGAIN_S
from supervisor.core.failures.restart import BACKOFF_LIMIT_S
from supervisor.core.job import Job
from supervisor.core.program import events as fact
from supervisor.core.program.effects import RecordEnd, RecordWanted, Terminate
from supervisor.core.program.facts import Policy, State

NONSENSE: Any = []  # what no cell can understand
ERROR = "internal error"


def running() -> Job:
    job = Job(Policy("digits", is_job=True, stopwaitsecs=7.0))
    job.handle(fact.StartRequested(), 0.0)
    job.handle(fact.StepsDone(1, 5), 1.0)
    return job


def test_an_event_that_fails_changes_nothing():
    job = running()
    before = job.facts.snapshot()

    with pytest.raises(TypeError):
        job.handle(fact.StepsDone(1, 6, step_s=NONSENSE), 2.0)  # the step is noted before its length is looked at

    assert job.facts == before


def test_a_copy_of_the_facts_shares_nothing_that_changes():
    job = running()
    before = job.facts.snapshot()

    job.handle(fact.WorkerExited(1, signal=9), 2.0)

    assert before.failures.by_cause == {}
    assert job.facts.failures.by_cause != {}


def test_a_copy_of_the_facts_has_a_copy_of_every_part_that_can_change():
    facts = running().facts
    before = facts.snapshot()

    for field in dataclasses.fields(facts):
        mine, copied = getattr(facts, field.name), getattr(before, field.name)
        if type(mine).__hash__ is None:
            assert mine is not copied, field.name


def test_a_worker_that_ended_is_started_again_after_a_minute():
    job = running()

    effects = job.recover(fact.WorkerExited(1, code=NONSENSE), ERROR, 2.0)

    assert effects == [RecordEnd(1, "lost", ERROR)]
    assert (job.state, job.deadline()) == (State.BACKOFF, 2.0 + BACKOFF_LIMIT_S)
    assert job.facts.reason == ERROR
    job.expire(2.0 + BACKOFF_LIMIT_S)
    assert cast("State", job.state) is State.STARTING


def test_a_worker_that_was_to_end_stays_ended():
    job = running()
    job.handle(fact.StopRequested(), 2.0)

    job.recover(fact.WorkerExited(1, code=NONSENSE), ERROR, 3.0)

    assert (job.state, job.deadline()) == (State.STOPPED, None)


def test_stop_request_sends_the_signal():
    job = running()

    effects = job.recover(fact.StopRequested(), ERROR, 2.0)

    assert effects == [RecordWanted(False), Terminate(1)]
    assert (job.state, job.deadline()) == (State.STOPPING, 9.0)


def test_a_daemon_that_leaves_keeps_what_is_wanted():
    job = running()

    assert job.recover(fact.ProgramClosed("shutdown"), ERROR, 2.0) == [Terminate(1)]
    assert job.facts.wanted


def test_a_deadline_is_tried_again_later_and_not_at_once():
    job = running()

    assert job.recover(fact.DeadlinePassed(), ERROR, 2.0) == []
    assert (job.state, job.deadline()) == (State.RUNNING, 2.0 + AGAIN_S)


def test_anything_else_is_as_if_it_had_not_been():
    job = running()
    before = job.facts.snapshot()

    assert job.recover(fact.StepsDone(1, 6), ERROR, 2.0) == []
    assert job.facts == before
