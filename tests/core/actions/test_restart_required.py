"""A worker that is over a limit or not healthy: flush, stop, the next attempt, its own cause."""

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.program import events
from supervisor.core.program.effects import (
    RecordEnd,
    RequestFlush,
    Spawn,
    Terminate,
)
from supervisor.core.program.facts import Policy, State
from supervisor.protocol.wire.messages import Then

UNWELL = events.RestartRequired(1, Cause.UNHEALTHY, "status 1")


def started(is_job: bool) -> Job:
    job = Job(Policy(name="p", is_job=is_job))
    job.handle(events.StartRequested(), 0.0)
    job.handle(events.SpawnSucceeded(1), 0.0)
    return job


def running(is_job: bool) -> Job:
    job = started(is_job)
    if is_job:
        job.handle(events.StepsDone(1, 5, 0.5), 2.0)
    else:
        job.expire(2.0)
    assert job.state is State.RUNNING
    return job


def test_a_job_flushes_before_it_starts_again_under_its_cause():
    job = running(is_job=True)

    (asked,) = job.handle(UNWELL, 10.0)
    assert isinstance(asked, RequestFlush) and (asked.then, asked.reason) == (Then.STOP, "unhealthy")
    job.handle(events.CheckpointCommitted(1, 5, (1,)), 11.0)
    record, *follows = job.handle(events.WorkerExited(1, 75, None), 12.0)

    assert record == RecordEnd(1, Cause.UNHEALTHY, "status 1")
    assert isinstance(follows[0], Spawn) and job.state is State.STARTING


def test_a_plain_program_is_told_to_stop_and_starts_again():
    job = running(is_job=False)

    assert job.handle(UNWELL, 10.0) == [Terminate(1)]
    assert job.handle(events.WorkerExited(1, None, 15), 10.5) == [RecordEnd(1, Cause.UNHEALTHY, "status 1"), Spawn(2)]


@pytest.mark.parametrize("startsecs", [0.0, 1.0])
def test_a_plain_program_that_was_up_for_a_day_each_time_spends_no_budget(startsecs: float):
    job = Job(Policy(name="p", is_job=False, startsecs=startsecs, startretries=3))
    job.handle(events.StartRequested(), 0.0)

    for day in range(1, 6):
        job.handle(events.SpawnSucceeded(day), 86400.0 * day)
        job.expire(86400.0 * day + startsecs)
        job.handle(events.RestartRequired(day, Cause.MEMORY_LIMIT, "held 9 bytes"), 86400.0 * day + 86000.0)
        job.handle(events.WorkerExited(day, None, 15), 86400.0 * day + 86001.0)
        assert job.state is State.STARTING


def test_worker_over_its_limit_before_it_runs_backs_off():
    job = started(is_job=False)

    assert job.handle(events.RestartRequired(1, Cause.MEMORY_LIMIT, "held 9 bytes"), 0.1) == [Terminate(1)]
    job.handle(events.WorkerExited(1, None, 15), 0.2)

    assert (job.state, job.facts.reason) == (State.BACKOFF, "held 9 bytes")


def test_while_it_stops_already_it_is_no_news():
    job = running(is_job=True)
    job.handle(events.StopRequested(), 10.0)

    assert job.handle(UNWELL, 11.0) == []
    assert job.facts.current.decided_end is not None and job.facts.current.decided_end[0] is Cause.STOPPED


def test_restart_during_a_flush_requests_one_before_the_stop():
    job = running(is_job=True)
    job.handle(events.FlushRequested("operator"), 10.0)

    (asked,) = job.handle(UNWELL, 11.0)

    assert isinstance(asked, RequestFlush) and asked.then is Then.STOP


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempts_trouble_is_dropped(attempt: int):
    assert running(is_job=True).handle(events.RestartRequired(attempt, Cause.UNHEALTHY, "late"), 10.0) == []
