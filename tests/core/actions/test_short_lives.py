"""A plain program that crashes again and again after its start-up is started less and less often."""

import pytest

from supervisor.core.failures.restart import (
    AT_ONCE,
    BACKOFF_LIMIT_S,
    CALM_S,
    Cause,
)
from supervisor.core.job import Job
from supervisor.core.program.effects import Spawn
from supervisor.core.program.events import (
    RestartRequired,
    SpawnSucceeded,
    StartRequested,
    WorkerExited,
)
from supervisor.core.program.facts import AutoRestart, Policy, State

PLAIN = Policy(name="web", is_job=False, startsecs=1, startretries=3)


def started(policy: Policy = PLAIN) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    return job


def live(job: Job, now: float, lives_s: float, code: int = 1) -> float:
    """The attempt that begins at `now` comes up and dies; when the next one begins."""
    job.expire(now + 1.0)
    assert job.state is State.RUNNING
    died_at = now + lives_s
    effects = job.handle(WorkerExited(job.facts.attempt, code=code), died_at)
    if job.state is State.BACKOFF:
        again_at = job.deadline()
        assert again_at is not None
        effects = job.expire(again_at)
    else:
        again_at = died_at
    assert Spawn(job.facts.attempt) in effects
    return again_at


def pauses(job: Job, lives_s: float, count: int, code: int = 1) -> list[float]:
    now, pauses_s = 0.0, []
    for _ in range(count):
        again_at = live(job, now, lives_s, code)
        pauses_s.append(again_at - now - lives_s)
        now = again_at
    return pauses_s


def test_the_first_crashes_are_followed_at_once_the_next_later_and_later_up_to_a_minute():
    pauses_s = pauses(started(), 5.0, 14)

    assert pauses_s[:AT_ONCE] == [0.0] * AT_ONCE
    grown = pauses_s[AT_ONCE:]
    for number, pause in enumerate(grown):
        assert pause == pytest.approx(min(BACKOFF_LIMIT_S, 2.0**number), rel=0.13)


def test_a_program_that_ran_for_long_is_started_at_once_and_begins_anew():
    job = started()
    now = 0.0
    for _ in range(AT_ONCE + 3):
        now = live(job, now, 5.0)

    again_at = live(job, now, CALM_S + 1)

    assert again_at == now + CALM_S + 1
    assert live(job, again_at, 5.0) == again_at + 5.0


def test_a_program_that_ends_as_it_should_and_is_wanted_again_is_not_slowed():
    job = started(Policy(name="web", is_job=False, startsecs=1, autorestart=AutoRestart.ALWAYS))

    assert pauses(job, 2.0, 12, code=0) == [0.0] * 12


def test_an_operators_start_forgets_the_crashes():
    job = started()
    now = 0.0
    for _ in range(AT_ONCE):
        now = live(job, now, 5.0)
    job.expire(now + 1.0)
    job.handle(WorkerExited(job.facts.attempt, code=1), now + 5.0)
    assert job.state is State.BACKOFF
    assert "4 times in a row" in (job.facts.reason or "")

    job.handle(StartRequested(), now + 5.1)

    assert live(job, now + 5.1, 5.0) == now + 10.1


def test_short_lived_job_is_never_given_up():
    job = started()

    assert len(pauses(job, 5.0, 200)) == 200


def test_unhealthy_program_backs_off_too():
    job = started()
    now = 0.0
    for _ in range(AT_ONCE + 1):
        job.expire(now + 1.0)
        job.handle(RestartRequired(job.facts.attempt, Cause.UNHEALTHY, "not well"), now + 5.0)
        job.handle(WorkerExited(job.facts.attempt, signal=15), now + 6.0)
        state = job.state
        now = job.deadline() if state is State.BACKOFF else now + 6.0
        job.expire(now)

    assert state is State.BACKOFF
