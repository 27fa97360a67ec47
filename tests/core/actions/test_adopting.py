"""What becomes of an attempt that an earlier daemon began."""

from dataclasses import replace

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program.effects import (
    Abort,
    Kill,
    RecordEnd,
    RecordWanted,
    RequestFlush,
    RequestIdentity,
    SelectCheckpoint,
    Spawn,
    Terminate,
)
from supervisor.core.program.events import (
    AttemptFound,
    AttemptLost,
    CheckpointCommitted,
    DoneReported,
    FailureReported,
    FlushRequested,
    MemorySalvaged,
    NoticeReceived,
    ProgramClosed,
    RestartRequired,
    SavesMeasured,
    ShutdownHurried,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
    WorkerIdentified,
)
from supervisor.core.program.facts import AutoRestart, Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Phase, Then

JOB = Policy(name="digits", is_job=True, startretries=3, startup_timeout=60, flush_timeout=20, stopwaitsecs=10)
PLAIN = Policy(name="web", is_job=False, startsecs=5, stopwaitsecs=10)


def taken_up(policy: Policy = JOB, wanted: bool = True) -> Job:
    """Before anything happened: attempt 7 is the ledger's last."""
    job = Job(policy)
    job.facts.wanted = wanted
    job.skip_attempts(7)
    return job


def adopted(policy: Policy = JOB, wanted: bool = True, outdated: bool = False) -> Job:
    job = taken_up(policy, wanted)
    job.handle(AttemptFound(7, age_s=0.0, outdated=outdated), 1000.0)
    return job


def notice(deadline_at: float | None, certainty: Certainty = Certainty.CERTAIN) -> Notice:
    return Notice("aws", "1", NoticeKind.PREEMPTION, certainty, deadline_at, is_cancellable=True, text="spot")


def training(wanted: bool = True, outdated: bool = False, **said: object) -> tuple[Job, list[object]]:
    job = adopted(wanted=wanted, outdated=outdated)
    job.handle(StepsDone(7, 40), 1001.0)
    return job, list(job.handle(WorkerIdentified(7, Phase.TRAINING, step=41, **said), 1002.0))  # type: ignore[arg-type]


def test_worker_that_is_found_is_asked_where_it_stands_and_has_time_to_import_what_it_needs_for_that():
    job = taken_up()

    assert job.handle(AttemptFound(7, age_s=0.0), 1000.0) == [RequestIdentity(7)]
    assert (job.state, job.deadline()) == (State.ADOPTING, 1060.0)


@pytest.mark.parametrize(("age_s", "due_at"), [(25.0, 1035.0), (55.0, 1020.0), (5000.0, 1020.0)])
def test_another_daemon_gives_a_worker_no_new_startup_timeout_but_time_to_answer(age_s: float, due_at: float):
    job = taken_up()

    job.handle(AttemptFound(7, age_s), 1000.0)

    assert job.deadline() == due_at
    assert job.expire(due_at) == [Abort(7)]
    assert job.handle(WorkerExited(7, signal=6), due_at)[0] == RecordEnd(
        7,
        "startup-timeout",
        "did not train within 60 s (startup_timeout) of its start, nor report its status to the daemon that adopted it",
    )


def test_worker_that_restores_has_what_is_left_of_its_start():
    job = taken_up()
    job.handle(AttemptFound(7, age_s=25.0), 1000.0)

    job.handle(WorkerIdentified(7, Phase.RESTORING), 1002.0)

    assert (job.state, job.deadline()) == (State.STARTING, 1035.0)


def test_time_that_an_earlier_daemon_gave_a_worker_for_its_start_is_kept():
    waited = taken_up()
    waited.handle(AttemptFound(7, age_s=500.0), 1000.0)
    waited.handle(WorkerIdentified(7, Phase.WAITING), 1002.0)  # nobody was there to tell it to go
    job = taken_up()
    job.recall_persisted(facts_to_persist(waited.facts, 1010.0), 2000.0, 0.0)

    job.handle(AttemptFound(7, age_s=515.0), 2000.0)

    assert (waited.deadline(), job.deadline()) == (1062.0, 2047.0)


def test_worker_that_an_earlier_daemon_saw_train_and_that_does_not_answer_is_supervised_like_any_other():
    trained, _ = training()
    job = taken_up()
    job.recall_persisted(facts_to_persist(trained.facts, 1010.0), 2000.0, 0.0)
    job.handle(AttemptFound(7, age_s=5000.0), 2000.0)

    assert job.expire(2020.0) == []
    assert job.state is State.RUNNING


UNFIT = RestartRequired(7, Cause.MEMORY_LIMIT, "held 9 bytes")


def test_worker_that_holds_too_much_flushes_and_leaves_once_it_has_answered():
    job = adopted()
    job.handle(StepsDone(7, 40), 1001.0)

    assert job.handle(UNFIT, 1001.5) == []
    assert job.handle(WorkerIdentified(7, Phase.TRAINING, step=41, flush=3, last_flush=3), 1002.0) == [
        RequestFlush(7, 4, "memory-limit", Then.STOP, 20)
    ]
    job.handle(CheckpointCommitted(7, 42, flushes=(3, 4)), 1003.0)
    assert job.handle(WorkerExited(7, code=143), 1004.0)[0] == RecordEnd(7, "memory-limit", "held 9 bytes")


def test_worker_that_holds_too_much_and_does_not_train_is_told_to_stop():
    answers, silent = adopted(), adopted()
    answers.handle(UNFIT, 1001.5)
    for second in range(30):
        silent.handle(UNFIT, 1001.5 + second)  # it is told every second

    assert answers.handle(WorkerIdentified(7, Phase.RESTORING), 1002.0) == [Terminate(7)]
    assert silent.deadline() == 1021.5
    assert silent.expire(1031.0) == [Terminate(7)]
    assert silent.handle(ShutdownHurried(), 1032.0) == [Kill(7)]
    assert silent.handle(WorkerExited(7, signal=9), 1033.0)[0] == RecordEnd(7, "memory-limit", "held 9 bytes")


def test_worker_that_holds_too_much_and_does_steps_but_never_answers_is_asked_for_a_flush():
    job = adopted()
    job.handle(UNFIT, 1000.5)
    job.handle(StepsDone(7, 40), 1001.0)

    (asked,) = job.expire(1011.0)
    assert asked == RequestFlush(7, job.facts.flushes_requested, "memory-limit", Then.STOP, 20)


def test_stop_of_a_worker_that_holds_too_much_is_an_operators():
    job = adopted()
    job.handle(UNFIT, 1000.5)
    job.handle(StopRequested(), 1001.0)

    assert job.handle(ShutdownHurried(), 1002.0) == [Terminate(7)]
    assert job.handle(WorkerExited(7, signal=15), 1003.0)[0].cause == "stopped"  # type: ignore[union-attr]


def test_worker_that_trains_goes_on():
    job, effects = training()

    assert effects == []
    assert (job.state, job.facts.current.step, job.facts.attempt) == (State.RUNNING, 41, 7)


def test_worker_that_waits_for_go_gets_its_checkpoint():
    job = adopted()

    effects = job.handle(WorkerIdentified(7, Phase.WAITING), 1002.0)

    assert effects == [SelectCheckpoint(7)]
    assert (job.state, job.deadline()) == (State.STARTING, 1062.0)


@pytest.mark.parametrize("phase", [Phase.RESTORING, Phase.TRAINING])
def test_worker_that_did_no_step_yet_is_starting_and_is_not_told_to_go_again(phase: Phase):
    job = adopted()

    assert job.handle(WorkerIdentified(7, phase, step=40), 1002.0) == []
    assert job.state is State.STARTING


def test_flush_that_is_not_answered_is_waited_for():
    job, _ = training(flush=3, last_flush=3)

    assert (job.state, job.deadline()) == (State.FLUSHING, 1022.0)
    job.handle(CheckpointCommitted(7, 42, flushes=(3,)), 1003.0)
    assert job.state is State.RUNNING


def test_flush_of_an_earlier_daemon_counts_as_asked_for_when_it_is_heard_of():
    job, _ = training(flush=3, last_flush=3)

    job.handle(CheckpointCommitted(7, 42, flushes=(3,)), 1003.0)

    assert job.facts.flush_s == 1.0


def test_notice_during_a_flush_of_an_earlier_daemon_leaves_it_its_time():
    job, _ = training(flush=3, last_flush=3)

    job.handle(NoticeReceived(notice(None)), 1003.0)

    assert (job.state, job.deadline()) == (State.FLUSHING, 1022.0)


@pytest.mark.parametrize("answers", [True, False])
def test_notice_that_came_before_the_answer_is_flushed_for_after_it(answers: bool):
    job = adopted()
    job.handle(StepsDone(7, 40), 1001.0)
    job.handle(NoticeReceived(notice(None, Certainty.POSSIBLE)), 1001.5)

    answer = WorkerIdentified(7, Phase.TRAINING, step=41)
    effects = job.handle(answer, 1002.0) if answers else job.expire(1011.0)

    assert effects == [RequestFlush(7, job.facts.flushes_requested, "notice", Then.GO_ON, 20)]
    assert job.state is State.FLUSHING


def test_last_flush_for_a_notice_is_due_though_an_earlier_daemons_flush_is_under_way():
    job = adopted()
    job.handle(StepsDone(7, 40, 1.0), 1001.0)
    job.handle(SavesMeasured(5.0), 1001.0)
    job.handle(NoticeReceived(notice(1015.0)), 1001.5)

    job.handle(WorkerIdentified(7, Phase.TRAINING, step=41, flush=3, last_flush=3), 1002.0)

    assert (job.state, job.deadline()) == (State.FLUSHING, 1008.0)  # the host's end, less margin, save and step


def test_hurry_before_the_answer_is_no_crash():
    job = adopted()
    job.handle(ProgramClosed("shutdown"), 1002.0)

    assert job.handle(ShutdownHurried(), 1003.0) == [Terminate(7)]
    record, *_ = job.handle(WorkerExited(7, signal=15), 1004.0)
    assert isinstance(record, RecordEnd)
    assert record.cause == "stopped"


def test_ids_of_flushes_go_on_counting():
    job, _ = training(last_flush=8)

    assert job.handle(FlushRequested("operator"), 1003.0) == [RequestFlush(7, 9, "operator", Then.GO_ON, 20)]


def test_worker_that_was_told_to_stop_is_stopped_and_started_again_where_it_is_wanted():
    job, effects = training(flush=3, last_flush=3, then=Then.STOP)
    job.handle(CheckpointCommitted(7, 42, flushes=(3,)), 1003.0)

    assert effects == []
    record, *following = job.handle(WorkerExited(7, code=143), 1004.0)
    assert isinstance(record, RecordEnd)
    assert record.cause == "stopped"
    assert following == [Spawn(8), SelectCheckpoint(8)]


def test_worker_that_a_signal_told_to_stop_has_as_long_as_a_flush():
    job, _ = training(then=Then.STOP)

    assert (job.state, job.deadline()) == (State.STOPPING, 1022.0)


def test_worker_that_leaves_as_told_before_it_said_so_was_stopped():
    job = adopted(wanted=False)

    effects = job.handle(WorkerExited(7, code=143), 1001.0)

    assert effects == [RecordEnd(7, "stopped", "stopped (requested before this daemon started)")]
    assert job.state is State.STOPPED


def test_worker_that_nobody_wants_flushes_and_stops():
    job, effects = training(wanted=False)

    assert effects == [RequestFlush(7, 1, "stop", Then.STOP, 20)]
    assert job.state is State.FLUSHING


def test_worker_of_another_configuration_flushes_and_is_started_anew():
    job, effects = training(outdated=True)
    job.handle(CheckpointCommitted(7, 42, flushes=(1,)), 1003.0)

    assert effects == [RequestFlush(7, 1, "update", Then.STOP, 20)]
    assert job.handle(WorkerExited(7, code=143), 1004.0)[1:] == [Spawn(8), SelectCheckpoint(8)]
    assert not job.facts.current.outdated


def test_worker_that_nobody_wants_and_that_waits_for_go_is_only_terminated():
    job = adopted(wanted=False)

    assert job.handle(WorkerIdentified(7, Phase.WAITING), 1002.0) == [Terminate(7)]


def test_stop_waits_for_the_answer_no_longer_than_for_a_flush():
    job = adopted()

    assert job.handle(StopRequested(), 1010.0) == [RecordWanted(False)]
    assert (job.state, job.deadline()) == (State.ADOPTING, 1030.0)
    assert job.expire(1030.0) == [Terminate(7)]


def test_a_start_takes_back_the_stop_that_waits_for_the_answer():
    job = adopted()
    job.handle(StopRequested(), 1010.0)

    assert job.handle(StartRequested(), 1020.0) == [RecordWanted(True)]
    assert (job.state, job.deadline()) == (State.ADOPTING, 1060.0)
    job.handle(StepsDone(7, 40), 1045.0)
    assert job.handle(WorkerIdentified(7, Phase.TRAINING, step=40), 1050.0) == []
    assert job.state is State.RUNNING


def test_a_start_leaves_a_worker_that_is_wanted_the_time_it_has():
    job = adopted()

    assert job.handle(StartRequested(), 1020.0) == []
    assert job.deadline() == 1060.0


def test_leaving_daemon_flushes_a_worker_once_it_has_said_where_it_stands():
    job = adopted()
    job.handle(StepsDone(7, 40), 1001.0)
    job.handle(ProgramClosed("shutdown"), 1002.0)

    assert job.handle(WorkerIdentified(7, Phase.TRAINING, step=40), 1003.0) == [
        RequestFlush(7, 1, "shutdown", Then.STOP, 20)
    ]


def test_worker_that_does_steps_and_never_answers_is_supervised_like_any_other():
    job = adopted()
    job.handle(StepsDone(7, 40), 1001.0)

    assert job.expire(1011.0) == []
    assert job.state is State.RUNNING


def test_worker_that_says_and_does_nothing_is_ended_as_one_that_does_not_start():
    job = adopted()

    assert job.expire(1060.0) == [Abort(7)]
    assert job.state is State.STOPPING


def test_plain_program_is_as_old_as_its_process():
    old, young = taken_up(PLAIN), taken_up(PLAIN)
    old.handle(AttemptFound(7, age_s=100.0), 1000.0)
    young.handle(AttemptFound(7, age_s=2.0), 1000.0)

    assert old.state is State.RUNNING
    assert (young.state, young.deadline()) == (State.STARTING, 1003.0)


def test_plain_program_that_nobody_wants_is_stopped():
    job = taken_up(PLAIN, wanted=False)

    assert job.handle(AttemptFound(7, age_s=100.0), 1000.0) == [Terminate(7)]


def test_what_a_worker_saves_is_recorded_in_its_own_directory_and_not_in_that_of_a_new_section():
    before = Job(replace(JOB, checkpoint_dir="/old"))
    before.handle(StartRequested(), 0.0)
    stored = facts_to_persist(before.facts, 1.0)
    job = Job(replace(JOB, checkpoint_dir="/new"))
    job.facts.wanted = True
    job.skip_attempts(1)
    job.recall_persisted(stored, 1000.0, 0.0)
    job.handle(AttemptFound(1, age_s=0.0, outdated=True), 1000.0)

    job.handle(CheckpointCommitted(1, 40), 1001.0)
    assert job.facts.account.newest is not None
    assert job.facts.account.newest.directory == "/old"
    job.handle(MemorySalvaged(1, 41, "step-0000000041.a1", 1.0), 1002.0)

    assert job.facts.account.newest.directory == "/new", "the daemon has written it there"


def test_done_counts_where_the_exit_status_is_not_known():
    job = adopted()
    job.handle(WorkerIdentified(7, Phase.DONE, step=100), 1002.0)

    assert job.handle(WorkerExited(7), 1003.0) == [RecordEnd(7, "done", "done"), RecordWanted(False)]
    assert job.state is State.SUCCEEDED


def test_the_end_of_a_run_is_not_that_of_the_next_one_where_the_exit_status_is_not_known():
    job, _ = training()
    job.handle(DoneReported(7), 1003.0)
    job.handle(TrainingRestored(7, 60), 1004.0)  # the script's next run

    assert job.handle(WorkerExited(7), 1005.0)[0] == RecordEnd(7, "lost", "exit status unknown")
    assert job.facts.wanted


def test_a_failure_that_the_script_has_caught_is_not_the_end_of_its_next_run():
    job, _ = training()
    job.handle(FailureReported(7, "the first run's loss is nan", 3, out_of_memory=True, go_back=True), 1003.0)
    job.handle(TrainingRestored(7, 60), 1004.0)
    job.handle(CheckpointCommitted(7, 500), 1005.0)

    record, *_ = job.handle(WorkerExited(7, WorkerExit.DIVERGED), 1006.0)

    assert record.cause is Cause.DIVERGENCE
    assert "first run" not in record.text
    assert job.facts.restore_below_step is None


def test_end_that_nobody_can_explain_is_no_crash_if_it_brought_steps():
    job, _ = training()

    record, *following = job.handle(WorkerExited(7), 1003.0)

    assert record == RecordEnd(7, "lost", "exit status unknown")
    assert following == [Spawn(8), SelectCheckpoint(8)]
    assert job.facts.failures.by_cause == {}


def test_end_that_nobody_can_explain_is_a_crash_if_it_brought_nothing():
    job = adopted()

    assert job.handle(WorkerExited(7), 1003.0) == [RecordEnd(7, "crash", "exit status unknown")]
    assert job.state is State.BACKOFF


def test_job_that_is_not_to_be_restarted_is_not():
    job = adopted(Policy(name="once", is_job=True, autorestart=AutoRestart.NEVER))
    job.handle(StepsDone(7, 40), 1001.0)

    job.handle(WorkerExited(7), 1003.0)

    assert job.state is State.EXITED


def test_last_words_say_more_than_no_exit_status():
    job, _ = training()
    job.handle(FailureReported(7, "ValueError: no"), 1003.0)

    assert job.handle(WorkerExited(7), 1004.0)[0] == RecordEnd(7, "crash", "ValueError: no (exit status unknown)")


def test_attempt_that_was_done_while_no_daemon_was_there_has_succeeded():
    job = taken_up()

    effects = job.handle(AttemptLost(7, done=True), 1000.0)

    assert effects == [RecordEnd(7, "done", "done, while no daemon was running"), RecordWanted(False)]
    assert job.state is State.SUCCEEDED


def test_attempt_that_was_lost_after_a_checkpoint_is_followed_at_once_and_counts_against_nothing():
    job = taken_up()

    record, *following = job.handle(AttemptLost(7, committed_step=40), 1000.0)

    assert isinstance(record, RecordEnd)
    assert record.cause == "lost"
    assert following == [Spawn(8), SelectCheckpoint(8)]
    assert job.facts.failures.by_cause == {}


def test_attempt_that_was_lost_and_brought_nothing_counts():
    job = taken_up()

    job.handle(AttemptLost(7), 1000.0)

    assert job.state is State.BACKOFF


def test_lost_attempt_of_what_nobody_wants_is_only_booked():
    job = taken_up(wanted=False)

    effects = job.handle(AttemptLost(7, committed_step=40), 1000.0)

    assert [type(effect) for effect in effects] == [RecordEnd]
    assert job.state is State.STOPPED


def test_lost_plain_program_is_started_again():
    assert taken_up(PLAIN).handle(AttemptLost(7), 1000.0)[1:] == [Spawn(8)]


def test_lost_attempt_of_what_is_held_back_is_booked_and_followed_once_it_may_start():
    job = taken_up()

    (record,) = job.handle(AttemptLost(7, committed_step=40, held_back=True), 1000.0)

    assert isinstance(record, RecordEnd) and record.cause == "lost"
    assert (job.state, job.deadline(), job.facts.wanted, job.facts.attempt) == (State.STOPPED, None, True, 7)
    assert job.handle(StartRequested(resumes=True), 1090.0) == [Spawn(8), SelectCheckpoint(8)]


def test_lost_attempt_of_what_is_held_back_is_charged_and_its_pause_is_kept():
    job = taken_up()

    job.handle(AttemptLost(7, held_back=True), 1000.0)

    assert (job.state, job.facts.wanted) == (State.STOPPED, True)
    assert job.facts.failures.by_cause == {"crash": 1}
    assert job.handle(StartRequested(resumes=True), 1000.1) == []
    assert (job.state, job.facts.reason) == (
        State.BACKOFF,
        "exit status unknown, while no daemon was running",
    )


def test_held_back_job_rolls_back_after_an_unseen_divergence():
    job = taken_up()
    diverged = AttemptLost(
        7, error="loss of step 12 is nan", committed_step=10, step=12, go_back=True, code=80, held_back=True
    )

    job.handle(diverged, 1000.0)

    assert job.handle(StartRequested(resumes=True), 1090.0) == [
        Spawn(8),
        SelectCheckpoint(8, restore_below_step=11, diverged_attempt=7),
    ]


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [(JOB, 73, State.FAILED), (Policy(name="once", is_job=True, autorestart=AutoRestart.NEVER), 1, State.EXITED)],
)
def test_end_that_nothing_may_follow_is_one_for_what_is_held_back_too(policy: Policy, code: int, state: State):
    job = taken_up(policy)

    job.handle(AttemptLost(7, error="words", code=code, held_back=True), 1000.0)

    assert job.state is state


def test_commit_that_answers_a_flush_of_an_earlier_daemon_is_no_answer_to_this_one():
    """The worker repeats its newest commit once it answers, which may be after this daemon has asked for a flush."""
    job = adopted()
    job.handle(StepsDone(7, 50), 1001.0)
    job.expire(job.deadline() or 0.0)
    assert job.state is State.RUNNING, "it does steps, and does not answer"
    job.handle(StopRequested(), 1130.0)

    job.handle(CheckpointCommitted(7, 20, (1,)), 1131.0)

    assert job.facts.current.flush is not None
    assert not job.facts.current.flush.committed
