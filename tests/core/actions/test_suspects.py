"""Crash loops: checkpoints that are passed over, and steps that are blamed. No process: events go in."""

from supervisor.core.job import Job
from supervisor.core.program.effects import Effect, RecordEnd, SelectCheckpoint
from supervisor.core.program.events import (
    AttemptLost,
    CheckpointCommitted,
    CheckpointSelected,
    DoneReported,
    FailureReported,
    RestoreBegun,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State

JOB = Policy(name="digits", is_job=True, startretries=100)
NEW, OLD = "step-0000000200.a1", "step-0000000100.a1"


def started() -> Job:
    job = Job(JOB)
    job.handle(StartRequested(), 0.0)
    return job


def dies(job: Job, checkpoint: str, step: int, place: str | None = None, code: int = 1) -> list[Effect]:
    """One attempt: it restores, does steps up to `step`, and dies. What follows, the next launch included."""
    attempt, now = job.facts.attempt, 1000.0 * job.facts.attempt
    origin = int(checkpoint[5:15])
    job.handle(SpawnSucceeded(attempt), now)
    job.handle(CheckpointSelected(attempt, f"/c/{checkpoint}", origin, place), now)
    job.handle(TrainingRestored(attempt, origin), now)
    if step > origin:
        job.handle(StepsDone(attempt, step), now)
    effects = job.handle(WorkerExited(attempt, code), now)
    if job.state is State.BACKOFF:
        effects += job.expire(job.deadline() or 0.0)
    return effects


def avoided(effects: list[Effect]) -> set[str]:
    return next(set(effect.avoid) for effect in effects if isinstance(effect, SelectCheckpoint))


def text(effects: list[Effect]) -> str:
    return next(effect.text for effect in effects if isinstance(effect, RecordEnd))


def test_a_checkpoint_that_kills_three_times_right_after_its_restore_is_passed_over():
    job = started()

    assert avoided(dies(job, NEW, 200)) == set()
    assert avoided(dies(job, NEW, 201)) == set()
    third = dies(job, NEW, 203)

    assert avoided(third) == {NEW}
    assert text(third).endswith(
        f"{NEW} is suspect: 3 deaths right after restoring it; the next attempt uses an older one"
    )


def test_deaths_far_from_the_restore_say_nothing_of_the_checkpoint():
    job = started()

    for step in (250, 260, 270, 280):
        assert avoided(dies(job, NEW, step)) == set()


def test_the_suspect_is_tried_again_if_the_older_one_dies_too():
    job = started()
    for step in (200, 201, 203):
        dies(job, NEW, step)

    assert avoided(dies(job, OLD, 130)) == {NEW}
    second = dies(job, OLD, 140)

    assert avoided(second) == set()
    assert text(second).endswith(f"attempts from older checkpoints die too; {NEW} is tried again")
    assert [avoided(dies(job, NEW, step)) for step in (204, 205, 206, 207)] == [set()] * 4, "once is enough"


def test_repeated_failure_at_one_step_blames_its_batch():
    job = started()
    for _ in range(3):
        dies(job, NEW, 206, "epoch 2, batch 50")

    fourth = dies(job, OLD, 206, "epoch 1, batch 30")

    assert text(fourth) == (
        f"exit status 1; step 207 kills it: 4 deaths there, from {OLD}, {NEW}, the 7th after {NEW} (epoch 2, batch 50)"
    )
    assert avoided(fourth) == set(), "the checkpoint is not to blame"


def test_last_words_know_the_step_better_than_progress():
    job = started()
    job.handle(CheckpointSelected(1, f"/c/{NEW}", 200), 1.0)
    job.handle(TrainingRestored(1, 200), 1.0)
    job.handle(StepsDone(1, 203), 2.0)

    job.handle(FailureReported(1, "ValueError", 206), 3.0)

    assert job.facts.current.step == 206


def test_a_new_best_checkpoint_ends_all_suspicion():
    job = started()
    for _ in range(3):
        dies(job, NEW, 200)
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, f"/c/{OLD}", 100), 1.0)
    job.handle(TrainingRestored(attempt, 100), 1.0)
    job.handle(StepsDone(attempt, 201), 2.0)
    job.handle(CheckpointCommitted(attempt, 201), 3.0)

    assert job.facts.suspects.avoid == frozenset()
    assert job.facts.suspects.deaths == ()


def test_an_attempt_that_saved_does_not_blame_what_it_restored():
    job = started()
    for number in range(4):
        attempt = job.facts.attempt
        job.handle(CheckpointSelected(attempt, f"/c/{NEW}", 200), 1.0)
        job.handle(TrainingRestored(attempt, 200), 1.0)
        job.handle(StepsDone(attempt, 205 + number), 2.0)
        job.handle(CheckpointCommitted(attempt, 200 + number), 2.0)
        effects = job.handle(WorkerExited(attempt, 1), 3.0)

        assert "suspect" not in text(effects)


def test_a_directory_that_is_busy_blames_nothing():
    job = started()

    effects = [dies(job, NEW, 200, code=75) for _ in range(4)]

    assert all("suspect" not in text(effect) for effect in effects)


def test_a_step_is_blamed_also_where_the_attempts_saved_on_their_way_to_it():
    job = started()
    for _ in range(3):
        dies(job, NEW, 206)
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, f"/c/{OLD}", 100), 1.0)
    job.handle(TrainingRestored(attempt, 100), 1.0)
    job.handle(StepsDone(attempt, 206), 2.0)
    job.handle(CheckpointCommitted(attempt, 200), 2.0)

    assert f"step 207 kills it: 4 deaths there, from {NEW}, step-0000000200.a4" in text(
        job.handle(WorkerExited(attempt, 1), 3.0)
    )


def test_a_job_that_has_reached_its_end_says_that_there_was_nothing_to_do():
    job = started()
    job.handle(SpawnSucceeded(1), 0.0)
    job.handle(CheckpointSelected(1, f"/c/{NEW}", 200, None), 1.0)
    job.handle(TrainingRestored(1, 200), 2.0)
    job.handle(DoneReported(1), 3.0)

    ended = text(job.handle(WorkerExited(1, 0), 4.0))

    assert ended == job.facts.reason == "done; there was nothing to do: it is at total_steps (200)"
    assert job.state is State.SUCCEEDED


def dies_before_its_first_step(
    job: Job, *, restoring: bool, code: int | None = None, signal: int | None = 9
) -> list[Effect]:
    """One attempt for which NEW is selected; it dies while it imports, or in the restore of that checkpoint."""
    attempt, now = job.facts.attempt, 1000.0 * job.facts.attempt
    job.handle(SpawnSucceeded(attempt), now)
    job.handle(CheckpointSelected(attempt, f"/c/{NEW}", 200), now)
    if restoring:
        job.handle(RestoreBegun(attempt), now)
    effects = job.handle(WorkerExited(attempt, code, signal), now)
    if job.state is State.BACKOFF:
        effects += job.expire(job.deadline() or 0.0)
    return effects


def test_deaths_before_the_restore_began_say_nothing_of_the_checkpoint():
    job = started()

    for _ in range(5):
        died = dies_before_its_first_step(job, restoring=False)
        assert avoided(died) == set() and "suspect" not in text(died)


def test_deaths_in_the_restore_itself_make_the_checkpoint_suspect():
    job = started()

    dies_before_its_first_step(job, restoring=True)
    dies_before_its_first_step(job, restoring=False)
    dies_before_its_first_step(job, restoring=True)
    third = dies_before_its_first_step(job, restoring=True, signal=11)

    assert avoided(third) == {NEW}
    assert "3 deaths right after restoring it" in text(third)


def test_status_65_of_a_script_that_never_began_to_restore_is_no_word_about_the_checkpoint():
    job = started()

    effects = dies_before_its_first_step(job, restoring=False, code=65, signal=None)

    assert next(effect.cause for effect in effects if isinstance(effect, RecordEnd)) == "crash"
    assert job.facts.suspects.unfit == ()


def test_a_death_that_nobody_saw_is_known_by_what_the_attempt_committed():
    job = Job(JOB)
    job.facts.attempt, job.facts.wanted, job.facts.best_step = 1, True, 200

    job.handle(AttemptLost(1, error="ValueError: no", committed_step=120, step=125, code=1), 1.0)

    assert [(death.name, death.restored) for death in job.facts.suspects.deaths] == [("step-0000000120.a1", False)]
