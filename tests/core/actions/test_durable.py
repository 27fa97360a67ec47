"""`durable = remote`: a flush before the host goes waits for the job's mirror as well."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.job import Job
from supervisor.core.program import notice_plan
from supervisor.core.program.effects import RequestFlush
from supervisor.core.program.events import (
    CheckpointCommitted,
    NoticeChanged,
    NoticeEnded,
    NoticeReceived,
    SavesMeasured,
    StepsDone,
    UploadsChanged,
    WorkerExited,
)
from supervisor.core.program.facts import Durable, OnNotice, State
from supervisor.protocol.wire.messages import Then
from tests.core.actions.test_notices import POLICY, committed, notice
from tests.core.test_job import running

REMOTE = replace(POLICY, durable=Durable.REMOTE)  # the margin is 2 s
BEGIN = 20.0


def measured(policy=REMOTE, upload_s: float | None = 10.0, waits: bool = False, step_s=1.0, save_s=5.0) -> Job:
    job = running(policy)
    job.handle(StepsDone(1, 11, step_s), BEGIN)
    job.handle(SavesMeasured(save_s), BEGIN)
    job.handle(UploadsChanged(waits, upload_s), BEGIN)
    return job


def noticed(deadline_at: float = 100.0, **values) -> Job:
    job = measured(**values)
    job.handle(NoticeReceived(notice(deadline_at)), BEGIN)
    return job


def test_the_last_flush_leaves_time_for_the_upload():
    job = noticed(policy=replace(REMOTE, hang_timeout=None))
    committed(job, 26.0)
    job.handle(UploadsChanged(waits=False, upload_s=10.0), 36.0)

    assert job.deadline() == 100.0 - 2.0 - 10.0 - 5.0 - 1.0
    assert job.expire(82.0) == [RequestFlush(1, 2, "notice", Then.STOP, 18.0)]


@pytest.mark.parametrize(("deadline_at", "upload_s"), [(47.0, 10.0), (100.0, 40.0)])
def test_where_the_first_upload_and_one_more_do_not_fit_the_last_flush_is_for_the_disk(deadline_at, upload_s):
    job = noticed(deadline_at, upload_s=upload_s)

    assert not job.facts.upload_fits
    assert notice_plan.last_flush_at(job.facts) == deadline_at - 2.0 - 5.0 - 1.0


def test_the_upload_that_has_begun_is_counted_too():
    assert noticed(60.0).facts.upload_fits, "20 s + 6 s + two uploads of 10 s + 2 s"
    assert not noticed(57.0, waits=True).facts.upload_fits
    assert noticed(58.0, waits=True).facts.upload_fits


def test_an_upload_that_ends_early_makes_room_for_the_last_one():
    job = noticed(45.0)
    assert not job.facts.upload_fits
    committed(job, 21.0)

    job.handle(UploadsChanged(waits=False, upload_s=10.0), 22.0)

    assert job.facts.upload_fits
    assert job.deadline() == 45.0 - 2.0 - 10.0 - 5.0 - 1.0


def test_unmeasured_upload_counts_as_none_until_the_first_flush_has_measured_it():
    job = noticed(upload_s=None)
    committed(job, 26.0)
    assert notice_plan.last_flush_at(job.facts) == 92.0

    job.handle(UploadsChanged(waits=False, upload_s=30.0), 56.0)

    assert notice_plan.last_flush_at(job.facts) == 62.0


def test_another_deadline_is_judged_anew():
    job = noticed(40.0)
    assert not job.facts.upload_fits

    job.handle(NoticeChanged(notice(200.0)), 21.0)

    assert job.facts.upload_fits
    job.handle(NoticeEnded(), 22.0)
    assert job.facts.upload_fits


@pytest.mark.parametrize("on_notice", OnNotice)
def test_the_host_may_go_only_once_the_mirror_has_the_last_checkpoint(on_notice):
    job = noticed(policy=replace(REMOTE, on_notice=on_notice), deadline_at=40.0)
    job.expire(32.0)
    assert job.facts.current.last_flush_requested
    job.handle(UploadsChanged(waits=True, upload_s=10.0), 37.0)
    job.handle(CheckpointCommitted(1, 30, (2,)), 37.0)
    if on_notice is OnNotice.STOP:
        job.handle(WorkerExited(1, code=0), 38.0)
        assert job.state is State.BACKOFF
    assert not notice_plan.has_nothing_to_lose(job.facts)

    job.handle(UploadsChanged(waits=False, upload_s=10.0), 39.0)

    assert notice_plan.has_nothing_to_lose(job.facts)


DURATIONS = st.floats(0.0, 60.0)


@given(DURATIONS, DURATIONS, st.none() | DURATIONS, st.booleans(), st.floats(1.0, 400.0))
def test_durable_local_never_asks_the_mirror(step_s, save_s, upload_s, waits, deadline_s):
    mirrored = noticed(BEGIN + deadline_s, policy=POLICY, step_s=step_s, save_s=save_s, upload_s=upload_s, waits=waits)
    alone = noticed(BEGIN + deadline_s, policy=POLICY, step_s=step_s, save_s=save_s, upload_s=None)

    assert notice_plan.last_flush_at(mirrored.facts) == notice_plan.last_flush_at(alone.facts)
    assert mirrored.facts.deadline_at == alone.facts.deadline_at


@given(DURATIONS, DURATIONS, DURATIONS, st.booleans(), st.floats(1.0, 400.0), st.floats(0.0, 1.0))
def test_a_last_flush_that_is_said_to_fit_reaches_the_mirror_in_time(step_s, save_s, upload_s, waits, notice_s, done):
    """Plays a notice through: every step, save and upload takes as long as was measured."""
    gone_at = BEGIN + notice_s
    policy = replace(REMOTE, hang_timeout=None, flush_timeout=1000.0)
    job = measured(policy, upload_s, waits, step_s, save_s)
    uploader_free_at = BEGIN + (upload_s * done if waits else 0.0)  # what is left of the upload that has begun
    now = BEGIN
    requests = job.handle(NoticeReceived(notice(gone_at)), now)
    while requests[-1].then is Then.GO_ON:
        committed_at = now + step_s + save_s
        due_at = job.deadline() if notice_plan.last_flush_at(job.facts) is not None else None
        if due_at is not None and due_at < committed_at:  # the last flush is due before the first one is done
            now = max(now, due_at)
            requests = job.expire(now) or requests
            continue
        now = committed_at
        job.handle(UploadsChanged(waits=True, upload_s=upload_s), now)
        committed(job, now)
        uploaded_at = uploader_free_at = max(uploader_free_at, now) + upload_s
        while job.deadline() is not None and requests[-1].then is Then.GO_ON:
            if uploaded_at is not None and uploaded_at <= job.deadline():
                now, uploaded_at = max(now, uploaded_at), None
                job.handle(UploadsChanged(waits=False, upload_s=upload_s), now)
            else:
                now = max(now, job.deadline())
                requests = job.expire(now) or requests

    on_disk_at = now + step_s + save_s
    in_mirror_at = max(on_disk_at, uploader_free_at) + upload_s
    if job.facts.upload_fits and now > BEGIN:
        assert in_mirror_at <= gone_at - policy.notice_margin + 1e-6
    elif now > BEGIN:
        assert on_disk_at <= gone_at - policy.notice_margin + 1e-6
