"""Failures that the same start would repeat: divergence and lack of memory. Time is a number."""

from dataclasses import replace

import pytest

from supervisor.core.job import Job
from supervisor.core.program.effects import (
    QuarantineCheckpoints,
    RecordEnd,
    SelectCheckpoint,
    Spawn,
)
from supervisor.core.program.events import (
    AttemptLost,
    BeginAtRequested,
    CheckpointCommitted,
    CheckpointSelected,
    FailureReported,
    RestoreBegun,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import OnOom, Policy, State
from supervisor.protocol.wire.exits import WorkerExit

JOB = Policy(name="digits", is_job=True, startretries=10)
MICROBATCH = replace(JOB, on_oom=OnOom.MICROBATCH)


def training(job: Job, restored: int, step: int, now: float) -> None:
    """The present attempt has its checkpoint and trains."""
    attempt = job.facts.attempt
    job.handle(SpawnSucceeded(attempt), now)
    job.handle(CheckpointSelected(attempt, f"/c/step-{restored:010d}.a1" if restored else None, restored or None), now)
    job.handle(TrainingRestored(attempt, restored), now)
    job.handle(StepsDone(attempt, step), now)
    assert job.state is State.RUNNING


def running(policy: Policy = JOB) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    training(job, 0, 1, 1.0)
    return job


def diverge(job: Job, step: int, now: float, go_back: bool = True) -> list[object]:
    attempt = job.facts.attempt
    job.handle(FailureReported(attempt, f"loss of step {step} is nan", step, go_back=go_back), now)
    return list(job.handle(WorkerExited(attempt, code=WorkerExit.DIVERGED), now))


def misfit(job: Job, checkpoint: str, now: float) -> list[object]:
    """The present attempt is given that checkpoint, and leaves: it does not fit."""
    attempt = job.facts.attempt
    job.handle(SpawnSucceeded(attempt), now)
    job.handle(CheckpointSelected(attempt, f"/c/{checkpoint}", int(checkpoint[5:15])), now)
    job.handle(FailureReported(attempt, f"cannot restore {checkpoint}"), now)
    effects = list(job.handle(WorkerExited(attempt, code=WorkerExit.CHECKPOINT_UNFIT), now))
    return effects + (list(job.expire(job.deadline() or 0.0)) if job.state is State.BACKOFF else [])


def killed() -> Job:
    """After its first attempt; the second is starting."""
    job = running()
    job.handle(WorkerExited(1, signal=9), 1.0)
    return job


def unfit(effects: list[object]) -> list[str]:
    return next([name for name, _ in effect.unfit] for effect in effects if isinstance(effect, SelectCheckpoint))


def names(*steps: int) -> list[str]:
    return [f"step-{step:010d}.a1" for step in steps]


def test_a_checkpoint_that_does_not_fit_is_passed_over_until_an_older_one_is_restored():
    job = killed()

    first = misfit(job, *names(30), 10.0)
    second = misfit(job, *names(20), 100.0)
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, "/c/step-0000000010.a1", 10), 200.0)
    restored = job.handle(TrainingRestored(attempt, 10), 201.0)

    assert isinstance(first[0], RecordEnd) and first[0].cause == "bad-checkpoint"
    assert unfit(first) == names(30) and unfit(second) == names(20, 30)
    (aside,) = restored
    assert isinstance(aside, QuarantineCheckpoints) and [name for name, _ in aside.unfit] == names(20, 30)
    assert job.handle(TrainingRestored(attempt, 10), 202.0) == [], "once"
    job.handle(StepsDone(attempt, 11), 203.0)
    assert SelectCheckpoint(attempt + 1) in job.handle(WorkerExited(attempt, signal=9), 204.0)


def test_unfit_checkpoints_have_their_own_budget_which_an_operators_start_refills():
    job = killed()
    for number, step in enumerate((50, 40, 30)):
        misfit(job, *names(step), 100.0 * number)
        assert job.state is State.STARTING

    misfit(job, *names(20), 1000.0)

    assert job.state is State.FAILED and "4 failures (bad-checkpoint)" in str(job.facts.reason)
    assert job.facts.failures.by_cause["bad-checkpoint"] == 4
    assert SelectCheckpoint(job.facts.attempt + 1) in job.handle(StartRequested(), 2000.0)


def test_same_checkpoint_again_means_no_older_one_exists():
    job = killed()
    misfit(job, *names(50), 10.0)
    assert job.state is State.STARTING

    misfit(job, *names(50), 20.0)

    assert job.state is State.FAILED and "cannot restore" in str(job.facts.reason)


@pytest.mark.parametrize("checkpoint", [None, *names(30)])
def test_the_status_of_a_checkpoint_that_does_not_fit_is_a_crash_once_it_was_restored(checkpoint: str | None):
    job = killed()
    job.handle(CheckpointSelected(2, f"/c/{checkpoint}" if checkpoint else None, 30 if checkpoint else None), 2.0)
    job.handle(TrainingRestored(2, 30 if checkpoint else 0), 3.0)

    record, *_ = job.handle(WorkerExited(2, code=WorkerExit.CHECKPOINT_UNFIT), 4.0)

    assert isinstance(record, RecordEnd) and record.cause == "crash"
    assert job.facts.suspects.unfit == ()


def test_restore_seen_by_an_earlier_daemon_counts_too():
    job = Job(JOB)
    job.facts.wanted = True
    job.skip_attempts(7)

    job.handle(AttemptLost(7, error="bad row", committed_step=40, code=WorkerExit.CHECKPOINT_UNFIT), 10.0)

    assert job.facts.failures.by_cause == {"crash": 1}


def test_only_what_is_newer_than_the_one_that_was_restored_is_set_aside():
    job = killed()
    misfit(job, *names(20), 10.0)
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, f"/c/{names(30)[0]}", 30), 100.0)

    assert job.handle(TrainingRestored(attempt, 30), 101.0) == []
    assert [name for name, _ in job.facts.suspects.unfit] == names(20)


def test_unfit_foreign_checkpoint_is_a_setup_failure():
    job = killed()
    job.handle(CheckpointSelected(2, "/c/model.ckpt-3", 3), 2.0)
    job.handle(RestoreBegun(2), 2.5)

    job.handle(WorkerExited(2, code=WorkerExit.CHECKPOINT_UNFIT), 3.0)

    assert job.state is State.FAILED


def test_divergence_waits_for_a_person_unless_the_job_is_to_go_back():
    job = running()

    (record,) = diverge(job, 12, 2.0, go_back=False)

    assert isinstance(record, RecordEnd) and record.cause == "divergence"
    assert job.state is State.FAILED
    assert "loss of step 12 is nan" in str(job.facts.reason) and "on_nan" in str(job.facts.reason)


def test_going_back_begins_before_the_two_steps_that_may_have_done_it():
    job = running()

    effects = diverge(job, 12, 2.0)

    assert effects[1:] == [Spawn(2), SelectCheckpoint(2, restore_below_step=11, diverged_attempt=1)]


def test_a_divergence_that_shows_as_an_operator_stops_the_job_is_not_trained_a_second_time():
    job = running()
    job.handle(StopRequested(), 2.0)

    record, *_ = diverge(job, 12, 2.1)

    assert isinstance(record, RecordEnd) and record.cause == "divergence"
    assert (job.state, job.facts.reason) == (State.STOPPED, record.text)
    assert SelectCheckpoint(2, restore_below_step=11, diverged_attempt=1) in job.handle(StartRequested(), 3.0)


def test_a_divergence_does_not_change_where_an_operator_has_the_job_begin():
    job = running()
    job.handle(StopRequested(), 2.0)
    job.handle(BeginAtRequested(20), 2.0)

    diverge(job, 12, 2.1)

    assert job.facts.restore_below_step is None


def test_diverging_again_goes_back_further_than_the_time_before():
    job = running()
    diverge(job, 12, 2.0)
    training(job, 10, 11, 3.0)

    effects = diverge(job, 13, 4.0)

    assert SelectCheckpoint(3, restore_below_step=10, diverged_attempt=2) in effects


def test_another_death_after_it_goes_back_no_further():
    job = running()
    diverge(job, 12, 2.0)
    training(job, 10, 11, 3.0)

    effects = job.handle(WorkerExited(2, signal=9), 4.0)

    assert SelectCheckpoint(3) in effects


def test_rollback_target_survives_a_death_before_selection():
    job = running()
    diverge(job, 12, 2.0)
    job.handle(WorkerExited(2, signal=9), 3.0)

    effects = job.expire(100.0)

    assert effects == [Spawn(3), SelectCheckpoint(3, restore_below_step=11, diverged_attempt=1)]


def test_divergence_has_a_budget_of_its_own_that_a_new_best_checkpoint_refills():
    job = running()
    for number in range(3):
        diverge(job, 12, 2.0 + number)
        training(job, 10, 11, 2.5 + number)
    assert job.handle(WorkerExited(4, signal=9), 6.0)[1:] == [Spawn(5), SelectCheckpoint(5)]
    training(job, 10, 11, 7.0)
    job.handle(CheckpointCommitted(5, 20), 8.0)
    for number in range(3):
        diverge(job, 22, 9.0 + number)
        training(job, 20, 21, 9.5 + number)

    diverge(job, 22, 13.0)

    assert job.state is State.FAILED
    assert "4 failures (divergence)" in str(job.facts.reason)


@pytest.mark.parametrize("said", [True, False])
def test_lack_of_memory_is_told_apart_from_a_crash(said: bool):
    job = running()
    if said:
        job.handle(FailureReported(1, "MemoryError", 5, out_of_memory=True), 2.0)

    ended = WorkerExited(1, code=1) if said else WorkerExited(1, signal=9, oom="its cgroup /a counts one more kill")
    record, *rest = job.handle(ended, 2.0)

    assert isinstance(record, RecordEnd) and record.cause == "out-of-memory"
    assert rest == [Spawn(2), SelectCheckpoint(2)]


def test_microbatch_divides_twice_as_finely_after_each_lack_of_memory_and_after_nothing_else():
    job = running(MICROBATCH)
    splits = []
    for number in range(12):
        (spawn,) = (
            effect
            for effect in job.handle(WorkerExited(number + 1, signal=9, oom="it"), 2.0 + number)
            if isinstance(effect, Spawn)
        )
        splits.append(spawn.microbatches)
        training(job, number, number + 1, 2.2 + number)
        job.handle(CheckpointCommitted(number + 2, number + 1), 2.5 + number)

    effects = job.handle(WorkerExited(13, signal=9), 20.0)

    assert splits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert Spawn(14, microbatches=1024) in effects


def test_lack_of_memory_before_the_first_step_is_no_broken_script():
    job = Job(MICROBATCH)
    job.handle(StartRequested(), 0.0)
    job.handle(FailureReported(1, "ResourceExhaustedError", None, out_of_memory=True), 1.0)

    job.handle(WorkerExited(1, code=1), 1.0)

    assert job.state is State.BACKOFF
    assert Spawn(2, microbatches=2) in job.expire(100.0)


def test_step_that_an_operator_chose_is_not_given_up_because_training_diverged_before():
    job = running(replace(JOB, startretries=0))
    diverge(job, 12, 2.0)
    assert job.state is State.FAILED
    job.handle(BeginAtRequested(11), 3.0)

    assert SelectCheckpoint(2, begin_at=11, begin_since=2) in job.handle(StartRequested(), 4.0)
