"""How long silence may last, learned from silences. Time is a number."""

from dataclasses import replace

import pytest

from supervisor.core.failures.hang_detection import (
    SAFETY,
    HangDetector,
    LoopSection,
    parse_section,
)
from supervisor.core.job import Job
from supervisor.core.program.effects import (
    Abort,
    Effect,
    PersistHangHistory,
    RecordEnd,
)
from supervisor.core.program.events import (
    CheckpointCommitted,
    CheckpointSelected,
    SpawnSucceeded,
    StacksCollected,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State

AUTO = Policy(name="digits", is_job=True, startup_timeout=600, hang_timeout_min=60.0)


def running(policy: Policy = AUTO, restored_at: float = 5.0, first_step_at: float = 10.0) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(TrainingRestored(1, 0), restored_at)
    job.handle(StepsDone(1, 1), first_step_at)
    return job


def test_a_job_that_is_quick_gets_the_floor():
    assert running().deadline() == 10.0 + 60.0


def test_a_job_whose_steps_are_slow_gets_a_multiple_of_the_slowest():
    job = running()
    job.handle(StepsDone(1, 2), 50.0)
    job.handle(StepsDone(1, 3), 51.0)

    assert job.deadline() == pytest.approx(51.0 + SAFETY * 40.0, rel=0.01)


def test_a_slow_evaluation_makes_nobody_patient_with_steps():
    job = running()
    job.handle(StepsDone(1, 1, section=LoopSection.EVALUATION), 11.0)
    assert job.deadline() == 11.0 + 3 * 60.0
    job.handle(StepsDone(1, 1), 111.0)

    assert job.deadline() == 111.0 + 60.0
    assert job.facts.hang_detector.longest[LoopSection.EVALUATION] == 100.0


def test_start_up_and_tracing_have_limits_of_their_own_within_startup_timeout():
    job = Job(AUTO)
    job.handle(StartRequested(), 0.0)
    assert job.deadline() == 30.0, "half of the floor: nothing is known yet"
    job.handle(TrainingRestored(1, 0), 20.0)
    assert job.deadline() == 20.0 + 60.0

    assert job.expire(80.0) == [Abort(1)]

    assert job.facts.current.decided_end is not None
    assert job.facts.current.decided_end[1].startswith("did not train within 60 s in tracing (hang_timeout = auto)")


def test_start_up_never_outlasts_startup_timeout_however_long_it_took_before():
    policy = replace(AUTO, startup_timeout=40.0)
    job = Job(policy)
    job.facts.hang_detector.longest = {LoopSection.STARTUP: 39.0}

    job.handle(StartRequested(), 0.0)

    assert job.deadline() == 40.0


def test_a_save_that_never_ends_is_a_hang_though_training_goes_on():
    job = running()
    for second in range(11, 80):
        job.handle(StepsDone(1, second, saving_s=second - 11.0), float(second))
        if job.deadline() <= second:
            break

    assert job.deadline() == 11.0 + 60.0
    assert job.expire(71.0) == [Abort(1)]
    assert job.facts.current.decided_end == (
        "hang",
        "no step for 60 s in section save (hang_timeout = auto) after step 71",
    )


def test_a_save_that_ended_is_learned_from():
    job = running()
    job.handle(StepsDone(1, 2, saving_s=1.0), 12.0)
    job.handle(CheckpointCommitted(1, 2), 41.0)
    job.handle(StepsDone(1, 3), 42.0)

    assert job.facts.hang_detector.longest[LoopSection.SAVE] == 30.0


def test_learned_hang_limit_is_stored_once():
    job = running()

    first = job.handle(CheckpointCommitted(1, 1), 20.0)
    job.handle(StepsDone(1, 2), 20.0)
    job.handle(StepsDone(1, 3), 20.1)
    again = job.handle(CheckpointCommitted(1, 3), 20.2)

    assert first == [PersistHangHistory((("start-up", 5.0), ("tracing", 5.0)))]
    assert again == [PersistHangHistory((("step", pytest.approx(10.0, rel=0.01)),))]
    assert job.handle(CheckpointCommitted(1, 4), 20.3) == []


def test_each_hang_at_the_same_place_doubles_the_patience_until_it_is_passed():
    detector = HangDetector()
    detector.record_hang(7, LoopSection.STEP)
    detector.record_hang(7, LoopSection.STEP)
    detector.step_passed(7)
    assert detector.limit(LoopSection.STEP, 60.0) == 240.0
    assert detector.limit(LoopSection.SAVE, 60.0) == 60.0, "another section has done nothing"

    detector.step_passed(8)

    assert detector.limit(LoopSection.STEP, 60.0) == 60.0


def test_doubling_ends_and_an_operators_start_ends_what_came_of_it():
    job = running()
    for _ in range(9):
        job.facts.hang_detector.record_hang(1, LoopSection.STEP)
    assert job.facts.hang_detector.limit(LoopSection.STEP, 60.0) == 240.0

    job.handle(StopRequested(), 11.0)
    job.handle(WorkerExited(1, 143), 12.0)
    job.handle(StartRequested(), 13.0)

    assert job.facts.hang_detector.limit(LoopSection.STEP, 60.0) == 60.0


@pytest.mark.parametrize("hangs_in", ["start-up", "tracing", "step"])
def test_a_job_that_always_hangs_is_given_up_within_hours(hangs_in: str):
    job, now, hours = Job(replace(AUTO, startretries=10, startup_timeout=7200, hang_timeout_min=600.0)), 0.0, 0.0
    job.handle(StartRequested(), now)
    while job.state is not State.FAILED:
        attempt = job.facts.attempt
        job.handle(SpawnSucceeded(attempt), now)
        if hangs_in != "start-up":
            job.handle(TrainingRestored(attempt, 0), now)
        if hangs_in == "step":
            job.handle(StepsDone(attempt, 1), now)
        now = job.deadline() or 0.0
        assert job.expire(now) == [Abort(attempt)]
        job.handle(WorkerExited(attempt, None, 6), now)
        if job.state is State.BACKOFF:
            now = job.deadline() or 0.0
            job.expire(now)
        hours = now / 3600

    assert job.facts.attempt == 11
    assert hours < 7, "ten retries of at most 40 minutes"


def test_learned_hang_limit_has_a_ceiling():
    detector = HangDetector()
    for _ in range(20):
        detector.since = 0.0
        detector.progress_reported(LoopSection.STEP, detector.limit(detector.section, 60.0) - 0.1)

    assert detector.limit(LoopSection.STEP, 60.0) == 16 * 60.0
    assert detector.limit(LoopSection.STEP, 60.0) > 900.0 > detector.longest[LoopSection.STEP] / 2


@pytest.mark.thorough
def test_a_silence_that_never_comes_again_is_forgotten_and_one_that_does_is_not():
    once, again = HangDetector(section=LoopSection.STEP), HangDetector(section=LoopSection.STEP)
    for detector in (once, again):
        detector.progress_reported(LoopSection.STEP, 2000.0)
    for step in range(1, 400_000):
        once.progress_reported(LoopSection.STEP, 2000.0 + step)
        again.progress_reported(LoopSection.STEP, again.since + (1900.0 if step % 3600 == 0 else 1.0))

    assert once.limit(LoopSection.STEP, 600.0) < 0.4 * SAFETY * 2000.0
    assert again.limit(LoopSection.STEP, 600.0) > 0.9 * SAFETY * 1900.0
    assert once.changes_to_persist()[LoopSection.STEP] < 800.0, "the ledger forgets it too"


def test_a_slow_save_is_forgotten_after_some_quick_ones():
    detector = HangDetector()
    for number in range(65):
        detector.save_reported(1000.0 if number == 0 else 1.0, 5000.0 + number)
        detector.save_ended(5000.0 + number)

    assert detector.longest[LoopSection.SAVE] == pytest.approx(250.0, rel=0.02)


def test_with_a_fixed_limit_too_a_save_that_never_ends_is_a_hang_though_training_goes_on():
    job = running(replace(AUTO, hang_timeout_min=None, hang_timeout=30.0, flush_timeout=10.0))
    for second in range(11, 300):
        job.handle(StepsDone(1, second, saving_s=second - 11.0), float(second))
        if (job.deadline() or 0.0) <= second:
            break

    assert job.deadline() == 11.0 + 4 * 30.0
    assert job.expire(131.0) == [Abort(1)]
    assert job.facts.current.decided_end is not None and job.facts.current.decided_end[1] == (
        "a checkpoint was not on the disk within 120 s (4 times the longer of hang_timeout and flush_timeout) "
        "after step 131"
    )


def test_a_save_that_ends_in_time_leaves_the_fixed_limit_to_the_steps():
    job = running(replace(AUTO, hang_timeout_min=None, hang_timeout=30.0, flush_timeout=50.0))
    job.handle(StepsDone(1, 2, saving_s=199.0), 300.0)
    assert job.deadline() == 300.0 - 199.0 + 200.0
    job.handle(CheckpointCommitted(1, 1), 300.5)

    assert job.deadline() == 300.5 + 30.0
    assert job.expire(330.5) == [Abort(1)]
    assert job.facts.current.decided_end == ("hang", "no step for 30 s (hang_timeout) after step 2")


def test_silence_that_became_a_hang_is_not_learned():
    job = running()
    job.expire(70.0)
    job.handle(WorkerExited(1, None, 6), 71.0)

    assert LoopSection.STEP not in job.facts.hang_detector.longest


def test_a_section_nobody_knows_is_the_step():
    assert parse_section("rehearsal") is LoopSection.STEP
    assert parse_section(None) is LoopSection.STEP
    assert parse_section("data") is LoopSection.DATA


def test_the_reason_names_the_file_with_the_stacks():
    job = running()
    job.expire(70.0)
    assert job.state is State.STOPPING
    job.handle(StacksCollected(1, "/s/stacks/digits/a1.txt"), 70.5)

    effects: list[Effect] = job.handle(WorkerExited(1, None, 6), 71.0)

    assert isinstance(effects[0], RecordEnd)
    assert effects[0].text.endswith("; stacks: /s/stacks/digits/a1.txt")
