"""What a job does when its host is going away."""

import math
from dataclasses import replace

import pytest

from supervisor.core.job import Job
from supervisor.core.notices.flush import Pause
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import notice_plan
from supervisor.core.program.effects import (
    Abort,
    RecordEnd,
    RecordWanted,
    RequestFlush,
    SelectCheckpoint,
    Spawn,
    Terminate,
)
from supervisor.core.program.events import (
    CheckpointCommitted,
    CheckpointSaveFailed,
    DoneReported,
    Event,
    FlushRequested,
    HostSuspended,
    NoticeChanged,
    NoticeEnded,
    NoticeReceived,
    ProgramClosed,
    RestoreBegun,
    SavesMeasured,
    StartRequested,
    StepsDone,
    StopRequested,
    UploadsChanged,
    WorkerExited,
)
from supervisor.core.program.facts import Durable, OnNotice, State
from supervisor.protocol.wire.messages import Then
from tests.core.test_job import JOB, PLAIN, die, running, starting

POLICY = replace(JOB, notice_margin=2.0, notice_grace=60.0, hang_timeout=50.0, flush_timeout=120.0)
TRAIN = replace(POLICY, on_notice=OnNotice.TRAIN)


def notice(deadline_at: float | None = 100.0, certainty: Certainty = Certainty.CERTAIN) -> Notice:
    return Notice("aws", "1", NoticeKind.PREEMPTION, certainty, deadline_at, is_cancellable=True, text="spot")


def noticed(deadline_at: float | None = 100.0, policy=POLICY, **values: Certainty) -> Job:
    """A job that trains since 10 s with steps of 1 s, whose save takes 5 s; told at 20 s."""
    job = running(policy)
    job.handle(StepsDone(1, 11, 1.0), 20.0)
    job.handle(SavesMeasured(5.0), 20.0)
    job.handle(NoticeReceived(notice(deadline_at, **values)), 20.0)
    return job


def committed(job: Job, now: float) -> None:
    job.handle(CheckpointCommitted(1, 3, (job.facts.current.flush.id,)), now)


def test_answer_with_a_checkpoint_that_was_there_does_not_say_how_long_a_save_takes():
    job = running(POLICY)
    job.handle(FlushRequested("operator"), 20.0)

    job.handle(CheckpointCommitted(1, 3, (job.facts.current.flush.id,), is_repeated=True), 20.01)

    assert job.state is State.RUNNING
    assert job.facts.flush_s is None


def test_a_notice_flushes_at_once_and_training_goes_on():
    job = running(POLICY)
    job.handle(SavesMeasured(5.0), 20.0)

    effects = job.handle(NoticeReceived(notice()), 20.0)

    assert effects == [RequestFlush(1, 1, "notice", Then.GO_ON, 80.0)]
    assert job.state is State.FLUSHING


def running_in_parts() -> Job:
    """A job whose script has reported the end of its first run, after 10 s of training."""
    job = running(replace(POLICY, hang_timeout=500.0))
    job.handle(StepsDone(1, 11, 1.0), 19.0)
    job.handle(SavesMeasured(5.0), 19.0)
    job.handle(DoneReported(1), 20.0)
    return job


def test_the_next_run_of_a_script_is_flushed_as_the_one_before():
    job = running_in_parts()
    job.handle(RestoreBegun(1), 22.0)

    assert job.handle(NoticeReceived(notice()), 23.0) == [RequestFlush(1, 1, "notice", Then.GO_ON, 77.0)]


def test_a_notice_between_two_runs_of_a_script_has_the_second_one_flushed_before_the_host_goes():
    job = running_in_parts()
    assert job.handle(NoticeReceived(notice()), 21.0) == []

    job.handle(RestoreBegun(1), 22.0)

    assert job.deadline() == notice_plan.last_flush_at(job.facts)
    (asked,) = job.expire(92.0)
    assert asked.then is Then.STOP


@pytest.mark.parametrize(("pause_s", "last_at"), [(1.5, 92.0), (3.0, 92.0), (5.0, 90.0)])
def test_short_pause_uses_the_margin_before_it_costs_training(pause_s, last_at):
    job = noticed()
    job.facts.pauses = (Pause(15.0, pause_s),)

    assert notice_plan.last_flush_at(job.facts) == last_at, (
        "100 s less margin 2, save 5, and step 1 or what is left of it"
    )


def test_early_flush_comes_before_a_pause_that_may_outlast_the_host():
    job = noticed()
    committed(job, 26.0)
    job.handle(StepsDone(1, 12, 1.0), 41.0)  # an evaluation of 20 s

    assert job.deadline() == 100.0 - 2.0 - 5.0 - 21.0
    (asked,) = job.expire(72.0)
    assert (asked.then, job.state) == (Then.GO_ON, State.FLUSHING)
    committed(job, 80.0)
    assert job.deadline() == 100.0 - 2.0 - 5.0 - 1.0


def test_the_last_flush_leaves_margin_save_and_step_and_then_the_worker_leaves():
    job = noticed()
    committed(job, 26.0)

    assert job.state is State.RUNNING
    job.handle(StepsDone(1, 71, 1.0), 80.0)
    assert job.deadline() == 100.0 - 2.0 - 5.0 - 1.0
    assert job.expire(92.0) == [RequestFlush(1, 2, "notice", Then.STOP, 8.0)]


def test_on_notice_train_goes_on_after_the_last_flush():
    job = noticed(policy=TRAIN)
    committed(job, 26.0)
    job.handle(StepsDone(1, 71, 1.0), 80.0)

    assert job.expire(92.0) == [RequestFlush(1, 2, "notice", Then.GO_ON, 8.0)]
    committed(job, 97.0)
    assert job.state is State.RUNNING
    assert job.deadline() == 97.0 + 50.0, "only the hang is waited for now"


def test_short_notice_gets_a_single_flush():
    assert noticed(deadline_at=27.0).facts.current.flush.then is Then.STOP


def test_unmeasured_save_is_flushed_at_once_and_training_goes_on():
    job = running(POLICY)

    (effect,) = job.handle(NoticeReceived(notice(12.0)), 10.0)

    assert effect == RequestFlush(1, 1, "notice", Then.GO_ON, 2.0)


def test_the_first_flush_is_measured_for_the_last_one():
    job = running(POLICY)
    job.handle(NoticeReceived(notice()), 20.0)

    committed(job, 27.0)

    assert notice_plan.last_flush_at(job.facts) == 100.0 - 2.0 - 7.0 - 7.0, (
        "a save of up to 7 s after a step of up to 7 s"
    )


def test_the_last_moment_may_come_while_the_first_flush_is_on_its_way():
    job = noticed(deadline_at=40.0)

    assert job.deadline() == 32.0
    assert job.expire(32.0) == [RequestFlush(1, 2, "notice", Then.STOP, 8.0)]


def test_flush_already_under_way_counts_as_the_first_one():
    job = noticed(certainty=Certainty.POSSIBLE)

    assert job.handle(NoticeReceived(notice(60.0)), 21.0) == []
    assert job.deadline() == 52.0


def test_a_possible_notice_flushes_once_and_nothing_else():
    job = noticed(certainty=Certainty.POSSIBLE)
    committed(job, 26.0)

    assert job.deadline() == 26.0 + 50.0


def test_a_certain_notice_without_a_time_flushes_once_and_trains_on():
    job = noticed(deadline_at=None)
    committed(job, 26.0)

    assert job.deadline() == 26.0 + 50.0


def test_the_worker_that_left_is_booked_as_preempted_and_the_host_is_waited_for():
    job = noticed(deadline_at=27.0)
    committed(job, 24.0)

    effects = die(job, 25.0, code=143)

    assert effects == [RecordEnd(1, "preemption", "left because the host was going away (aws: spot)")]
    assert (job.state, job.deadline()) == (State.BACKOFF, 27.0 + 60.0)
    assert job.facts.wanted
    assert job.facts.failures.by_cause == {}


def test_waiting_job_starts_when_the_notice_ends():
    job = noticed(deadline_at=27.0)
    die(job, 25.0, code=143)

    assert job.handle(NoticeEnded(), 30.0) == [Spawn(2), SelectCheckpoint(2)]


def test_waiting_job_starts_when_the_host_outlives_its_deadline():
    job = noticed(deadline_at=27.0)
    die(job, 25.0, code=143)

    assert job.expire(87.0) == [Spawn(2), SelectCheckpoint(2)]


def test_waiting_job_starts_when_the_deadline_moves_far_away():
    job = noticed(deadline_at=27.0)
    die(job, 25.0, code=143)

    assert job.handle(NoticeChanged(notice(40.0)), 26.0) == []
    assert job.deadline() == 100.0
    assert job.handle(NoticeChanged(notice(4000.0)), 26.0) == [Spawn(2), SelectCheckpoint(2)]


def test_a_withdrawal_lets_training_go_on_untouched():
    job = noticed()
    committed(job, 26.0)

    assert job.handle(NoticeEnded(), 30.0) == []
    assert (job.state, job.deadline()) == (State.RUNNING, 26.0 + 50.0)


def test_a_withdrawal_during_the_first_flush_lets_it_finish_and_training_go_on():
    job = noticed(deadline_at=40.0)

    assert job.handle(NoticeEnded(), 22.0) == []
    assert job.deadline() == 20.0 + 120.0
    committed(job, 25.0)
    assert job.state is State.RUNNING


def test_a_withdrawal_during_the_last_flush_starts_the_next_attempt_at_once():
    job = noticed(deadline_at=27.0)
    job.handle(NoticeEnded(), 22.0)
    committed(job, 24.0)

    effects = die(job, 25.0, code=143)

    assert effects[0].cause == "preemption"
    assert effects[1:] == [Spawn(2), SelectCheckpoint(2)]


def test_an_earlier_deadline_moves_the_last_flush():
    job = noticed()
    committed(job, 26.0)

    assert job.handle(NoticeChanged(notice(60.0)), 30.0) == []
    assert job.deadline() == 52.0


def test_more_severe_notice_flushes_at_once_again():
    job = noticed(certainty=Certainty.POSSIBLE)
    committed(job, 26.0)

    assert job.handle(NoticeReceived(notice()), 40.0) == [RequestFlush(1, 2, "notice", Then.GO_ON, 60.0)]


def test_a_flush_that_failed_is_tried_again_while_there_is_time():
    job = noticed()
    job.handle(CheckpointSaveFailed(1, "disk full", (1,)), 25.0)

    assert (job.state, job.deadline()) == (State.RUNNING, 26.0)
    assert job.expire(26.0) == [RequestFlush(1, 2, "notice", Then.GO_ON, 74.0)]
    committed(job, 30.0)
    assert job.facts.current.flush_retry_at is None


def test_a_last_flush_that_failed_is_tried_again_where_training_goes_on():
    job = noticed(deadline_at=28.0, policy=TRAIN)
    job.handle(CheckpointSaveFailed(1, "disk full", (1,)), 23.0)

    assert job.expire(24.0) == [RequestFlush(1, 2, "notice", Then.GO_ON, 4.0)]


def test_a_hang_during_a_notice_is_a_hang():
    job = noticed(deadline_at=4000.0)
    committed(job, 26.0)

    assert job.expire(76.0) == [Abort(1)]
    assert job.facts.current.decided_end[0] == "hang"


def test_earlier_of_a_hang_and_a_due_flush_counts():
    job = noticed(deadline_at=83.0)
    committed(job, 26.0)
    assert job.deadline() == 75.0

    assert job.expire(90.0) == [RequestFlush(1, 2, "notice", Then.STOP, 120.0)], "the machine slept until both were due"


def test_a_worker_that_hangs_in_its_last_flush_is_terminated():
    job = noticed(deadline_at=27.0)

    assert job.expire(140.0) == [Terminate(1)]
    job.expire(150.0)
    (record, *_) = die(job, 151.0)
    assert record.cause == "preemption"
    assert "no checkpoint within 120 s" in record.text


def slow(deadline_at: float = 1000.0) -> Job:
    """A job that trains since 10 s with steps of 300 s, which is longer than flush_timeout; told at 20 s."""
    job = running(replace(POLICY, hang_timeout=None, hang_timeout_min=2000.0))
    job.handle(StepsDone(1, 11, 300.0), 20.0)
    job.handle(SavesMeasured(5.0), 20.0)
    job.handle(NoticeReceived(notice(deadline_at)), 20.0)
    committed(job, 200.0)
    return job


def test_last_flush_of_a_job_with_long_steps_is_waited_for_as_long_as_it_was_planned():
    job = slow()
    asked_at = 1000.0 - 2.0 - 5.0 - 300.0

    assert job.deadline() == asked_at
    assert job.expire(asked_at) == [RequestFlush(1, 2, "notice", Then.STOP, 307.0)]
    assert job.deadline() == 1000.0, "flush_timeout, 120 s, would end it within its step"
    assert job.expire(1000.0) == [Terminate(1)]
    job.expire(1010.0)
    (record, *_) = die(job, 1011.0)
    assert "no checkpoint before the deadline of the notice" in record.text


def test_suspended_host_does_not_shorten_the_last_flush():
    job = slow()
    job.expire(693.0)

    job.handle(HostSuspended(60.0), 760.0)

    assert job.deadline() == 1000.0


def test_an_operators_stop_during_the_notice_is_a_stop():
    job = noticed()
    committed(job, 26.0)

    effects = job.handle(StopRequested(), 30.0)

    assert effects == [RecordWanted(False), RequestFlush(1, 2, "stop", Then.STOP, 70.0)]
    committed(job, 33.0)
    assert die(job, 34.0, code=143)[0].cause == "stopped"
    assert job.state is State.STOPPED


def test_an_operators_stop_during_the_last_flush_keeps_it_stopped():
    job = noticed(deadline_at=27.0)

    assert job.handle(StopRequested(), 21.0) == [RecordWanted(False)]
    die(job, 25.0, code=143)
    job.handle(NoticeEnded(), 30.0)
    assert job.state is State.STOPPED


@pytest.mark.parametrize("end", [StopRequested(), ProgramClosed("shutdown")])
def test_job_stopped_while_it_waited_for_the_host_no_longer_waits(end: Event):
    job = Job(POLICY)
    job.handle(NoticeReceived(notice(20.0)), 0.0)
    job.handle(StartRequested(), 10.0)
    assert "it starts if the host stays" in (job.facts.reason or "")

    job.handle(end, 11.0)

    assert (job.state, job.facts.reason) == (State.STOPPED, None)


def test_stop_ends_waiting_for_the_host():
    job = noticed(deadline_at=27.0)
    die(job, 25.0, code=143)

    job.handle(StopRequested(), 26.0)
    job.handle(NoticeEnded(), 30.0)

    assert job.state is State.STOPPED


def test_daemon_that_exits_because_the_host_goes_records_a_preemption():
    job = noticed()

    job.handle(ProgramClosed("shutdown"), 21.0)
    committed(job, 23.0)

    assert die(job, 24.0, code=143)[0].cause == "preemption"
    assert job.state is State.STOPPED
    assert job.facts.wanted


def test_worker_stopped_from_outside_while_the_host_goes_was_preempted():
    job = noticed()
    committed(job, 26.0)

    (record, *_) = die(job, 27.0, code=143)

    assert record.cause == "preemption"


def test_worker_that_is_stopped_from_outside_again_and_again_waits_ever_longer():
    job = noticed(deadline_at=1e6)
    now, pauses = 30.0, []

    for _ in range(5):
        record, *others = die(job, now, signal=15)
        pauses.append(0.0 if others else (job.deadline() or 0.0) - now)
        now = job.deadline() or now if not others else now
        if not others:
            assert "told to stop from outside" in (job.facts.reason or "")
            assert len(job.expire(now)) == 2

    assert pauses[0] == 0.0, "the host's own stop comes once"
    assert [round(math.log2(pause)) for pause in pauses[1:]] == [0, 1, 2, 3]
    assert (record.cause, job.facts.failures.by_cause) == ("preemption", {})


def test_worker_that_saved_before_it_was_stopped_from_outside_starts_again_at_once():
    job = noticed(deadline_at=1e6)

    for number in range(1, 4):
        job.handle(CheckpointCommitted(number, 10 * number), 30.0)
        assert die(job, 31.0, code=143)[1:] == [Spawn(number + 1), SelectCheckpoint(number + 1)]
        job.handle(StepsDone(number + 1, 10 * number + 1), 32.0)


def test_a_crash_under_a_notice_is_a_crash_and_starts_again_only_if_there_is_time():
    job = noticed()
    committed(job, 26.0)
    assert die(job, 27.0)[1:] == [Spawn(2), SelectCheckpoint(2)]

    job = noticed()
    committed(job, 26.0)
    (record,) = die(job, 85.0)
    assert record.cause == "crash"
    assert (job.state, job.facts.waits_for_host) == (State.BACKOFF, True)


def test_measured_startup_decides_whether_there_is_time_for_an_attempt():
    job = noticed()
    committed(job, 26.0)
    assert job.facts.startup_s == 10.0

    assert len(die(job, 100.0 - 10.0 - 8.0)) == 3, "start-up, step, save and margin just fit"


def test_a_start_shortly_before_the_host_goes_waits():
    job = Job(POLICY)
    job.handle(NoticeReceived(notice(20.0)), 0.0)

    effects = job.handle(StartRequested(), 0.0)

    assert effects == [RecordWanted(True)]
    assert (job.state, job.deadline()) == (State.BACKOFF, 80.0)
    assert "aws: spot" in job.facts.reason


def test_a_worker_that_has_not_trained_yet_is_left_alone():
    job = starting(POLICY)

    assert job.handle(NoticeReceived(notice(40.0)), 5.0) == []
    assert job.state is State.STARTING


def test_worker_that_begins_to_train_under_a_notice_saves_at_once_if_saves_are_unmeasured():
    job = starting(POLICY)
    job.handle(NoticeReceived(notice(40.0)), 5.0)
    job.handle(StepsDone(1, 1), 8.0)

    assert job.expire(8.0) == [RequestFlush(1, 1, "notice", Then.GO_ON, 32.0)]


def test_worker_that_reported_done_gets_no_flush_request():
    job = running(POLICY)
    job.handle(DoneReported(1), 20.0)

    assert job.handle(NoticeReceived(notice(21.0)), 20.0) == []
    assert job.deadline() == 10.0 + 50.0


def test_worker_that_reports_done_before_its_last_flush_does_not_hang():
    job = noticed(40.0)
    committed(job, 21.0)
    assert job.deadline() == 32.0
    job.handle(DoneReported(1), 30.0)

    assert job.expire(32.0) == []

    assert (job.state, job.deadline()) == (State.RUNNING, 21.0 + 50.0)
    assert job.expire(71.0) == [Abort(1, 10.0)]


def test_timer_too_late_for_the_early_flush_makes_no_hang():
    job = noticed(60.0)
    job.facts.pauses = (Pause(20.0, 7.001),)
    committed(job, 21.0)
    assert job.deadline() == pytest.approx(45.999)

    assert job.expire(46.1) == []

    assert (job.state, job.deadline()) == (State.RUNNING, 52.0)


def test_a_plain_program_has_nothing_to_save_and_is_left_alone():
    job = running(PLAIN)

    assert job.handle(NoticeReceived(notice()), 20.0) == []
    assert job.deadline() is None
    assert job.handle(WorkerExited(1, code=1), 21.0)[1:] == [Spawn(2)]


def facts_at(stage: str) -> Job:
    job = noticed(deadline_at=27.0, policy=TRAIN if stage == "trains on" else POLICY)
    if stage != "flushing":
        committed(job, 24.0)
    if stage == "gone":
        die(job, 25.0, code=143)
    return job


@pytest.mark.parametrize(
    ("stage", "ready"), [("flushing", False), ("leaving", False), ("gone", True), ("trains on", True)]
)
def test_the_host_may_go_once_the_last_checkpoint_is_on_the_disk_and_the_worker_did_what_it_is_to_do(stage, ready):
    assert notice_plan.has_nothing_to_lose(facts_at(stage).facts) is ready


def test_recalled_notice_requests_only_the_last_flush():
    job = running(POLICY)
    job.handle(StepsDone(1, 11, 1.0), 20.0)
    job.handle(SavesMeasured(5.0), 20.0)

    assert job.handle(NoticeReceived(notice(), recalled=True), 20.0) == []

    assert job.state is State.RUNNING
    job.facts.current.progressed_at = 80.0
    (asked,) = job.handle(StepsDone(1, 90, 1.0), 91.9) + job.expire(92.0)
    assert (asked.then, asked.reason) == (Then.STOP, "notice")


def test_recalled_notice_past_its_deadline_stops_nothing_again():
    job = running(POLICY)
    job.handle(SavesMeasured(5.0), 20.0)

    assert job.handle(NoticeReceived(notice(15.0), recalled=True), 20.0) == []
    assert job.expire(job.deadline() or 0.0)[0] == Abort(1, POLICY.stopwaitsecs), "only a hang is waited for"


def test_another_notice_after_one_that_was_heard_before_makes_it_save():
    job = running(POLICY)
    job.handle(NoticeReceived(notice(), recalled=True), 20.0)

    (asked,) = job.handle(NoticeReceived(notice(60.0)), 21.0)

    assert isinstance(asked, RequestFlush)


def test_host_shutdown_without_a_notice_records_a_preemption_and_the_job_stays_wanted():
    job = running(POLICY)

    job.handle(ProgramClosed("host shutdown", host_leaves=True), 21.0)
    committed(job, 22.0)
    (record,) = die(job, 22.5, code=143)

    assert record == RecordEnd(1, "preemption", "stopped (host shutdown)")
    assert job.facts.wanted


def test_host_shutdown_may_be_known_after_the_flush_request():
    job = running(POLICY)
    job.handle(ProgramClosed("shutdown"), 21.0)

    assert job.handle(ProgramClosed("host shutdown", host_leaves=True), 21.5) == []

    committed(job, 22.0)
    assert die(job, 22.5, code=143)[0] == RecordEnd(1, "preemption", "stopped (host shutdown)")


def test_job_stopped_before_the_host_shuts_down_stays_stopped():
    job = running(POLICY)
    job.handle(StopRequested(), 20.0)
    job.handle(ProgramClosed("host shutdown", host_leaves=True), 21.0)
    committed(job, 22.0)

    (record,) = die(job, 22.5, code=143)

    assert record == RecordEnd(1, "stopped", "stopped (stop)")
    assert not job.facts.wanted


REMOTE = replace(POLICY, durable=Durable.REMOTE)


def test_nothing_is_started_while_the_last_checkpoint_is_on_its_way_to_the_mirror():
    """The upload was planned for: 30 s of the last 38 s are for it, which is more than a start, a step and a save."""
    job = running(REMOTE)
    job.handle(StepsDone(1, 11, 1.0), 20.0)
    job.handle(SavesMeasured(5.0), 20.0)
    job.handle(UploadsChanged(False, 30.0), 20.0)
    job.handle(NoticeReceived(notice()), 20.0)
    committed(job, 26.0)
    assert job.expire(62.0) == [RequestFlush(1, 2, "notice", Then.STOP, 38.0)]
    job.handle(CheckpointCommitted(1, 30, (2,)), 63.0)
    job.handle(UploadsChanged(True, 30.0), 63.0)

    (record,) = die(job, 64.0, code=143)

    assert record.cause == "preemption"
    assert (job.state, job.deadline(), job.facts.waits_for_host) == (State.BACKOFF, 160.0, True)


def test_nothing_is_started_between_a_last_flush_that_was_quick_and_the_deadline():
    """A pause was planned for that did not come, so there would be time for another attempt."""
    job = noticed()
    job.facts.current.last_flush_requested = True

    effects = die(job, 30.0, code=143)

    assert (job.state, job.facts.waits_for_host, len(effects)) == (State.BACKOFF, True, 1)


@pytest.mark.parametrize(("upload_waits", "latest"), [(False, 52.0), (True, 22.0)])
def test_a_crash_under_a_notice_starts_again_only_if_there_is_time_for_the_upload_too(
    upload_waits: bool, latest: float
):
    for died_at, starts in ((latest - 0.1, True), (latest + 0.1, False)):
        job = running(REMOTE)
        job.handle(StepsDone(1, 11, 1.0), 20.0)
        job.handle(SavesMeasured(5.0), 20.0)
        job.handle(NoticeReceived(notice()), 20.0)
        committed(job, 21.0)
        job.handle(UploadsChanged(upload_waits, 30.0), 21.0)

        die(job, died_at)

        assert (job.state is State.STARTING) is starts
