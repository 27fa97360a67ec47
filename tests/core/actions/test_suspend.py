"""A host that stood still: nothing that was waited for in that time counts as missed."""

from dataclasses import replace

import pytest

from supervisor.core.actions.suspend import SUSPENDED_AFTER_S
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program.effects import (
    Abort,
    Kill,
    RequestFlush,
    Terminate,
)
from supervisor.core.program.events import (
    CheckpointCommitted,
    FlushRequested,
    HostSuspended,
    NoticeChanged,
    NoticeEnded,
    NoticeReceived,
    StepsDone,
    StopRequested,
)
from supervisor.core.program.facts import State
from supervisor.core.program.notice_plan import FREEZE_LIMIT_S
from supervisor.protocol.wire.messages import Then
from tests.core.test_job import JOB, PLAIN, running, starting

FIXED = replace(JOB, hang_timeout=50.0, flush_timeout=20.0, stopwaitsecs=10.0, startup_timeout=60.0)
LEARNED = replace(FIXED, hang_timeout=None, hang_timeout_min=50.0)
FREEZE = Notice("google", "m", NoticeKind.FREEZE, Certainty.POSSIBLE, None, is_cancellable=True, text="moved")


def trained(policy=FIXED) -> Job:
    """Its last step was at 20 s."""
    job = running(policy)
    job.handle(StepsDone(1, 11, 1.0), 20.0)
    return job


@pytest.mark.parametrize("policy", [FIXED, LEARNED])
def test_late_timer_kills_nothing_and_restarts_the_limit(policy):
    job = trained(policy)
    due_at = job.deadline()

    assert job.expire(due_at + 100.0, due_at) == []

    assert (job.state, job.deadline()) == (State.RUNNING, due_at + 150.0)
    assert job.expire(due_at + 150.0, due_at + 150.0) == [Abort(1, 10.0)], "silence from then on is a hang"


def test_timer_late_as_on_a_busy_host_counts():
    job = trained()

    assert job.expire(70.0 + SUSPENDED_AFTER_S, 70.0) == [Abort(1, 10.0)]


def test_limit_already_passed_when_set_is_no_suspend():
    job = trained()
    job.handle(FlushRequested("operator"), 60.0)
    job.expire(80.0, 80.0)

    assert job.expire(80.0, 80.0) == [Abort(1, 10.0)]


def test_suspend_during_a_silence_does_not_count_into_it():
    job = trained()

    assert job.handle(HostSuspended(40.0), 65.0) == []

    assert job.deadline() == 115.0


def test_suspend_is_not_learned_as_a_usual_silence():
    job = trained(LEARNED)

    job.handle(HostSuspended(4000.0), 4020.0)
    job.handle(StepsDone(1, 12, 1.0), 4021.0)

    assert job.facts.hang_detector.longest.get(LoopSection.STEP, 0.0) < 100.0
    assert max((pause.pause_s for pause in job.facts.pauses), default=0.0) < 100.0


def test_start_flush_and_stop_have_their_whole_time_again_after_a_suspend():
    begun = starting(FIXED)
    assert begun.expire(500.0, begun.deadline()) == []
    assert (begun.state, begun.deadline()) == (State.STARTING, 560.0)

    flushes = trained()
    flushes.handle(FlushRequested("operator"), 30.0)
    assert flushes.expire(500.0, 50.0) == []
    assert (flushes.state, flushes.deadline()) == (State.FLUSHING, 520.0)

    stops = trained()
    stops.handle(StopRequested(), 30.0)
    stops.handle(CheckpointCommitted(1, 11, (1,)), 31.0)
    assert stops.expire(500.0, 41.0) == []
    assert stops.expire(510.0, 510.0) == [Terminate(1)]
    assert stops.expire(900.0, 520.0) == []
    assert stops.expire(910.0, 910.0) == [Kill(1)]


def test_plain_program_is_older_after_a_suspend():
    job = starting(PLAIN)

    job.expire(500.0, job.deadline())

    assert job.state is State.RUNNING


def test_the_last_flush_before_the_host_goes_is_asked_for_however_late_it_is():
    job = trained()
    job.facts.save_s = 5.0
    notice = Notice("aws", "1", NoticeKind.PREEMPTION, Certainty.CERTAIN, 60.0, is_cancellable=True, text="")
    job.handle(NoticeReceived(notice), 21.0)
    job.handle(CheckpointCommitted(1, 11, (1,)), 22.0)
    due_at = job.deadline()

    (asked,) = job.expire(due_at + 20.0, due_at)

    assert isinstance(asked, RequestFlush)
    assert asked.then is Then.STOP


@pytest.mark.parametrize("policy", [FIXED, LEARNED])
def test_while_a_freeze_is_announced_nobody_hangs_and_after_it_silence_begins_anew(policy):
    job = trained(policy)
    job.handle(NoticeReceived(FREEZE), 21.0)
    job.handle(CheckpointCommitted(1, 11, (1,)), 22.0)
    assert job.expire(400.0) == []

    job.handle(NoticeEnded(), 500.0)

    assert job.deadline() == 550.0
    assert job.expire(550.0) == [Abort(1, 10.0)]


def test_start_during_a_freeze_is_no_hang():
    job = starting(replace(LEARNED, startup_timeout=900.0))
    assert job.deadline() == 25.0
    job.handle(NoticeReceived(FREEZE), 21.0)
    assert job.expire(400.0) == []

    job.handle(NoticeEnded(), 500.0)

    assert job.deadline() == 525.0
    assert job.expire(525.0) == [Abort(1, 10.0)]


def test_plain_programs_start_ignores_notices():
    job = starting(PLAIN)

    job.handle(NoticeReceived(FREEZE), 0.5)
    job.handle(NoticeEnded(), 0.6)

    assert job.deadline() == 1.0


def test_freeze_without_an_end_does_not_hide_a_hang_for_ever():
    job = trained()
    job.handle(NoticeReceived(FREEZE), 21.0)
    job.handle(CheckpointCommitted(1, 11, (1,)), 22.0)
    job.handle(NoticeChanged(FREEZE), 600.0)

    assert job.expire(21.0 + FREEZE_LIMIT_S - 0.1) == []
    assert job.expire(21.0 + FREEZE_LIMIT_S) == [Abort(1, 10.0)]


def test_more_severe_notice_than_a_freeze_resumes_hang_detection():
    job = trained()
    job.handle(NoticeReceived(FREEZE), 21.0)
    job.handle(CheckpointCommitted(1, 11, (1,)), 22.0)

    job.handle(NoticeChanged(replace(FREEZE, kind=NoticeKind.MAINTENANCE)), 23.0)

    assert job.deadline() == 72.0
