"""A job whose checkpoint directory is lost waits, goes on by itself, and begins anew only when told to."""

import errno
from dataclasses import replace

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.program.effects import (
    Effect,
    Kill,
    LookAtStorage,
    RecordEnd,
    ReleaseMemory,
    SelectCheckpoint,
    SendGo,
    Spawn,
    WithdrawOrder,
)
from supervisor.core.program.events import (
    AttemptFound,
    AttemptLost,
    BeginAtRequested,
    CheckpointCommitted,
    CheckpointMirrored,
    CheckpointSaveFailed,
    CheckpointSelected,
    CheckpointsSetAside,
    CopiesHeld,
    DeadlinePassed,
    DoneReported,
    FailureReported,
    SelectionFailed,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    StopRequested,
    StorageSeen,
    TrainingRestored,
    WorkerExited,
    WorkerIdentified,
)
from supervisor.core.program.facts import Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist
from supervisor.protocol.checkpoints.account import SeenDirectory, StatedReason, is_unmounted
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Phase

POLICY = Policy("digits", is_job=True, checkpoint_dir="/data/digits", startretries=1)
DISK, ROOT = "xfs at /data", "ext4 at /"


def started(job: Job, now: float) -> Job:
    job.handle(StartRequested(), now)
    job.handle(SpawnSucceeded(job.facts.attempt), now)
    return job


def trained_to(step: int) -> Job:
    """A job that began anew, committed this step, and was killed; its next attempt is STARTING."""
    job = started(Job(POLICY), 0.0)
    job.handle(CheckpointSelected(1, None, None, mount=DISK), 1.0)
    job.handle(TrainingRestored(1, 0), 2.0)
    job.handle(StepsDone(1, step), 3.0)
    job.handle(CheckpointCommitted(1, step), 4.0)
    job.handle(WorkerExited(1, signal=9), 5.0)
    assert (job.state, job.facts.attempt) == (State.STARTING, 2)
    job.handle(SpawnSucceeded(2), 5.0)
    return job


def waiting() -> Job:
    """A job of step 100 whose directory was found empty, on another file system."""
    job = trained_to(100)
    assert job.handle(CheckpointSelected(2, None, None, highest_step=None, mount=ROOT), 6.0) == [Kill(2)]
    job.handle(WorkerExited(2, signal=9), 7.0)
    return job


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def test_an_empty_directory_is_not_trained_in_and_costs_no_budget() -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, None, None, mount=ROOT), 6.0)

    record, *others = job.handle(WorkerExited(2, signal=9), 7.0)

    assert isinstance(record, RecordEnd)
    assert (record.cause, others, job.state) == (Cause.STORAGE, [], State.BACKOFF)
    assert "step 100 (step-0000000100.a1) was committed in /data/digits (xfs at /data)" in (job.facts.reason or "")
    assert job.facts.failures.by_cause == {Cause.CRASH: 1}


def test_it_looks_ever_less_often_and_goes_on_once_the_folder_is_back() -> None:
    job = waiting()
    pauses, now = list[float](), 7.0
    for _ in range(8):
        deadline_at = job.deadline()
        assert deadline_at is not None
        pauses.append(deadline_at - now)
        now = deadline_at
        assert job.handle(DeadlinePassed(), now) == [LookAtStorage(2, newest=job.facts.account.newest)]
        assert job.handle(StorageSeen(2, None, None, None, ROOT), now) == []

    effects = job.handle(StorageSeen(2, None, None, 100, DISK), now)

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert kinds(effects) == [Spawn, SelectCheckpoint]
    assert job.facts.reason is None


def test_a_late_look_without_an_answer_is_asked_for_again() -> None:
    job = waiting()
    job.handle(DeadlinePassed(), 8.0)

    assert job.deadline() == 8.0 + 60.0
    assert job.handle(DeadlinePassed(), 68.0) == [LookAtStorage(2, newest=job.facts.account.newest)]


def test_a_stop_ends_the_wait_and_a_later_answer_starts_nothing() -> None:
    job = waiting()
    job.handle(StopRequested(), 8.0)

    assert job.state is State.STOPPED
    assert job.handle(StorageSeen(2, None, None, 100, DISK), 9.0) == []


def test_a_start_while_it_waits_looks_again_at_once_and_says_the_same() -> None:
    job = waiting()

    assert kinds(job.handle(StartRequested(), 8.0)) == [Spawn, SelectCheckpoint]
    assert job.handle(CheckpointSelected(3, None, None, mount=ROOT), 9.0) == [Kill(3)]


def test_from_scratch_begins_anew_once_and_is_not_repeated() -> None:
    job = waiting()
    job.handle(BeginAtRequested(), 8.0)
    _, selection = job.handle(StartRequested(), 8.0)
    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at == 0

    assert job.handle(CheckpointSelected(3, None, None, mount=ROOT), 9.0) == [SendGo(3, None, gives_up_newer=True)]

    job.handle(SpawnSucceeded(3), 9.0)
    job.handle(TrainingRestored(3, 0), 9.5)
    job.handle(WorkerExited(3, signal=9), 10.0)  # before its first checkpoint
    *_, again = job.handle(DeadlinePassed(), 20.0)
    assert isinstance(again, SelectCheckpoint)
    assert (again.begin_at, again.newest) == (None, None)
    assert job.handle(CheckpointSelected(4, None, None, mount=ROOT), 21.0) == [SendGo(4, None)]


def test_from_scratch_outlives_a_failed_selection_and_the_daemon() -> None:
    job = waiting()
    job.handle(BeginAtRequested(), 8.0)
    job.handle(StartRequested(), 8.0)
    job.handle(SelectionFailed(3, "the disk", permanent=True, errno=errno.EIO), 9.0)
    job.handle(WorkerExited(3, signal=9), 10.0)
    assert job.state is State.BACKOFF

    later = Job(POLICY)
    later.skip_attempts(3)
    later.facts.account = job.facts.account
    later.recall_persisted(facts_to_persist(job.facts, 11.0), 0.0, 1.0)
    *_, selection = later.handle(StartRequested(resumes=True), 1.0)

    assert isinstance(selection, SelectCheckpoint)
    assert (selection.begin_at, selection.attempt) == (0, 4)


def taken_over(job: Job, attempt: int) -> Job:
    """The same job under the next daemon."""
    later = Job(POLICY)
    later.facts.wanted = True
    later.skip_attempts(attempt)
    later.facts.account = job.facts.account
    later.recall_persisted(facts_to_persist(job.facts, 11.0), 0.0, 1.0)
    return later


def told_to_begin_at(step: int) -> Job:
    """A job whose third attempt was told to begin where an operator said; its daemon dies before it has."""
    job = waiting()
    job.handle(BeginAtRequested(step), 8.0)
    job.handle(StartRequested(), 8.0)
    path = f"/data/digits/step-{step:010d}.a1" if step else None
    job.handle(CheckpointSelected(3, path, step or None, None, step or None, ROOT), 9.0)
    job.handle(SpawnSucceeded(3), 9.0)
    return job


@pytest.mark.parametrize("host_rebooted", [False, True])
@pytest.mark.parametrize("step", [0, 80])
def test_what_an_operator_chose_is_done_once_if_the_attempt_trained_and_ended_while_no_daemon_ran(
    step: int, host_rebooted: bool
) -> None:
    later = taken_over(told_to_begin_at(step), 3)

    *_, selection = later.handle(AttemptLost(3, committed_step=95, host_rebooted=host_rebooted), 1000.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at is None, "or it would give up step 95"
    path = "/data/digits/step-0000000095.a3"
    assert later.handle(CheckpointSelected(4, path, 95, None, 95, ROOT), 1001.0) == [SendGo(4, path)]
    assert later.facts.current.older is None


def test_what_an_operator_chose_is_done_by_the_next_attempt_if_this_one_saved_nothing() -> None:
    later = taken_over(told_to_begin_at(0), 3)

    *_, selection = later.handle(AttemptLost(3, host_rebooted=True), 1000.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at == 0


def test_an_adopted_worker_that_trains_has_begun_where_an_operator_chose() -> None:
    later = taken_over(told_to_begin_at(0), 3)
    later.handle(AttemptFound(3, 5.0), 1000.0)
    later.handle(WorkerIdentified(3, Phase.TRAINING, step=90), 1001.0)
    later.handle(StepsDone(3, 91), 1002.0)
    later.handle(CheckpointCommitted(3, 95), 1003.0)

    *_, selection = later.handle(WorkerExited(3, signal=9), 1004.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at is None


def test_what_an_operator_chose_while_an_attempt_stopped_is_not_done_by_that_one() -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, None, 100, DISK), 6.0)
    job.handle(TrainingRestored(2, 100), 7.0)
    job.handle(StepsDone(2, 101), 8.0)
    job.handle(StopRequested(), 9.0)
    job.handle(BeginAtRequested(0), 9.1)
    job.handle(StartRequested(), 9.2)
    job.handle(CheckpointCommitted(2, 105), 9.3)
    later = taken_over(job, 2)

    *_, selection = later.handle(AttemptLost(2, committed_step=105), 1000.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at == 0


def test_decisions_of_a_ledger_that_is_older_than_the_checkpoints_are_forgotten() -> None:
    """The state folder came back from a copy: attempts 4 to 9 have trained since."""
    later = taken_over(told_to_begin_at(0), 3)
    later.facts.restore_below_step = 50

    assert later.skip_saved_attempts(9, 9)

    *_, selection = later.handle(StartRequested(resumes=True), 1.0)
    assert isinstance(selection, SelectCheckpoint)
    assert (selection.attempt, selection.begin_at, selection.restore_below_step) == (10, None, None)


def test_decisions_stay_where_no_later_attempt_has_saved() -> None:
    later = taken_over(told_to_begin_at(0), 3)

    assert not later.skip_saved_attempts(3, 3)
    assert later.facts.begin_at == 0


def test_decisions_stay_where_only_another_hosts_checkpoints_are_of_later_attempts() -> None:
    """The daemon was killed after it had fetched the step that an operator chose."""
    later = taken_over(told_to_begin_at(90), 3)

    assert not later.skip_saved_attempts(9, 3)

    *_, selection = later.handle(StartRequested(resumes=True), 1.0)
    assert isinstance(selection, SelectCheckpoint)
    assert (selection.attempt, selection.begin_at) == (10, 90)


BASE = "/data/base/step-0000009000.a1"


@pytest.mark.parametrize("mount", [ROOT, DISK])
def test_a_later_step_of_initial_checkpoint_is_not_taken_for_the_jobs_own_progress(mount: str) -> None:
    """The other job has trained on meanwhile, and this one's folder is away."""
    job = trained_to(100)

    assert job.handle(CheckpointSelected(2, BASE, 9000, None, None, mount), 6.0) == [Kill(2)]

    job.handle(WorkerExited(2, signal=9), 7.0)
    assert job.state is State.BACKOFF
    assert "step 100 (step-0000000100.a1) was committed in /data/digits" in (job.facts.reason or "")


def test_an_operator_begins_anew_from_a_later_step_of_initial_checkpoint() -> None:
    job = waiting()
    job.handle(BeginAtRequested(0), 8.0)
    job.handle(StartRequested(), 8.0)

    assert job.handle(CheckpointSelected(3, BASE, 9000, None, None, DISK), 9.0) == [
        SendGo(3, BASE, gives_up_newer=True)
    ]
    job.handle(TrainingRestored(3, 9000), 10.0)
    assert job.facts.account.newest is None
    job.handle(WorkerExited(3, signal=9), 11.0)
    *_, selection = job.handle(DeadlinePassed(), 20.0)
    assert isinstance(selection, SelectCheckpoint)
    assert job.handle(CheckpointSelected(4, BASE, 9000, None, None, DISK), 12.0) == [SendGo(4, BASE)]


def test_an_operators_step_outlives_a_directory_that_can_not_be_used_for_a_while() -> None:
    job = waiting()
    job.handle(BeginAtRequested(80), 8.0)
    job.handle(StartRequested(), 8.0)
    job.handle(SelectionFailed(3, "a live worker holds it", permanent=True, errno=errno.EBUSY), 9.0)
    job.handle(WorkerExited(3, signal=9), 10.0)
    assert job.state is State.BACKOFF
    job.handle(DeadlinePassed(), 20.0)

    *_, selection = job.handle(StorageSeen(3, None, None, 100, DISK), 20.1)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at == 80


def test_a_stop_withdraws_from_scratch() -> None:
    job = waiting()
    job.handle(BeginAtRequested(), 8.0)
    assert WithdrawOrder() in job.handle(StopRequested(), 9.0)
    *_, selection = job.handle(StartRequested(), 10.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at is None
    assert selection.newest is not None


def test_another_choice_withdraws_the_one_before() -> None:
    job = waiting()

    assert job.handle(BeginAtRequested(), 8.0) == []
    assert job.handle(BeginAtRequested(), 9.0) == []
    assert job.handle(BeginAtRequested(80), 10.0) == [WithdrawOrder()]


def training_below_a_mount_point(saved_step: int | None) -> Job:
    """Began on the root file system; a save has just been refused."""
    job = started(Job(POLICY), 0.0)
    job.handle(CheckpointSelected(1, None, None, mount=ROOT), 1.0)
    job.handle(TrainingRestored(1, 0), 2.0)
    job.handle(StepsDone(1, 90), 3.0)
    if saved_step is not None:
        job.handle(CheckpointCommitted(1, saved_step), 4.0)
    refused = CheckpointSaveFailed(1, "another file system", step=90)
    assert job.handle(refused, 5.0) == [LookAtStorage(1, newest=job.facts.account.newest)]
    return job


@pytest.mark.parametrize(
    ("saved_step", "highest_step", "mount", "ends"),
    [
        (None, None, DISK, True),  # nothing was told as saved: it begins on the volume
        (None, 5000, DISK, True),  # the run of an earlier host
        (80, 80, DISK, True),
        (80, 70, DISK, False),  # what is on the volume is older than what was told as saved
        (80, None, DISK, False),
        (80, 80, ROOT, False),  # it failed for another reason
        (80, 80, None, False),
    ],
)
def test_volume_mounted_over_a_run_ends_the_attempt_only_if_it_holds_all_that_was_told(
    saved_step: int | None, highest_step: int | None, mount: str | None, ends: bool
) -> None:
    job = training_below_a_mount_point(saved_step)

    effects = job.handle(StorageSeen(1, None, None, highest_step, mount), 6.0)

    assert effects == ([Kill(1)] if ends else [])
    if ends:
        assert job.facts.current.decided_end is not None
        cause, text = job.facts.current.decided_end
        assert cause is Cause.STORAGE and f"is now on {DISK}, which was mounted meanwhile" in text


def test_disk_that_is_unmounted_below_a_run_does_not_end_the_attempt() -> None:
    job = started(Job(POLICY), 0.0)
    job.handle(CheckpointSelected(1, None, None, mount=DISK), 1.0)
    job.handle(TrainingRestored(1, 0), 2.0)
    job.handle(StepsDone(1, 90), 3.0)
    job.handle(CheckpointSaveFailed(1, "another file system", step=90), 5.0)

    assert job.handle(StorageSeen(1, None, None, None, ROOT), 6.0) == []
    assert job.handle(StorageSeen(1, "its file system fails", errno.EIO), 7.0) == []


def test_what_a_run_below_a_volume_left_in_memory_is_not_gone_on_from() -> None:
    job = training_below_a_mount_point(None)
    job.handle(CopiesHeld(1, is_held=True), 5.5)

    assert job.handle(StorageSeen(1, None, None, 5000, DISK), 6.0) == [ReleaseMemory(1), Kill(1)]
    record, *others = job.handle(WorkerExited(1, signal=9), 7.0)
    assert isinstance(record, RecordEnd) and others == []


def test_a_later_daemon_knows_what_the_directory_has_to_hold() -> None:
    job = trained_to(100)
    later = Job(POLICY)
    later.skip_attempts(2)
    later.facts.account = job.facts.account
    later.recall_persisted(facts_to_persist(job.facts, 6.0), 0.0, 1.0)
    later.handle(StartRequested(resumes=True), 1.0)

    assert later.handle(CheckpointSelected(3, None, None, mount=DISK), 2.0) == [Kill(3)]


def test_after_a_rollback_the_older_checkpoint_is_the_newest_once_it_is_restored() -> None:
    job = trained_to(100)
    given_up = RejectedCheckpoint("step-0000000100.a1", "given up", OlderBecause.ROLLED_BACK)
    path = "/data/digits/step-0000000080.a1"
    job.handle(CheckpointSelected(2, path, 80, None, 80, DISK, given_up), 6.0)
    assert (job.facts.account.newest or pytest.fail()).step == 100

    job.handle(TrainingRestored(2, 80), 7.0)

    assert (job.facts.account.newest or pytest.fail()).step == 80
    assert (job.facts.current.older or pytest.fail()).because is OlderBecause.ROLLED_BACK


def test_an_attempt_that_restored_nothing_leaves_the_reason_to_the_next_one() -> None:
    job = trained_to(100)
    damaged = RejectedCheckpoint("step-0000000100.a1", "ckpt.index: checksum")
    path = "/data/digits/step-0000000080.a1"
    job.handle(CheckpointSelected(2, path, 80, None, 80, DISK, damaged), 6.0)
    job.handle(WorkerExited(2, signal=9), 7.0)
    job.handle(DeadlinePassed(), 20.0)
    job.handle(CheckpointSelected(3, path, 80, None, 80, DISK, damaged), 21.0)

    assert (job.facts.current.older or pytest.fail()).because is OlderBecause.DAMAGED


@pytest.mark.parametrize("commits", [True, False])
def test_a_start_that_can_not_tell_the_file_system_does_not_make_an_unmounted_disk_look_cleared(commits: bool) -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, highest_step=100, mount=None), 6.0)
    job.handle(TrainingRestored(2, 100), 7.0)
    job.handle(StepsDone(2, 200), 8.0)
    if commits:
        job.handle(CheckpointCommitted(2, 200), 9.0)
    job.handle(WorkerExited(2, signal=9), 10.0)
    job.handle(StartRequested(), 10.0)  # where it has given up
    job.handle(SpawnSucceeded(3), 10.0)

    older = "/data/digits/step-0000000050.a1"
    assert job.handle(CheckpointSelected(3, older, 50, highest_step=50, mount=ROOT), 11.0) == [Kill(3)]


def test_newest_deleted_on_the_same_disk_goes_on_and_says_so() -> None:
    job = trained_to(100)
    path = "/data/digits/step-0000000080.a1"

    assert job.handle(CheckpointSelected(2, path, 80, None, 80, DISK), 6.0) == [SendGo(2, path)]
    assert (job.facts.current.older or pytest.fail()).because is OlderBecause.DELETED
    assert "step 100" in (job.facts.current.older or pytest.fail()).text


def test_another_directory_in_the_configuration_is_not_trained_in_without_the_newest_checkpoint() -> None:
    job = trained_to(100)
    later = Job(replace(POLICY, checkpoint_dir="/data/new"))
    later.skip_attempts(2)
    later.facts.account = job.facts.account
    later.recall_persisted(facts_to_persist(job.facts, 6.0), 0.0, 1.0)
    later.handle(StartRequested(), 1.0)

    assert later.handle(CheckpointSelected(3, None, None, mount=DISK), 2.0) == [Kill(3)]
    assert "checkpoint_dir is now /data/new" in str(later.facts.current.decided_end)
    assert "mount the disk" not in str(later.facts.current.decided_end), "the disk is not what is wrong"


@pytest.mark.parametrize("step", [100, 120])
def test_another_directory_that_has_the_newest_checkpoint_is_trained_in(step: int) -> None:
    job = trained_to(100)
    later = Job(replace(POLICY, checkpoint_dir="/data/new"))
    later.skip_attempts(2)
    later.facts.account = job.facts.account
    later.handle(StartRequested(), 1.0)
    path = f"/data/new/step-{step:010d}.a1"

    assert later.handle(CheckpointSelected(3, path, step, None, step, DISK), 2.0) == [SendGo(3, path)]
    later.handle(TrainingRestored(3, step), 3.0)
    assert (later.facts.account.newest or pytest.fail()).directory == "/data/new"


def test_what_another_host_has_put_into_the_mirror_is_waited_for() -> None:
    job = trained_to(100)
    job.handle(CheckpointMirrored("step-0000000128.a7", "s3://team/digits", 2), 6.0)
    path = "/data/digits/step-0000000100.a1"

    assert job.handle(CheckpointSelected(2, path, 100, None, 100, DISK), 7.0) == [Kill(2)]
    assert "its mirror s3://team/digits has it" in str(job.facts.current.decided_end)


def test_a_checkpoint_of_another_host_in_the_mirror_does_not_make_an_unmounted_disk_look_like_a_place_for_it() -> None:
    job = trained_to(100)

    job.handle(CheckpointMirrored("step-0000000128.a7", "s3://team/digits", 2), 6.0)

    assert is_unmounted(job.facts.account.newest or pytest.fail(), SeenDirectory("/data/digits", None, ROOT))


def test_a_rank_of_a_gang_records_the_checkpoint_that_the_chief_has_named() -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, None, 100, DISK), 6.0)
    job.handle(StepsDone(2, 120), 7.0)
    job.handle(CheckpointCommitted(2, 120, name="step-0000000120.a9"), 8.0)
    assert (job.facts.account.newest or pytest.fail()).name == "step-0000000120.a9"

    job.handle(CheckpointCommitted(2, 130, name="step-0000000999.a9"), 9.0)
    assert (job.facts.account.newest or pytest.fail()).name == "step-0000000130.a2", "a name of another step is none"


def test_commit_that_was_in_the_mirror_first_stays_known_as_such() -> None:
    """On nodes with folders of their own: a start that lacks it has to wait, and not to take it for deleted."""
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, None, 100, DISK), 6.0)
    job.handle(StepsDone(2, 120), 7.0)
    job.handle(CheckpointMirrored("step-0000000120.a2", "s3://team/digits", 3), 7.5)
    job.handle(CheckpointCommitted(2, 120), 8.0)

    newest = job.facts.account.newest
    assert newest is not None
    assert (newest.step, newest.mirror, newest.epoch) == (120, "s3://team/digits", 3)


def test_answer_with_the_restored_checkpoint_does_not_make_an_old_rollback_the_reason_for_its_loss() -> None:
    """It counted as if its own attempt had made it the newest: what was given up before explained that it was gone."""
    old, given_up = "step-0000000100.a1", RejectedCheckpoint("step-0000000200.a1", "nan", OlderBecause.ROLLED_BACK)
    job = trained_to(200)
    job.facts.restore_below_step = 150
    job.handle(CheckpointSelected(2, f"/data/digits/{old}", 100, None, 100, DISK, given_up), 6.0)
    job.handle(TrainingRestored(2, 100), 7.0)
    job.handle(StepsDone(2, 100), 8.0)
    job.handle(CheckpointCommitted(2, 100, (1,), name=old, is_repeated=True), 9.0)
    assert job.facts.account.newest is not None and job.facts.account.newest.name == old
    job.handle(WorkerExited(2, signal=9), 10.0)
    started(job, 100.0)
    assert (job.state, job.facts.attempt) == (State.STARTING, 3)

    path, step = "/data/digits/step-0000000050.a1", 50
    job.handle(CheckpointSelected(3, path, step, None, step, DISK, given_up), 101.0)

    older = job.facts.current.older
    assert older is not None and older.because is OlderBecause.DELETED


def test_rank_with_a_folder_of_its_own_believes_the_chiefs_reason_for_an_older_one_and_no_silence() -> None:
    job = trained_to(100)
    job.handle(CheckpointMirrored("step-0000000128.a7", "s3://team/digits", 2), 6.0)
    path = "/data/digits/step-0000000100.a1"
    other = trained_to(100)
    other.handle(CheckpointMirrored("step-0000000128.a7", "s3://team/digits", 2), 6.0)
    reason = StatedReason(OlderBecause.SUSPECT, "attempts keep dying", 128)

    assert job.handle(CheckpointSelected(2, path, 100, None, 100), 7.0) == [Kill(2)]
    assert other.handle(CheckpointSelected(2, path, 100, None, 100, stated=reason), 7.0) == [SendGo(2, path)]
    assert other.facts.current.older is not None
    assert other.facts.current.older.because is OlderBecause.SUSPECT


def test_chief_tells_the_others_why_it_begins_from_an_older_one() -> None:
    job = Job(replace(POLICY, is_gang=True))
    job.facts.account = trained_to(100).facts.account
    job.handle(BeginAtRequested(80), 8.0)
    started(job, 8.0)
    path = "/data/digits/step-0000000080.a1"

    (go,) = job.handle(CheckpointSelected(1, path, 80, None, 80, DISK), 9.0)
    assert isinstance(go, SendGo) and go.stated is not None
    assert (go.stated.because, go.stated.newest_step) == (OlderBecause.OPERATOR, 100)


def test_an_older_checkpoint_in_the_mirror_changes_nothing() -> None:
    job = trained_to(100)
    before = job.facts.account
    job.handle(CheckpointMirrored("step-0000000080.a1", "s3://team/digits", 1), 6.0)

    assert job.facts.account is before


def test_an_operator_chooses_an_older_step() -> None:
    job = waiting()
    job.handle(BeginAtRequested(80), 8.0)
    _, selection = job.handle(StartRequested(), 8.0)
    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at == 80
    path = "/data/digits/step-0000000080.a1"

    assert job.handle(CheckpointSelected(3, path, 80, None, 80, ROOT), 9.0) == [SendGo(3, path, gives_up_newer=True)]
    assert (job.facts.current.older or pytest.fail()).because is OlderBecause.OPERATOR


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("step", [0, 80])
def test_a_stop_withdraws_no_order_for_which_checkpoints_are_set_aside(step: int, is_late: bool) -> None:
    """The next start would miss them, and wait for ever or say that somebody deleted them."""
    job = waiting()
    job.handle(BeginAtRequested(step), 8.0)
    job.handle(StartRequested(), 8.0)
    for event in (
        (StopRequested(), CheckpointsSetAside(3, step))
        if is_late
        else (
            CheckpointsSetAside(3, step),
            StopRequested(),
        )
    ):
        job.handle(event, 9.0)
    job.handle(WorkerExited(3, signal=15), 10.0)
    assert job.state is State.STOPPED
    *_, selection = job.handle(StartRequested(), 11.0)
    assert isinstance(selection, SelectCheckpoint) and selection.begin_at == step

    path = f"/data/digits/step-{step:010}.a1" if step else None
    (go,) = job.handle(CheckpointSelected(4, path, step or None, None, step or None, ROOT), 12.0)
    assert isinstance(go, SendGo) and go.gives_up_newer
    job.handle(TrainingRestored(4, step), 13.0)
    job.handle(StopRequested(), 14.0)
    assert (job.facts.begin_at, job.facts.set_aside) == (None, None)


def test_a_step_of_which_there_is_no_checkpoint_is_not_asked_for_again() -> None:
    job = waiting()
    job.handle(BeginAtRequested(80), 8.0)
    job.handle(StartRequested(), 8.0)
    job.handle(SelectionFailed(3, "no such step", permanent=True), 9.0)
    job.handle(WorkerExited(3, signal=9), 10.0)
    *_, selection = job.handle(StartRequested(), 11.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.begin_at is None


@pytest.mark.parametrize(
    ("number", "state"),
    [(errno.EIO, State.BACKOFF), (errno.EACCES, State.BACKOFF), (errno.ENOTDIR, State.FAILED)],
)
def test_a_directory_that_worked_and_fails_is_waited_for_unless_it_is_no_directory(number: int, state: State) -> None:
    job = trained_to(100)
    for attempt in range(2, 6):
        job.handle(SelectionFailed(attempt, "cannot use it", permanent=True, errno=number), 10.0 * attempt)
        job.handle(WorkerExited(attempt, signal=9), 10.0 * attempt + 1)
        assert (job.state, job.facts.reason) == (state, "cannot use it")
        if state is State.FAILED:
            return
        job.handle(DeadlinePassed(), 10.0 * attempt + 5)
        job.handle(StorageSeen(attempt, None, None, 100, DISK), 10.0 * attempt + 6)
        assert job.state is State.STARTING


def test_a_worker_that_cannot_write_makes_the_job_wait_until_a_file_can_be_written() -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, None, 100, DISK), 6.0)
    job.handle(FailureReported(2, "cannot use it: No space left", errno=errno.ENOSPC), 7.0)
    job.handle(WorkerExited(2, code=WorkerExit.DIRECTORY_UNUSABLE), 8.0)

    assert (job.state, job.facts.reason) == (State.BACKOFF, "cannot use it: No space left")
    assert job.handle(DeadlinePassed(), 9.0) == [LookAtStorage(2, True, job.facts.account.newest)]
    job.handle(StorageSeen(2, "cannot use it: full", errno.ENOSPC), 9.0)
    assert job.facts.reason == "cannot use it: full"
    assert kinds(job.handle(StorageSeen(2, None, None, 100, DISK), 11.0)) == [Spawn, SelectCheckpoint]


def test_an_unreadable_checkpoint_is_waited_for_and_then_an_older_one_is_used() -> None:
    job = trained_to(100)
    job.handle(SelectionFailed(2, "cannot read it", permanent=False, errno=errno.EIO, older_readable=True), 6.0)
    job.handle(WorkerExited(2, signal=9), 7.0)

    job.handle(DeadlinePassed(), 8.0)
    assert job.handle(StorageSeen(2, "cannot read it", errno.EIO), 9.0) == []
    *_, selection = job.handle(StorageSeen(2, "cannot read it", errno.EIO), 130.0)

    assert isinstance(selection, SelectCheckpoint)
    assert selection.pass_over_unreadable


def test_a_directory_that_does_not_answer_is_waited_for() -> None:
    job = trained_to(100)
    job.handle(DeadlinePassed(), 1000.0)
    job.handle(WorkerExited(2, signal=6), 1001.0)

    assert job.state is State.BACKOFF
    assert "cannot read checkpoint_dir /data/digits: it did not answer" in (job.facts.reason or "")
    assert job.handle(DeadlinePassed(), 1002.0) == [LookAtStorage(2, newest=job.facts.account.newest)]


def test_an_order_that_comes_while_the_worker_stops_is_not_that_workers() -> None:
    """It was restoring as it was told to stop, and says so only now."""
    job = started(Job(POLICY), 0.0)
    job.handle(CheckpointSelected(1, "/data/digits/step-0000000100.a7", 100, None, 100, DISK), 1.0)
    job.handle(StopRequested(), 2.0)
    job.handle(BeginAtRequested(0), 3.0)
    job.handle(StartRequested(), 3.0)

    job.handle(TrainingRestored(1, 100), 4.0)
    effects = job.handle(WorkerExited(1, code=WorkerExit.STOPPED), 5.0)

    assert [effect.begin_at for effect in effects if isinstance(effect, SelectCheckpoint)] == [0]
    job.handle(SpawnSucceeded(2), 6.0)
    job.handle(CheckpointSelected(2, None, None, mount=DISK), 7.0)
    job.handle(TrainingRestored(2, 0), 8.0)
    assert job.facts.begin_at is None


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("step", [0, None])
def test_a_job_that_turns_out_to_be_done_begins_anew_if_an_operator_has_said_so_since(
    step: int | None, is_seen: bool
) -> None:
    job = trained_to(100)
    job.handle(CheckpointSelected(2, "/data/digits/step-0000000100.a1", 100, None, 100, DISK), 6.0)
    job.handle(TrainingRestored(2, 100), 7.0)
    job.handle(StepsDone(2, 101), 8.0)
    job.handle(StopRequested(), 9.0)
    if step is not None:
        job.handle(BeginAtRequested(step), 9.5)
    job.handle(StartRequested(), 9.5)
    job.handle(DoneReported(2), 10.0)
    if not is_seen:  # the daemon is killed, and another one comes
        later, persisted = Job(POLICY), facts_to_persist(job.facts, 10.5)
        later.skip_attempts(2)
        later.facts.account, later.facts.wanted = job.facts.account, True
        later.recall_persisted(persisted, 11.0, 0.0)
        job = later

    effects = job.handle(WorkerExited(2, code=0) if is_seen else AttemptLost(2, True, None, None), 11.0)

    assert [effect.cause for effect in effects if isinstance(effect, RecordEnd)] == [Cause.DONE]
    assert [effect.begin_at for effect in effects if isinstance(effect, SelectCheckpoint)] == [0] * (step is not None)
    assert job.state is (State.SUCCEEDED if step is None else State.STARTING)
