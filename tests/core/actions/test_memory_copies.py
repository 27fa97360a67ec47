"""What becomes of the state that a dead worker left in memory, and what a checkpoint that comes of it changes."""

from dataclasses import replace

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import DEATHS, NEAR_STEPS
from supervisor.core.job import Job
from supervisor.core.program.effects import (
    Effect,
    RecordEnd,
    ReleaseMemory,
    SalvageMemory,
    SelectCheckpoint,
    SendGo,
    Spawn,
)
from supervisor.core.program.events import (
    AttemptFound,
    AttemptLost,
    BeginAtRequested,
    CheckpointCommitted,
    CheckpointOutdated,
    CheckpointSelected,
    CopiesHeld,
    DoneReported,
    FailureReported,
    MemoryOffer,
    MemorySalvaged,
    RestartRequired,
    RestoreBegun,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import AutoRestart, OnOom, Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist, restore_facts
from supervisor.protocol.wire.exits import WorkerExit
from tests.core.test_job import die, running

POLICY = Policy("digits", is_job=True, checkpoint_dir="/data/digits", startretries=10)


def holding(step: int = 50) -> Job:
    """A job that trains and whose state is held in memory."""
    job = running(POLICY)
    job.handle(CopiesHeld(1, is_held=True), 10.0)
    job.handle(StepsDone(1, step), 11.0)
    return job


def salvaged(job: Job, of_attempt: int, step: int, now: float) -> str:
    name = f"step-{step:010d}.a{of_attempt}"
    job.handle(MemorySalvaged(of_attempt, step, name, 1.7e9), now)
    return name


def begin(job: Job, path: str, step: int, now: float) -> int:
    """The attempt that was launched restores a checkpoint and holds memory."""
    attempt = job.facts.attempt
    job.handle(SpawnSucceeded(attempt), now)
    effects = job.handle(CheckpointSelected(attempt, f"/data/digits/{path}", step, highest_step=step), now)
    assert [effect for effect in effects if isinstance(effect, SendGo)], job.facts.reason
    job.handle(TrainingRestored(attempt, step), now)
    job.handle(CopiesHeld(attempt, is_held=True), now)
    return attempt


def test_memory_is_salvaged_before_the_next_attempt_selects_its_checkpoint() -> None:
    job = holding()
    job.facts.mount = "xfs at /data"

    effects = die(job, 12.0)

    kinds = [type(effect) for effect in effects]
    assert effects[1] == SalvageMemory(1, "xfs at /data")
    assert kinds.index(RecordEnd) < kinds.index(SalvageMemory) < kinds.index(SelectCheckpoint)


def test_memory_of_a_worker_that_died_between_two_daemons_is_salvaged() -> None:
    stored = facts_to_persist(holding().facts, 12.0)
    later = Job(POLICY)
    later.facts.attempt = 1
    later.facts.wanted = True
    restore_facts(later.facts, stored, 0.0, 1.0)

    effects = later.handle(AttemptLost(1, committed_step=40, in_memory=True), 1.0)

    kinds = [type(effect) for effect in effects]
    assert kinds.index(RecordEnd) < kinds.index(SalvageMemory) < kinds.index(SelectCheckpoint)


def test_memory_of_a_worker_that_could_not_be_adopted_is_salvaged_and_its_end_is_no_failure() -> None:
    """Not even if it had begun from what was in memory: the daemon ended it, and not its state."""
    job = holding()
    die(job, 12.0)
    name = salvaged(job, 1, 49, 12.5)
    assert begin(job, name, 49, 13.0) == 2
    later = Job(POLICY)
    later.facts.attempt = 2
    later.facts.wanted = True
    restore_facts(later.facts, facts_to_persist(job.facts, 14.0), 0.0, 1.0)
    before = later.facts.failures.by_cause

    effects = later.handle(AttemptLost(2, in_memory=True, not_adopted="could not be taken over"), 1.0)

    assert effects[:2] == [RecordEnd(2, Cause.LOST, "could not be taken over"), SalvageMemory(2, None, name)]
    assert [type(effect) for effect in effects[2:]] == [Spawn, SelectCheckpoint]
    assert (later.facts.failures.by_cause, later.facts.suspects.deaths) == (before, ())


def test_a_stop_of_a_worker_that_has_not_said_how_far_it_is_leaves_what_it_has_in_memory() -> None:
    job = Job(POLICY)
    job.facts.attempt = 1
    job.facts.wanted = True
    job.handle(AttemptFound(1, 500.0), 10.0)
    job.handle(CopiesHeld(1, is_held=True), 10.0)
    job.handle(StopRequested(), 11.0)
    job.expire(job.deadline() or 0.0)
    assert job.state is State.STOPPING

    effects = die(job, 200.0)

    assert effects[0].cause is Cause.STOPPED  # type: ignore[attr-defined]
    assert SalvageMemory(1) in effects


def test_memory_of_a_worker_that_was_done_between_two_daemons_is_let_go() -> None:
    later = Job(POLICY)
    later.facts.attempt = 1

    effects = later.handle(AttemptLost(1, done=True, in_memory=True), 1.0)

    assert ReleaseMemory(1) in effects


def test_without_memory_nothing_is_salvaged() -> None:
    job = running(POLICY)
    job.handle(CopiesHeld(1, is_held=True), 10.0)
    job.handle(CopiesHeld(1, is_held=False), 11.0)

    effects = die(job, 12.0)

    assert not [effect for effect in effects if isinstance(effect, SalvageMemory | ReleaseMemory)]


def test_a_job_that_is_killed_while_it_stops_is_salvaged_too() -> None:
    job = holding()
    job.handle(StopRequested(), 12.0)

    effects = die(job, 13.0)

    assert job.state is State.STOPPED
    assert SalvageMemory(1) in effects
    salvaged(job, 1, 49, 14.0)
    assert job.facts.ended is not None
    assert (job.facts.ended.safe_step, job.facts.ended.unsaved) == (49, 1)


def test_a_job_that_saved_before_it_stopped_leaves_nothing_to_write() -> None:
    job = holding(50)
    job.handle(StopRequested(), 12.0)
    job.handle(CheckpointCommitted(1, 51), 12.5)

    assert ReleaseMemory(1) in die(job, 13.0, code=int(WorkerExit.STOPPED))


def test_after_completion_memory_is_let_go() -> None:
    job = holding()
    job.handle(DoneReported(1), 12.0)

    effects = die(job, 13.0, code=0)

    assert job.state is State.SUCCEEDED
    assert ReleaseMemory(1) in effects


def test_after_a_divergence_memory_is_let_go_as_the_next_attempt_begins_from_before() -> None:
    job = holding()
    job.handle(FailureReported(1, "loss is nan", 51, go_back=True), 12.0)

    effects = die(job, 13.0, code=int(WorkerExit.DIVERGED))

    assert effects[0].cause is Cause.DIVERGENCE  # type: ignore[attr-defined]
    assert ReleaseMemory(1) in effects


@pytest.mark.parametrize("code", [WorkerExit.DIVERGED, WorkerExit.NOT_REPEATABLE])
def test_a_state_that_is_known_to_be_wrong_is_let_go_whatever_else_ended_the_attempt(code: WorkerExit) -> None:
    """As it saves before a stop, a worker finds that its state is not finite: copies in memory are not looked at."""
    job = holding()
    job.handle(CheckpointCommitted(1, 30), 11.5)
    job.handle(StopRequested(), 12.0)
    job.handle(FailureReported(1, "kernel is not finite", 51, go_back=True), 12.5)

    effects = die(job, 13.0, code=int(code))

    is_seen = code is WorkerExit.DIVERGED
    assert effects[0].cause is (Cause.DIVERGENCE if is_seen else Cause.STOPPED)  # type: ignore[attr-defined]
    assert ReleaseMemory(1) in effects


def test_where_another_hosts_checkpoints_count_memory_is_let_go() -> None:
    job = holding()

    effects = job.handle(CheckpointOutdated("another host has uploaded step 900"), 12.0)

    assert ReleaseMemory(1) in effects
    assert not [effect for effect in die(job, 13.0) if isinstance(effect, SalvageMemory)]


def test_where_an_operator_has_chosen_the_step_memory_is_let_go() -> None:
    job = holding()
    job.handle(StopRequested(), 12.0)
    job.handle(BeginAtRequested(20), 12.0)
    job.handle(StartRequested(), 12.0)

    assert ReleaseMemory(1) in die(job, 13.0)


def test_a_salvaged_checkpoint_is_a_commit_for_the_account_and_the_budgets() -> None:
    job = holding()
    job.handle(CheckpointCommitted(1, 30), 11.5)
    die(job, 12.0)
    assert job.facts.failures.by_cause == {Cause.CRASH: 1}

    name = salvaged(job, 1, 49, 12.5)

    assert job.facts.account.newest is not None
    assert (job.facts.account.newest.step, job.facts.account.newest.name, job.facts.account.newest.attempt) == (
        49,
        name,
        1,
    )
    assert (job.facts.attempt, job.facts.current.saved_step, job.facts.best_step) == (2, None, 49)
    assert not job.facts.failures.by_cause
    assert facts_to_persist(job.facts, 13.0).salvaged == name


def test_an_older_state_than_the_newest_changes_no_account() -> None:
    job = holding()
    job.handle(CheckpointCommitted(1, 60), 11.5)
    die(job, 12.0)

    salvaged(job, 1, 49, 12.5)

    assert job.facts.account.newest is not None
    assert job.facts.account.newest.step == 60


@pytest.mark.parametrize("steps", [0, NEAR_STEPS - 1])
def test_a_state_that_kills_whoever_restores_it_is_gone_back_behind(steps: int) -> None:
    """Each attempt from it dies within a few steps; none may leave a newer state behind, or it would go on for ever."""
    job = holding(50)
    job.handle(CheckpointCommitted(1, 30), 11.5)
    die(job, 12.0)
    poisoned, now = salvaged(job, 1, 49, 12.5), 13.0
    chosen: list[SelectCheckpoint] = []

    for _ in range(DEATHS):
        now += 100.0
        if job.state is State.BACKOFF:
            job.expire(now)
        attempt = begin(job, poisoned, 49, now)
        job.handle(StepsDone(attempt, 49 + steps), now)
        effects = [*die(job, now + 1.0)]
        effects += job.expire(now + 99.0) if job.state is State.BACKOFF else []
        assert ReleaseMemory(attempt) in effects
        chosen += [effect for effect in effects if isinstance(effect, SelectCheckpoint)]

    assert chosen[-1].avoid == {poisoned}


def test_a_death_long_after_the_restore_of_a_salvaged_state_leaves_another_one() -> None:
    job = holding(50)
    die(job, 12.0)
    attempt = begin(job, name := salvaged(job, 1, 49, 12.5), 49, 13.0)
    job.handle(StepsDone(attempt, 49 + NEAR_STEPS), 14.0)

    assert SalvageMemory(attempt, None, restored=name) in die(job, 15.0)


@pytest.mark.parametrize(("steps", "leaves"), [(0, ReleaseMemory), (1, ReleaseMemory), (3, SalvageMemory)])
def test_a_death_near_a_salvaged_state_gives_up_no_more_than_a_second_of_slow_steps(
    steps: int, leaves: type[Effect]
) -> None:
    job = holding(50)
    die(job, 12.0)
    attempt = begin(job, salvaged(job, 1, 49, 12.5), 49, 13.0)
    for step in range(1, steps + 1):
        job.handle(StepsDone(attempt, 49 + step, 0.5), 13.0 + 0.5 * step)

    assert [effect for effect in die(job, 20.0) if isinstance(effect, leaves)]


def test_a_death_right_after_the_restore_of_what_a_worker_saved_itself_leaves_a_state() -> None:
    job = holding(50)
    job.handle(CheckpointCommitted(1, 30), 11.5)
    die(job, 12.0)
    attempt = begin(job, "step-0000000030.a1", 30, 13.0)
    job.handle(StepsDone(attempt, 31), 14.0)

    assert SalvageMemory(attempt, None, restored="step-0000000030.a1") in die(job, 15.0)


def test_the_kernels_out_of_memory_kill_says_nothing_against_a_salvaged_state() -> None:
    job = holding(50)
    die(job, 12.0)
    attempt = begin(job, name := salvaged(job, 1, 49, 12.5), 49, 13.0)
    job.handle(FailureReported(attempt, "MemoryError", 50, out_of_memory=True), 14.0)

    effects = job.handle(WorkerExited(attempt, code=1), 15.0)

    assert effects[0].cause is Cause.OUT_OF_MEMORY  # type: ignore[attr-defined]
    assert SalvageMemory(attempt, None, restored=name) in effects


def begin_from_memory(job: Job, of_attempt: int, step: int, now: float, on_disk: tuple[str, int]) -> tuple[int, str]:
    """The attempt that was launched restores what is in memory, beside a checkpoint on the disk."""
    attempt, name = job.facts.attempt, f"step-{step:010d}.a{of_attempt}"
    job.handle(SpawnSucceeded(attempt), now)
    path, older = on_disk
    offer = MemoryOffer("socket", of_attempt)
    selected = CheckpointSelected(attempt, f"/data/digits/{path}", older, highest_step=older, memory=offer)
    assert job.handle(selected, now) == [SendGo(attempt, f"/data/digits/{path}", memory=offer)]
    job.handle(TrainingRestored(attempt, step, name), now)
    return attempt, name


ON_DISK = ("step-0000000030.a1", 30)


def holding_with_checkpoint() -> Job:
    job = holding(50)
    job.handle(CheckpointCommitted(1, 30), 11.5)
    die(job, 12.0)
    return job


def test_what_is_restored_from_memory_is_no_checkpoint_before_it_is_committed() -> None:
    job = holding_with_checkpoint()

    _, name = begin_from_memory(job, 1, 49, 12.5, ON_DISK)

    assert job.facts.account.newest is not None
    assert (job.facts.account.newest.step, job.facts.best_step) == (30, 30)
    assert job.facts.failures.by_cause == {Cause.CRASH: 1}
    assert job.facts.current.start_step == 49

    assert salvaged(job, 1, 49, 13.0) == name
    assert (job.facts.account.newest.name, job.facts.best_step) == (name, 49)
    assert not job.facts.failures.by_cause


def test_if_it_is_never_written_the_next_attempt_begins_at_what_the_disk_has() -> None:
    job = holding_with_checkpoint()
    attempt, _ = begin_from_memory(job, 1, 49, 12.5, ON_DISK)
    job.handle(StepsDone(attempt, 90), 13.0)
    die(job, 14.0)
    job.expire(20.0)
    attempt = job.facts.attempt

    job.handle(SpawnSucceeded(attempt), 20.0)
    effects = job.handle(CheckpointSelected(attempt, "/data/digits/step-0000000030.a1", 30, highest_step=30), 20.0)

    assert SendGo(attempt, "/data/digits/step-0000000030.a1") in effects
    assert job.facts.current.older is None


@pytest.mark.parametrize("is_written", ["never", "before it", "after it"])
def test_a_state_that_was_restored_from_memory_is_blamed_for_the_death_that_follows(is_written: str) -> None:
    job = holding_with_checkpoint()
    attempt, name = begin_from_memory(job, 1, 49, 12.5, ON_DISK)
    if is_written == "before it":
        salvaged(job, 1, 49, 12.6)
    job.handle(CopiesHeld(attempt, is_held=True), 12.7)
    job.handle(StepsDone(attempt, 50), 12.8)

    assert ReleaseMemory(attempt) in die(job, 13.0)
    if is_written == "after it":
        salvaged(job, 1, 49, 13.1)

    assert [death.name for death in job.facts.suspects.deaths][-1:] == [name]


def restoring_from_memory() -> Job:
    """A job in the middle of it, beside a checkpoint on the disk."""
    job = holding_with_checkpoint()
    attempt = job.facts.attempt
    job.handle(SpawnSucceeded(attempt), 12.5)
    offer = MemoryOffer("socket", 1)
    job.handle(CheckpointSelected(attempt, f"/data/digits/{ON_DISK[0]}", 30, highest_step=30, memory=offer), 12.6)
    job.handle(RestoreBegun(attempt, in_memory="step-0000000049.a1"), 12.7)
    return job


def test_a_state_in_memory_that_does_not_fit_is_passed_over_and_not_the_checkpoint_on_the_disk() -> None:
    """It may be damaged by what killed the worker, or not be finite; what was saved in good order is gone on from."""
    job = restoring_from_memory()
    attempt = job.facts.attempt
    job.handle(FailureReported(attempt, "cannot restore step-0000000049.a1: kernel is not finite", None), 12.8)
    effects = [*job.handle(WorkerExited(attempt, code=WorkerExit.CHECKPOINT_UNFIT), 12.9)]
    effects += job.expire(100.0) if job.state is State.BACKOFF else []

    (select,) = [effect for effect in effects if isinstance(effect, SelectCheckpoint)]
    assert [name for name, _ in select.unfit] == ["step-0000000049.a1"]


def test_a_death_in_the_middle_of_a_restore_from_memory_is_not_held_against_the_disk() -> None:
    job = restoring_from_memory()
    die(job, 12.8)

    assert job.facts.suspects.deaths[-1].name == "step-0000000049.a1"
    assert job.facts.account.newest is not None
    assert job.facts.account.newest.step == 30


def test_a_new_daemon_that_hears_of_the_restore_again_does_not_take_it_for_a_checkpoint() -> None:
    job = holding_with_checkpoint()
    attempt, name = begin_from_memory(job, 1, 49, 12.5, ON_DISK)
    stored = facts_to_persist(job.facts, 13.0)
    later = Job(POLICY)
    later.skip_attempts(attempt)
    later.recall_persisted(stored, 0.0, 1.0)
    later.facts.account = job.facts.account
    later.handle(AttemptFound(attempt, 1.0), 0.0)

    later.handle(TrainingRestored(attempt, 49, name), 0.1)

    assert later.facts.account == job.facts.account
    assert later.facts.salvaged == name


OOM = "its cgroup /a counts one more kill"


def test_an_attempt_with_copies_that_runs_out_of_memory_counts_for_nothing_and_the_next_one_makes_none() -> None:
    job = holding()

    effects = job.handle(WorkerExited(1, signal=9, oom=OOM), 12.0)

    record = next(effect for effect in effects if isinstance(effect, RecordEnd))
    assert record.cause is Cause.OUT_OF_MEMORY
    assert "from now on its state is not copied into memory" in record.text
    assert SalvageMemory(1, None) in effects
    assert job.state is State.STARTING
    assert job.facts.failures.by_cause == {}
    assert facts_to_persist(job.facts, 12.0).no_copies

    job.handle(SpawnSucceeded(2), 13.0)
    (go,) = job.handle(CheckpointSelected(2, "/data/digits/step-0000000050.a1", 50, highest_step=50), 13.0)
    assert isinstance(go, SendGo)
    assert go.no_copies
    job.handle(TrainingRestored(2, 50), 13.0)
    job.handle(StepsDone(2, 60), 14.0)
    job.handle(WorkerExited(2, signal=9, oom=OOM), 15.0)
    assert job.facts.failures.by_cause == {Cause.OUT_OF_MEMORY: 1}


@pytest.mark.parametrize(("steps", "counted"), [(0, {}), (1, {Cause.OUT_OF_MEMORY: 1})])
def test_memory_that_runs_out_beside_what_is_restored_from_there_counts_for_nothing(
    steps: int, counted: dict[Cause, int]
) -> None:
    """Two copies of the dead worker's state lie there, and the next one loads a third: no batch is too large."""
    job = running(replace(POLICY, on_oom=OnOom.MICROBATCH))
    job.handle(CopiesHeld(1, is_held=True), 10.0)
    job.handle(WorkerExited(1, signal=9), 12.0)
    job.handle(SpawnSucceeded(2), 13.0)
    offer = MemoryOffer("socket", 1)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000040.a1", 40, highest_step=40, memory=offer), 13.0)
    job.handle(RestoreBegun(2, "step-0000000050.a1"), 13.5)
    if steps:
        job.handle(TrainingRestored(2, 50, "step-0000000050.a1"), 14.0)
        job.handle(StepsDone(2, 51), 14.5)

    effects = job.handle(WorkerExited(2, signal=9, oom=OOM), 15.0)

    failures = dict(job.facts.failures.by_cause)
    failures.pop(Cause.CRASH, None)
    assert failures == counted
    assert job.facts.microbatches == (2 if steps else 1)
    selected = [effect for effect in effects if isinstance(effect, SelectCheckpoint)]
    assert [effect.is_memory_short for effect in selected] == [not steps]


def test_a_worker_that_makes_copies_against_its_orders_is_charged() -> None:
    job = holding()
    job.handle(WorkerExited(1, signal=9, oom=OOM), 12.0)
    begin(job, "step-0000000050.a1", 50, 13.0)

    job.handle(WorkerExited(2, signal=9, oom=OOM), 15.0)

    assert job.facts.failures.by_cause == {Cause.OUT_OF_MEMORY: 1}


def test_a_job_over_its_memory_limit_makes_no_more_copies_and_divides_no_batch() -> None:
    job = holding()
    job.handle(RestartRequired(1, Cause.MEMORY_LIMIT, "held too much"), 12.0)
    job.handle(CheckpointCommitted(1, 50, frozenset({1})), 12.5)

    job.handle(WorkerExited(1, code=WorkerExit.STOPPED), 13.0)

    assert job.facts.no_copies
    assert (job.state, job.facts.microbatches, job.facts.failures.by_cause) == (State.STARTING, 1, {})


@pytest.mark.parametrize("way", ["the GPU's memory ran out", "there were no copies", "it crashed"])
def test_copies_are_not_blamed_for_other_ends(way: str) -> None:
    job = holding()
    if way == "the GPU's memory ran out":
        job.handle(FailureReported(1, "OOM when allocating tensor", 50, out_of_memory=True), 11.5)
    elif way == "there were no copies":
        job.handle(CopiesHeld(1, is_held=False), 11.5)

    oom = OOM if way == "there were no copies" else None
    job.handle(WorkerExited(1, None if oom else 1, 9 if oom else None, oom), 12.0)

    assert not job.facts.no_copies
    assert sum(job.facts.failures.by_cause.values()) == 1


def test_an_operators_start_tries_copies_again_and_one_that_restarts_no_job_restarts_none() -> None:
    job = holding()
    job.handle(WorkerExited(1, signal=9, oom=OOM), 12.0)
    job.handle(StopRequested(), 13.0)
    job.handle(WorkerExited(2, code=WorkerExit.STOPPED), 14.0)
    job.handle(StartRequested(), 15.0)
    assert not job.facts.no_copies

    never = running(replace(POLICY, autorestart=AutoRestart.NEVER))
    never.handle(CopiesHeld(1, is_held=True), 10.0)
    never.handle(WorkerExited(1, signal=9, oom=OOM), 12.0)
    assert never.state is State.EXITED
