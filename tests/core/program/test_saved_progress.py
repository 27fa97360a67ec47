"""What is said of a job whose training ends: which step is saved, and how many are not."""

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.program import account
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import (
    AttemptFound,
    BeginAtRequested,
    CheckpointCommitted,
    CheckpointSaveFailed,
    CheckpointSelected,
    CheckpointsSetAside,
    Event,
    ProgramClosed,
    RestartRequired,
    ShutdownHurried,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.protocol.wire.exits import WorkerExit

JOB = Policy("digits", is_job=True, flush_timeout=20, stopwaitsecs=10, checkpoint_dir="/data")
FULL = "No space left on device"


def training(*, saved: int | None = 300, step: int = 478, policy: Policy = JOB) -> Job:
    """A job that has done `step` steps, of which the first `saved` are in a checkpoint."""
    job = Job(policy)
    for event in (
        StartRequested(),
        SpawnSucceeded(1),
        CheckpointSelected(1, None, None),
        TrainingRestored(1, 0),
        StepsDone(1, saved or 1),
    ):
        job.handle(event, 0.0)
    if saved is not None:
        job.handle(CheckpointCommitted(1, saved), 5.0)
    job.handle(StepsDone(1, step), 10.0)
    return job


def ended(job: Job, *events: Event, code: int | None = None, signal: int | None = None) -> tuple[SavedProgress, str]:
    """What is known of the attempt once these have happened and its worker has left; and the text of its record."""
    for now, event in enumerate(events, start=20):
        job.handle(event, float(now))
    record = job.handle(WorkerExited(1, code, signal), 60.0)[0]
    assert isinstance(record, RecordEnd)
    assert job.facts.ended is not None
    return job.facts.ended, record.text


def test_a_stop_that_saved_names_the_checkpoint() -> None:
    progress, text = ended(training(), StopRequested(), CheckpointCommitted(1, 478, flushes=(1,)), code=75)

    assert progress.is_safe
    assert progress.describe_end() == "stopped at step 478, saved in step-0000000478.a1"
    assert text == "stopped (stop)"


@pytest.mark.parametrize(("begin_at", "safe"), [(0, (0, None)), (200, (200, None)), (300, (300, "step-0000000300.a1"))])
def test_a_checkpoint_that_was_set_aside_is_not_named(begin_at: int, safe: tuple[int, str | None]) -> None:
    job = training(step=300)
    for event in (StopRequested(), WorkerExited(1, WorkerExit.STOPPED), BeginAtRequested(begin_at), StartRequested()):
        job.handle(event, 20.0)
    job.handle(CheckpointsSetAside(2, begin_at), 21.0)
    job.handle(StopRequested(), 22.0)

    progress = account.saved_progress(job.facts)
    assert progress is not None
    assert (progress.safe_step, progress.checkpoint) == safe
    assert progress.is_safe and progress.describe_end() == (
        "stopped" if safe[1] is None else f"stopped; its newest checkpoint is of step {begin_at}"
    )


def test_a_stop_whose_save_failed_names_the_cause_and_the_steps() -> None:
    progress, text = ended(
        training(), StopRequested(), CheckpointSaveFailed(1, FULL, (1,), 480), code=WorkerExit.SAVE_FAILED
    )

    lost = "180 steps will be trained again"
    assert progress.describe_end() == (
        f"stopped at step 480; the newest checkpoint is of step 300, as the save failed: {FULL}; {lost}"
    )
    assert text.endswith(f"; the newest checkpoint is of step 300; {lost}")
    assert progress.unsaved == 180, "the worker was two steps further than it had reported"


def test_a_flush_that_took_too_long_is_the_cause() -> None:
    job = training()
    job.handle(StopRequested(), 20.0)
    job.expire(40.0)
    job.expire(50.0)

    progress, text = ended(job, signal=9)

    assert progress.why == "no checkpoint came within 20 s (flush_timeout)"
    assert "178 steps will be trained again" in text
    assert job.facts.reason == text, "status goes on saying it"


def test_a_commit_that_came_after_the_flush_deadline_is_safe() -> None:
    job = training()
    job.handle(StopRequested(), 20.0)
    job.expire(40.0)

    progress, _ = ended(job, CheckpointCommitted(1, 478, flushes=(1,)), signal=15)

    assert progress.is_safe
    assert progress.why is not None and "flush_timeout" not in progress.why


def test_a_hurried_stop_and_a_worker_that_dies_in_its_flush_say_so() -> None:
    hurried, _ = ended(training(), ProgramClosed("shutdown"), ShutdownHurried(), signal=15)
    died, _ = ended(training(), StopRequested(), signal=9)

    assert hurried.why == "the stop was hurried"
    assert died.why == "the worker ended first (terminated by SIGKILL)"
    assert died.unsaved == 178


def test_a_restart_that_was_required_says_it_in_its_record() -> None:
    required = RestartRequired(1, Cause.MEMORY_LIMIT, "over memory_max")
    _, text = ended(training(), required, CheckpointSaveFailed(1, FULL, (1,), 478), code=WorkerExit.SAVE_FAILED)

    assert text.endswith("; the newest checkpoint is of step 300; 178 steps will be trained again")


def test_a_crash_is_not_blamed_on_a_flush_but_its_steps_are_known() -> None:
    progress, text = ended(training(), signal=9)

    assert progress.unsaved == 178
    assert "trained again" not in text, "history counts them where the next attempt has begun"


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (SavedProgress(1, None, 0), "stopped"),
        (SavedProgress(1, None, 300, "step-0000000300.a1"), "stopped; its newest checkpoint is of step 300"),
        (SavedProgress(1, 12, 12, None), "stopped at step 12"),
        (SavedProgress(1, 1, 0, None), "stopped at step 1; there is no checkpoint; 1 step will be trained again"),
        (
            SavedProgress(1, 1200, 1000, None, "the save failed: no"),
            "stopped at step 1200; it began at step 1000 and has saved none, as the save failed: no; "
            "200 steps will be trained again",
        ),
        (
            SavedProgress(1, None, 300, "step-0000000300.a1", "it said nothing", is_known=False),
            "stopped; the newest checkpoint is of step 300, as it said nothing; "
            "what it did since then will be trained again",
        ),
    ],
)
def test_every_case_has_its_words(progress: SavedProgress, text: str) -> None:
    assert progress.describe_end() == text


def test_what_is_said_while_it_trains() -> None:
    job = training()
    job.handle(CheckpointSaveFailed(1, FULL, (), 478), 11.0)

    progress = account.saved_progress(job.facts)

    assert progress is not None
    assert progress.describe_present() == (
        f"it is at step 478; the newest checkpoint is of step 300, 178 steps behind; the save failed: {FULL}"
    )


def test_a_plain_program_has_no_progress() -> None:
    assert account.saved_progress(Job(Policy("web", is_job=False)).facts) is None


def test_an_adopted_worker_that_never_answers_may_have_lost_anything() -> None:
    job = Job(JOB)
    job.facts.wanted = True
    job.skip_attempts(1)
    job.facts.account = training().facts.account
    job.handle(AttemptFound(1, age_s=1000.0), 0.0)
    job.handle(StopRequested(), 1.0)
    job.expire(21.0)

    progress, text = ended(job, signal=9)

    assert not progress.is_safe
    assert "what it did since then will be trained again" in text


def test_what_the_last_attempt_lost_is_known_to_the_next_daemon() -> None:
    job = training()
    ended(job, StopRequested(), CheckpointSaveFailed(1, FULL, (1,), 478), code=WorkerExit.SAVE_FAILED)
    assert job.state is State.STOPPED
    later = Job(JOB)
    later.skip_attempts(1)
    later.facts.account = job.facts.account

    later.recall_persisted(facts_to_persist(job.facts, 70.0), 0.0, 10.0)

    progress = account.saved_progress(later.facts)
    assert progress is not None
    assert (progress.step, progress.safe_step) == (478, 300)


def test_restore_that_ends_after_a_stop_was_requested_still_lowers_the_account() -> None:
    job = training()
    job.handle(ProgramClosed("shutdown"), 20.0)
    job.handle(WorkerExited(1, 75), 21.0)
    job.facts.closing = False
    job.handle(BeginAtRequested(100), 22.0)
    job.handle(StartRequested(), 23.0)
    job.handle(SpawnSucceeded(2), 23.0)
    job.handle(CheckpointSelected(2, "/data/step-0000000100.a1", 100), 24.0)
    job.handle(StopRequested(), 25.0)

    job.handle(TrainingRestored(2, 100), 26.0)
    job.handle(CheckpointCommitted(2, 101), 27.0)
    job.handle(WorkerExited(2, 75), 28.0)

    assert job.facts.account.newest is not None
    assert job.facts.account.newest.name == "step-0000000101.a2"
    assert job.facts.ended is not None
    assert job.facts.ended.describe_end() == "stopped at step 101, saved in step-0000000101.a2"
