"""A plain program that says itself when it is ready."""

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.program.effects import RecordEnd, Spawn, Terminate
from supervisor.core.program.events import (
    AttemptFound,
    ReadyReported,
    SpawnSucceeded,
    StartRequested,
    StopRequested,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State

NOTIFIES = Policy(name="web", is_job=False, startsecs=0, startretries=1, stopwaitsecs=10, notify_timeout=90)
PLAIN = Policy(name="web", is_job=False, startsecs=5)


def starting(policy: Policy = NOTIFIES) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    return job


def test_its_word_makes_it_running_and_nothing_else():
    job = starting()
    assert (job.state, job.deadline()) == (State.STARTING, 90.0)

    job.handle(ReadyReported(1), 30.0)

    assert (job.state, job.deadline()) == (State.RUNNING, None)


def test_the_word_of_one_that_has_startsecs_counts_nothing():
    job = starting(PLAIN)

    job.handle(ReadyReported(1), 1.0)

    assert job.state is State.STARTING


def test_early_end_without_a_failure_has_a_hint():
    """A program that goes into the background seems to end at once, in Supervisor's words `Exited too quickly`."""
    job, failing = starting(PLAIN), starting(PLAIN)

    job.handle(WorkerExited(1, code=0), 1.0)
    failing.handle(WorkerExited(1, code=3), 1.0)

    assert (job.facts.reason or "").startswith("exited too quickly: exit status 0; if it has gone into the background")
    assert failing.facts.reason == "exited too quickly: exit status 3"


def test_without_its_word_it_is_stopped_and_tried_again_until_it_is_given_up():
    job = starting()

    assert job.expire(90.0) == [Terminate(1)]
    effects = job.handle(WorkerExited(1, signal=15), 91.0)

    assert isinstance(effects[0], RecordEnd) and effects[0].cause == Cause.STARTUP_TIMEOUT
    assert job.state is State.BACKOFF
    again_at = job.deadline()
    assert again_at is not None
    assert job.expire(again_at) == [Spawn(2)]
    job.handle(SpawnSucceeded(2), again_at)
    job.expire(again_at + 90.0)
    job.handle(WorkerExited(2, signal=15), again_at + 91.0)
    assert job.state is State.FAILED
    assert "did not send READY=1 within 90 s (notify_timeout)" in (job.facts.reason or "")


def test_an_end_before_its_word_is_a_failed_start_whatever_the_code():
    job = starting()

    job.handle(WorkerExited(1, code=0), 50.0)

    assert job.state is State.BACKOFF
    assert "before it sent READY=1" in (job.facts.reason or "")


def test_a_stop_while_it_is_not_ready_stops_it():
    job = starting()

    assert Terminate(1) in job.handle(StopRequested(), 3.0)


def test_the_next_daemon_knows_that_it_was_ready():
    job = Job(NOTIFIES)
    job.skip_attempts(7)
    job.facts.wanted = True

    job.handle(AttemptFound(7, age_s=1.0, ready=True), 1000.0)

    assert job.state is State.RUNNING


def test_adopted_program_whose_ready_may_be_lost_counts_as_running_after_notify_timeout():
    job = Job(NOTIFIES)
    job.skip_attempts(7)
    job.facts.wanted = True
    job.handle(AttemptFound(7, age_s=500.0), 1000.0)
    assert (job.state, job.deadline()) == (State.STARTING, 1090.0)

    assert job.expire(1090.0) == []

    assert job.state is State.RUNNING


def test_startsecs_count_from_the_process_and_not_from_the_wish_for_it():
    """To start a process takes a second where many are, and what waits for it is to find one that has held so long."""
    job = Job(PLAIN)
    job.handle(StartRequested(), 0.0)

    job.handle(SpawnSucceeded(1), 2.0)

    assert job.deadline() == 2.0 + PLAIN.startsecs
    job.expire(7.0)
    assert job.state is State.RUNNING
