"""Notices: flush at once, train on, flush again at the last safe moment. `program/notice_plan.py` has the times."""

from functools import wraps
from typing import Any

from supervisor.core.actions.launching import launch
from supervisor.core.actions.silence import look_at_silence
from supervisor.core.actions.stopping import flush_too_long
from supervisor.core.actions.training import end_hung_worker
from supervisor.core.actions.transitions import (
    Action,
    Effects,
    flushing_deadline,
    hang_deadline,
    leads_to,
    request_flush,
    running_deadline,
    starting_deadline,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.notices.notice import NoticeKind
from supervisor.core.program import notice_plan
from supervisor.core.program.events import (
    Event,
    NoticeChanged,
    NoticeReceived,
    SavesMeasured,
    UploadsChanged,
)
from supervisor.core.program.facts import OnNotice, ProgramFacts, State
from supervisor.protocol.wire.messages import Then

REASON = "notice"


def record_notice(facts: ProgramFacts, event: NoticeReceived | NoticeChanged, now: float) -> Effects:
    """Records the notice. Nothing trains here that could be saved; a start will check whether there is time."""
    if event.notice.kind is not NoticeKind.FREEZE:
        facts.freeze_until = None
    elif facts.freeze_until is None:
        facts.freeze_until = now + notice_plan.FREEZE_LIMIT_S
    facts.notice = event.notice
    facts.current.last_flush_requested = facts.current.early_flush_requested = False
    if isinstance(event, NoticeReceived):
        facts.notice_recalled = event.recalled
        end = notice_plan.host_gone_at(facts)
        facts.current.last_flush_requested = event.recalled and end is not None and end <= now  # it was due before that
    facts.upload_fits = notice_plan.fits_uploads(facts, now, before=1 + facts.upload_waits)  # the first flush is one
    return []


def notice_starting(facts: ProgramFacts, event: NoticeReceived | NoticeChanged, now: float) -> Effects:
    """Records the notice; while a freeze is announced, silence during a job's start is no hang either."""
    record_notice(facts, event, now)
    _set_starting_deadline(facts)
    return []


@leads_to(State.FLUSHING)
def notice_running(facts: ProgramFacts, event: NoticeReceived, now: float) -> Effects:
    """Requests a checkpoint now, so that something recent is on the disk whatever follows."""
    record_notice(facts, event, now)
    return flush_for_notice(facts, now)


def flush_for_notice(facts: ProgramFacts, now: float) -> Effects:
    """Requests a checkpoint if a notice holds for which none was written yet, and there is something to save."""
    if facts.notice is None or facts.notice_recalled or not facts.policy.is_job or facts.current.done_reported:
        return []
    return _flush(facts, now)


def notice_flushing(facts: ProgramFacts, event: NoticeReceived | NoticeChanged, now: float) -> Effects:
    """Takes the checkpoint that is being written for the first flush; the last flush comes at its own time."""
    record_notice(facts, event, now)
    if _goes_on(facts):
        facts.deadline_at = flushing_deadline(facts, now)
    return []


@leads_to(State.STARTING, State.STOPPED)
def notice_waiting(facts: ProgramFacts, event: NoticeReceived | NoticeChanged, now: float) -> Effects:
    """Checks again whether there is time for an attempt, if one waits for the host; a back-off goes on."""
    record_notice(facts, event, now)
    return launch(facts, now) if facts.waits_for_host else []


def notice_ended(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Forgets the notice."""
    if facts.freeze_until is not None:
        facts.restart_silence(now)
        facts.freeze_until = None
    facts.notice = facts.current.flush_retry_at = None
    facts.notice_recalled = facts.current.last_flush_requested = facts.current.early_flush_requested = False
    facts.upload_fits = True
    return []


def notice_ended_starting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Forgets the notice; the silence of a job's start counts from now on."""
    notice_ended(facts, event, now)
    _set_starting_deadline(facts)
    return []


@leads_to(State.STARTING, State.STOPPED)
def notice_ended_waiting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Starts a job that waited for the host, since the host stays."""
    notice_ended(facts, event, now)
    return launch(facts, now) if facts.waits_for_host else []


def while_running(record: Action) -> Action:
    """`record` in a job that trains: its last flush is planned anew."""

    @wraps(record)
    def action(facts: ProgramFacts, event: Any, now: float) -> Effects:
        record(facts, event, now)
        facts.deadline_at = running_deadline(facts, now)
        return []

    return action


def while_flushing(record: Action) -> Action:
    """`record` while a flush is under way: the next one is planned anew, if the job goes on after this."""

    @wraps(record)
    def action(facts: ProgramFacts, event: Any, now: float) -> Effects:
        record(facts, event, now)
        if _goes_on(facts):
            facts.deadline_at = flushing_deadline(facts, now)
        return []

    return action


def saves_measured(facts: ProgramFacts, event: SavesMeasured, now: float) -> Effects:
    """Records how long a save is expected to take."""
    facts.save_s = event.save_s
    return []


def uploads_changed(facts: ProgramFacts, event: UploadsChanged, now: float) -> Effects:
    """Records what waits for the mirror and how long the next upload is expected to take.

    A last flush for which there was not enough time may turn out to fit, as uploads end; one that was planned is given
    up only once its moment has passed.
    """
    facts.upload_waits, facts.upload_s = event.waits, event.upload_s
    if facts.notice is not None and not facts.current.last_flush_requested:
        before = facts.upload_waits + (facts.current.flush is not None)
        planned_at = notice_plan.last_flush_at(facts)
        is_still = facts.upload_fits and planned_at is not None and now <= planned_at
        facts.upload_fits = is_still or notice_plan.fits_uploads(facts, now, before)
    return []


@leads_to(State.FLUSHING, State.STOPPING)
def running_expired(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The deadline of RUNNING: a flush for the notice is due, the worker hangs, or its silence is to be looked at.

    Nothing, if the flush it was set for is no longer needed: the worker is done, or it is too late for the early one.
    """
    due_at, hangs_at = notice_plan.flush_due_at(facts, now), hang_deadline(facts)
    if due_at is not None and due_at <= now and (hangs_at is None or now < hangs_at or due_at <= hangs_at):
        return _flush(facts, now)
    if hangs_at is not None and hangs_at <= now:
        return end_hung_worker(facts, event, now)
    if looks := look_at_silence(facts, now):
        return looks
    facts.deadline_at = running_deadline(facts, now)
    return []


@leads_to(State.RUNNING, State.STOPPING)
def flushing_expired(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The deadline of FLUSHING: the last flush is due while the first is under way, or the flush took too long."""
    last_at = notice_plan.last_flush_at(facts)
    if _goes_on(facts) and last_at is not None and last_at <= now and not facts.current.done_reported:
        return _flush(facts, now)
    return flush_too_long(facts, event, now)


def _set_starting_deadline(facts: ProgramFacts) -> None:
    if facts.policy.is_job:
        facts.deadline_at = starting_deadline(facts)


def _goes_on(facts: ProgramFacts) -> bool:
    return facts.current.flush is not None and facts.current.flush.then is Then.GO_ON


def _flush(facts: ProgramFacts, now: float) -> Effects:
    """Requests the first flush, or the last one if that is due, after which the worker stops if on_notice says so."""
    last_at, early_at = notice_plan.last_flush_at(facts), notice_plan.early_flush_at(facts)
    if last_at is None or now < last_at:
        facts.current.early_flush_requested = facts.current.early_flush_requested or (
            early_at is not None and early_at <= now
        )
        return request_flush(facts, REASON, Then.GO_ON, now)
    facts.current.last_flush_requested = True
    if facts.policy.on_notice is OnNotice.TRAIN or facts.notice is None:
        return request_flush(facts, REASON, Then.GO_ON, now)
    facts.current.decided_end = (
        Cause.PREEMPTION,
        f"left because the host was going away ({notice_plan.describe_notice(facts.notice)})",
    )
    return request_flush(facts, REASON, Then.STOP, now)
