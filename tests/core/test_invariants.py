"""Each invariant can be broken, and a breach is reported without keeping anything from being done."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.core import invariants
from supervisor.core.failures.looks import SilenceEvidence
from supervisor.core.failures.restart import Cause
from supervisor.core.invariants import Invariant, all_invariants, broken
from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import events
from supervisor.core.program.effects import (
    Abort,
    Effect,
    Kill,
    RecordEnd,
    RecordWanted,
    ReportBreach,
    RequestFlush,
    SendGo,
    Spawn,
    Terminate,
)
from supervisor.core.program.events import Event
from supervisor.core.program.facts import PendingFlush, Policy, ProgramFacts, State
from supervisor.protocol.checkpoints.account import ProgressAccount, ReportedCheckpoint
from supervisor.protocol.wire.messages import Then

NOTICE = Notice("aws-spot", "1", NoticeKind.PREEMPTION, Certainty.CERTAIN, 100.0, False, "words")
FLUSH = RequestFlush(1, 1, "words", Then.GO_ON, 9.0)
EXIT = events.WorkerExited(1, 1)


def running() -> ProgramFacts:
    facts = ProgramFacts(Policy("p", is_job=True, checkpoint_dir="/c"), State.RUNNING, wanted=True, attempt=1)
    facts.current.step = 5
    return facts


def change(facts: ProgramFacts, **values: Any) -> ProgramFacts:
    after = facts.snapshot()
    for name, value in values.items():
        setattr(after.current if hasattr(after.current, name) else after, name, value)
    return after


def charged(**by_cause: int) -> ProgramFacts:
    after = running()
    after.failures.by_cause = {Cause(name.replace("_", "-")): count for name, count in by_cause.items()}
    return after


RUNS = running()
PENDING = PendingFlush(1, Then.GO_ON)
NEWEST = ReportedCheckpoint(100, "step-0000000100.a1", "/c")
KNOWS = change(RUNS, account=ProgressAccount(NEWEST, 3))
FALLEN = change(RUNS, account=ProgressAccount(None, 4))
BREACHES: list[tuple[Invariant, ProgramFacts, Event, list[Effect], ProgramFacts]] = [
    (invariants.the_account_never_falls_without_a_reason, KNOWS, events.TrainingRestored(1, 0), [], FALLEN),
    (invariants.the_account_never_falls_without_a_reason, KNOWS, EXIT, [], FALLEN),
    (
        invariants.each_change_of_the_account_has_a_revision,
        KNOWS,
        EXIT,
        [],
        change(RUNS, account=ProgressAccount(NEWEST, 5)),
    ),
    (
        invariants.no_start_is_behind_the_account_without_a_reason,
        KNOWS,
        events.CheckpointSelected(1, None, None),
        [SendGo(1, None)],
        KNOWS,
    ),
    (invariants.attempt_numbers_only_rise, RUNS, EXIT, [], change(RUNS, attempt=2)),
    (invariants.attempt_numbers_only_rise, RUNS, EXIT, [Spawn(0)], change(RUNS, attempt=0)),
    (
        invariants.wanted_changes_only_by_operators_or_completion,
        RUNS,
        events.NoticeReceived(NOTICE),
        [RecordWanted(False)],
        change(RUNS, wanted=False),
    ),
    (
        invariants.wanted_changes_only_by_operators_or_completion,
        RUNS,
        events.StopRequested(),
        [],
        change(RUNS, wanted=False),
    ),
    (
        invariants.saved_step_is_never_above_the_step,
        RUNS,
        events.CheckpointCommitted(1, 6),
        [],
        change(RUNS, saved_step=6),
    ),
    (
        invariants.evidence_ends_only_a_job_that_was_silent_meanwhile,
        change(RUNS, progressed_at=31.0),
        events.SilenceObserved(1, SilenceEvidence(30.0, 60.0)),
        [Abort(1)],
        change(RUNS, state=State.STOPPING),
    ),
    (
        invariants.evidence_ends_only_a_job_that_was_silent_meanwhile,
        RUNS,
        events.SilenceObserved(1, SilenceEvidence(30.0, 60.0)),
        [Abort(1)],
        change(RUNS, state=State.STOPPING),
    ),
    (invariants.closing_is_final, change(RUNS, closing=True), EXIT, [], RUNS),
    (
        invariants.failures_are_charged_once_and_to_their_own_budget,
        RUNS,
        EXIT,
        [RecordEnd(1, Cause.HANG, "words")],
        charged(crash=1),
    ),
    (
        invariants.failures_are_charged_once_and_to_their_own_budget,
        RUNS,
        EXIT,
        [RecordEnd(1, Cause.LOST, "words")],
        charged(lost=1),
    ),
    (
        invariants.failures_are_charged_once_and_to_their_own_budget,
        RUNS,
        EXIT,
        [RecordEnd(1, Cause.CRASH, "words")],
        charged(crash=2),
    ),
    (
        invariants.never_two_attempts,
        RUNS,
        events.StartRequested(),
        [Spawn(2)],
        change(RUNS, attempt=2, state=State.STARTING),
    ),
    (invariants.never_two_attempts, RUNS, EXIT, [Spawn(2), Spawn(2)], change(RUNS, attempt=2)),
    (
        invariants.only_what_is_wanted_is_started,
        RUNS,
        EXIT,
        [Spawn(2)],
        change(RUNS, attempt=2, closing=True, state=State.STARTING),
    ),
    (invariants.a_notice_ends_nothing, RUNS, events.NoticeReceived(NOTICE), [Kill(1)], RUNS),
    (invariants.what_ends_a_process_is_seen_in_the_state, RUNS, events.StopRequested(), [Kill(1)], RUNS),
    (invariants.what_ends_a_process_is_seen_in_the_state, RUNS, events.StopRequested(), [Terminate(1)], RUNS),
    (invariants.a_flush_is_asked_for_only_in_flushing, RUNS, events.FlushRequested("x"), [FLUSH], RUNS),
    (
        invariants.a_flush_is_asked_for_only_in_flushing,
        change(RUNS, flushes_requested=1),
        events.FlushRequested("x"),
        [FLUSH],
        change(RUNS, state=State.FLUSHING, flush=PENDING),
    ),
    (invariants.a_worker_begins_only_from_a_selected_checkpoint, RUNS, EXIT, [SendGo(1, None)], RUNS),
    (invariants.an_attempt_ends_once, RUNS, EXIT, [RecordEnd(1, "crash", ""), RecordEnd(1, "crash", "")], RUNS),
    (invariants.an_attempt_ends_once, RUNS, EXIT, [RecordEnd(2, "crash", "")], RUNS),
    (invariants.states_that_wait_have_a_deadline, RUNS, EXIT, [], change(RUNS, state=State.BACKOFF)),
    (
        invariants.states_that_rest_have_none,
        RUNS,
        EXIT,
        [],
        change(RUNS, state=State.STOPPED, deadline_at=9.0),
    ),
    (invariants.failed_has_a_reason, RUNS, EXIT, [], change(RUNS, state=State.FAILED)),
    (
        invariants.a_flush_is_pending_only_where_it_can_be_answered,
        RUNS,
        EXIT,
        [],
        change(RUNS, state=State.STARTING, flush=PENDING),
    ),
    (
        invariants.a_flush_is_pending_only_where_it_can_be_answered,
        RUNS,
        EXIT,
        [],
        change(RUNS, state=State.FLUSHING),
    ),
    (invariants.an_end_is_recorded, RUNS, EXIT, [], change(RUNS, state=State.STOPPED)),
    (
        invariants.only_a_process_that_is_gone_leaves_the_states_of_one,
        RUNS,
        events.StopRequested(),
        [],
        change(RUNS, state=State.STOPPED),
    ),
    (
        invariants.nothing_waits_for_a_host_that_stays,
        RUNS,
        EXIT,
        [],
        change(RUNS, state=State.BACKOFF, waits_for_host=True, deadline_at=9.0),
    ),
]


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach[0].__name__)
def test_a_planted_breach_is_seen(breach: tuple[Invariant, ProgramFacts, Event, list[Effect], ProgramFacts]):
    holds, before, event, effects, after = breach

    assert not holds(before, event, effects, after)
    assert holds.__name__ in broken(before, event, effects, after)


def test_every_invariant_has_been_seen_broken_and_has_words():
    assert {breach[0] for breach in BREACHES} == set(all_invariants())
    assert all(invariant.__doc__ for invariant in all_invariants())


def test_an_invariant_that_raises_is_a_breach_itself():
    def unreadable(*_: object) -> bool:
        raise ZeroDivisionError

    invariants._ALWAYS.append(unreadable)
    try:
        assert broken(RUNS, EXIT, [], RUNS) == ["internal error in a check: ZeroDivisionError()"]
    finally:
        invariants._ALWAYS.remove(unreadable)


def contradictory() -> Job:
    """A job that trains and waits for a flush at once, which no event can bring about."""
    job = Job(Policy("p", is_job=True, hang_timeout=9.0))
    for event in (
        events.StartRequested(),
        events.SpawnSucceeded(1),
        events.CheckpointSelected(1, None, None),
        events.TrainingRestored(1, 0),
        events.StepsDone(1, 1),
    ):
        job.handle(event, 1.0)
    job.facts.deadline_at, job.facts.current.flush = None, PENDING
    return job


def test_a_breach_is_reported_with_the_event_and_the_facts_and_the_job_goes_on():
    job = contradictory()

    (breach,) = job.handle(events.StepsDone(1, 2), 2.0)

    assert isinstance(breach, ReportBreach)
    assert breach.invariant == "a_flush_is_pending_only_where_it_can_be_answered"
    assert "StepsDone(attempt=1, step=2" in breach.event
    assert "deadline_at=None" in breach.before and "deadline_at=11.0" in breach.after
    assert job.facts.current.step == 2 and job.state is State.RUNNING


@pytest.mark.parametrize("handle", [Job.handle, lambda job, event, now: job.recover(event, "error", now)])
def test_nothing_is_reported_of_a_sound_job(handle: Callable[[Job, Event, float], list[Effect]]):
    job = contradictory()
    job.facts.current = replace(job.facts.current, flush=None)

    assert not [effect for effect in handle(job, EXIT, 3.0) if isinstance(effect, ReportBreach)]
