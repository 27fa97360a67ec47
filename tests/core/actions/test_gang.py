"""A rank of a gang: one attempt for each start of all, and an end at once if another rank is gone."""

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import effects, events
from supervisor.core.program.facts import Policy, State
from supervisor.protocol.checkpoints.account import StatedReason
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire.exits import WorkerExit


def training() -> Job:
    job = Job(Policy("train", is_job=True, is_gang=True))
    job.handle(events.StartRequested(), 0.0)
    job.handle(events.SpawnSucceeded(1), 0.0)
    job.handle(events.CheckpointSelected(1, None, None), 0.0)
    job.handle(events.TrainingRestored(1, 0), 1.0)
    job.handle(events.StepsDone(1, 5), 2.0)
    assert job.state is State.RUNNING
    return job


def cause_of(decided: list[effects.Effect]) -> str:
    return next(effect.cause for effect in decided if isinstance(effect, effects.RecordEnd))


def test_a_worker_that_died_is_not_started_again_here():
    job = training()
    decided = job.handle(events.WorkerExited(1, signal=9), 3.0)
    assert job.state is State.STOPPED and job.facts.wanted
    assert not any(isinstance(effect, effects.Spawn) for effect in decided)
    assert cause_of(decided) == Cause.CRASH
    assert job.facts.failures.by_cause == {Cause.CRASH: 1}


def test_it_begins_again_with_all_others_without_a_pause_of_its_own_and_its_failures_count_on():
    job = training()
    job.handle(events.WorkerExited(1, signal=9), 3.0)

    decided = job.handle(events.GangBegins(), 3.1)

    assert effects.Spawn(2, 1) in decided and job.state is State.STARTING
    assert job.facts.failures.by_cause == {Cause.CRASH: 1}


def test_it_does_not_begin_again_with_the_others_once_it_was_told_to_stop():
    job = training()
    job.handle(events.WorkerExited(1, signal=9), 3.0)
    job.handle(events.StopRequested(), 3.05)

    assert not job.handle(events.GangBegins(), 3.1)
    assert job.state is State.STOPPED


def test_a_broken_gang_kills_the_worker_and_counts_nothing_here():
    job = training()
    assert effects.Kill(1) in job.handle(events.GangBroken("rank 1 (n2) was lost"), 3.0)
    decided = job.handle(events.WorkerExited(1, signal=9), 3.1)
    assert job.state is State.STOPPED and job.facts.wanted
    assert cause_of(decided) == Cause.LOST
    assert not job.facts.failures.by_cause


def test_a_flush_of_a_broken_gang_is_not_waited_for():
    job = training()
    job.handle(events.ProgramClosed("shutdown"), 3.0)
    assert job.state is State.FLUSHING
    assert effects.Kill(1) in job.handle(events.GangBroken("rank 1 (n2) was lost"), 3.1)


def test_a_stop_that_another_rank_was_told_counts_nothing():
    job = training()
    decided = job.handle(events.WorkerExited(1, code=int(WorkerExit.STOPPED)), 3.0)
    assert (job.state, cause_of(decided)) == (State.STOPPED, Cause.STOPPED)


def test_a_rank_whose_host_goes_away_says_so_once_it_has_saved():
    job = training()
    going = Notice("file", "rack", NoticeKind.PREEMPTION, Certainty.CERTAIN, 20.0, is_cancellable=False, text="rack 7")
    job.handle(events.NoticeReceived(going), 3.0)
    job.handle(events.CheckpointCommitted(1, 6, (1,)), 4.0)
    job.handle(events.WorkerExited(1, code=int(WorkerExit.STOPPED)), 19.0)
    assert (job.state, job.facts.waits_for_host) == (State.BACKOFF, True)


def test_failures_without_progress_are_given_up_as_elsewhere():
    job = training()
    for _ in range(job.facts.policy.startretries):
        job.handle(events.WorkerExited(job.facts.attempt, signal=9), 3.0)
        if job.state is State.BACKOFF:
            job.expire(1000.0)
        assert job.state is State.STOPPED
        job.facts.launched = False  # the next daemon
        job.handle(events.StartRequested(resumes=True), 1000.0)
        job.handle(events.SpawnSucceeded(job.facts.attempt), 1000.0)
    job.handle(events.WorkerExited(job.facts.attempt, signal=9), 1001.0)
    assert job.state is State.FAILED


def test_a_plain_program_of_a_broken_gang_is_not_tried_again_here():
    job = Job(Policy("web", is_job=False, is_gang=True, startsecs=0.0))
    job.handle(events.StartRequested(), 0.0)
    job.handle(events.SpawnSucceeded(1), 0.0)
    job.handle(events.GangBroken("rank 1 (n2) was lost"), 3.0)

    job.handle(events.WorkerExited(1, signal=9), 3.1)

    assert job.state is State.STOPPED and job.facts.wanted
    assert not job.facts.failures.by_cause


FOLDER, STORE = "/local/train", "s3://bucket/train"


def on_own_disk(attempt: int) -> Job:
    """A rank that trains from step 143, with attempts from this one on, where each node has a folder of its own."""
    job = Job(Policy("train", is_job=True, is_gang=True, checkpoint_dir=FOLDER, startretries=5))
    job.skip_attempts(attempt - 1)
    job.handle(events.StartRequested(), 0.0)
    begin(job, 143, "step-0000000143.a1")
    return job


def begin(job: Job, step: int, name: str, stated: StatedReason | None = None) -> list[effects.Effect]:
    """The present attempt is given that checkpoint, and has restored it unless it may not."""
    number = job.facts.attempt
    job.handle(events.SpawnSucceeded(number), 0.0)
    path = f"{FOLDER}/{name}"
    decided = job.handle(events.CheckpointSelected(number, path, step, highest_step=step, stated=stated), 0.0)
    if any(isinstance(effect, effects.SendGo) for effect in decided):
        job.handle(events.TrainingRestored(number, step), 0.0)
        job.handle(events.StepsDone(number, step + 1), 0.0)
    return decided


def next_turn(job: Job) -> None:
    job.handle(events.GangBroken("another rank ended"), 0.0)
    if job.state is not State.STOPPED:
        job.handle(events.WorkerExited(job.facts.attempt, signal=9), 0.0)
    job.handle(events.GangBegins(), 0.0)


def diverge(job: Job, step: int) -> None:
    number = job.facts.attempt
    job.handle(events.FailureReported(number, "loss is nan", step, go_back=True), 0.0)
    job.handle(events.WorkerExited(number, WorkerExit.DIVERGED), 0.0)


def test_checkpoint_that_only_the_mirror_has_is_given_up_once_training_diverged():
    job = on_own_disk(2)
    job.handle(events.CheckpointCommitted(2, 150), 0.0)
    job.handle(events.CheckpointMirrored("step-0000000150.a2", STORE, 1), 0.0)
    diverge(job, 151)
    next_turn(job)

    decided = begin(job, 143, "step-0000000143.a1")

    (go,) = decided
    assert isinstance(go, effects.SendGo) and go.stated is not None
    assert (go.stated.because, go.stated.newest_step) == (OlderBecause.ROLLED_BACK, 150)
    assert job.facts.account.newest is not None and job.facts.account.newest.step == 143


def test_checkpoint_is_given_up_also_if_the_next_worker_dies_before_it_has_restored():
    job = on_own_disk(2)
    job.handle(events.CheckpointCommitted(2, 150), 0.0)
    job.handle(events.CheckpointMirrored("step-0000000150.a2", STORE, 1), 0.0)
    diverge(job, 151)
    next_turn(job)
    job.handle(events.CheckpointSelected(3, f"{FOLDER}/step-0000000143.a1", 143, highest_step=143), 0.0)
    next_turn(job)

    decided = begin(job, 143, "step-0000000143.a1")

    assert any(isinstance(effect, effects.SendGo) for effect in decided)
    assert job.facts.restore_below_step is None


def test_node_whose_attempts_have_other_numbers_than_the_chiefs_goes_back_with_the_others():
    job = on_own_disk(1)
    job.handle(events.CheckpointMirrored("step-0000000150.a2", STORE, 1), 0.0)  # the chief's second attempt
    next_turn(job)
    assert job.facts.attempt == 2
    begin(job, 143, "step-0000000143.a1", StatedReason(OlderBecause.ROLLED_BACK, "training diverged", 150))
    next_turn(job)

    decided = begin(job, 143, "step-0000000143.a1")

    assert any(isinstance(effect, effects.SendGo) for effect in decided), job.reason


def test_rank_that_alone_has_seen_a_divergence_says_where_all_begin_until_its_worker_has_restored():
    job = on_own_disk(1)  # a spare one before: its attempts have lower numbers than the chief's
    job.handle(events.FailureReported(1, "loss is nan", 151, go_back=True, gang_attempt=7), 0.0)
    assert job.facts.divergence is None
    job.handle(events.WorkerExited(1, WorkerExit.DIVERGED), 0.0)

    assert job.facts.divergence == SeenDivergence(150, 7)
    next_turn(job)
    assert job.facts.divergence == SeenDivergence(150, 7)
    begin(job, 143, "step-0000000143.a1", StatedReason(OlderBecause.ROLLED_BACK, "training diverged", 150))
    assert job.facts.divergence is None


def test_rank_that_diverges_again_says_an_older_step_each_time():
    job = on_own_disk(2)
    for step, below in ((151, 150), (148, 143)):
        diverge(job, step)
        assert job.facts.restore_below_step == below
        next_turn(job)
        begin(job, 143, "step-0000000143.a1")


def test_chief_goes_back_for_what_another_rank_has_seen_also_if_its_worker_dies_before_it_has_restored():
    job = on_own_disk(2)
    job.handle(events.CheckpointCommitted(2, 150), 0.0)
    job.handle(events.CheckpointMirrored("step-0000000150.a2", STORE, 1), 0.0)
    next_turn(job)
    for below in (150, None):  # the other rank, or its ledger, may be gone by then
        number, path = job.facts.attempt, f"{FOLDER}/step-0000000143.a1"
        selected = events.CheckpointSelected(number, path, 143, highest_step=143, below_step=below)

        (go,) = job.handle(selected, 0.0)

        assert isinstance(go, effects.SendGo) and go.stated is not None
        assert go.stated.because is OlderBecause.ROLLED_BACK
        job.handle(events.GangBroken("another rank ended"), 0.0)
        job.handle(events.WorkerExited(number, signal=9), 0.0)
        decided = job.handle(events.GangBegins(), 0.0)
        assert any(isinstance(effect, effects.SelectCheckpoint) and effect.restore_below_step == 150
                   for effect in decided)  # fmt: skip


def test_divergence_that_this_rank_has_reported_holds_although_another_rank_ends_first():
    job = on_own_disk(2)
    job.handle(events.FailureReported(2, "loss is nan", 151, go_back=True), 0.0)
    job.handle(events.GangBroken("rank 1 (n2): its worker ended"), 0.0)

    decided = job.handle(events.WorkerExited(2, signal=9), 0.0)

    assert cause_of(decided) == Cause.DIVERGENCE
    assert job.facts.restore_below_step == 150
