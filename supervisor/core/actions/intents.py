"""What people and the daemon want: start, stop while nothing trains, leave."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.transitions import enter, launch
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordWanted
from supervisor.core.program.events import Event, ProgramClosed, StartRequested
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.messages import Then


def record_start_request(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """It is to run (again) once what goes on now is over."""
    if facts.wanted:
        return []
    facts.wanted = True
    return [RecordWanted(True)]


def record_stop(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """It is not to run any more; nothing to stop, or the stop is under way."""
    facts.current.start_afresh = False
    if not facts.wanted:
        return []
    facts.wanted = False
    return [RecordWanted(False)]


def close(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Closed; nothing runs that would have to stop, or it is stopping already.

    What stops because the daemon leaves is told the reason as soon as that is known; an operator's stop stays one.
    """
    facts.closing = True
    facts.host_leaves = facts.host_leaves or event.host_leaves
    if (
        facts.host_leaves
        and facts.wanted
        and facts.current.decided_end is not None
        and facts.current.decided_end[0] is Cause.STOPPED
    ):
        facts.current.decided_end = (Cause.PREEMPTION, f"stopped ({event.reason})")
    return []


@leads_to(State.STARTING, State.BACKOFF)
def start(facts: ProgramFacts, event: StartRequested, now: float) -> Effects:
    """A fresh start by an operator: old failures count no more. A new daemon goes on where the one before stopped."""
    effects = record_start_request(facts, event, now)
    if facts.closing:
        return effects
    rests_until, facts.backoff_until = facts.backoff_until, None
    if event.resumes:
        if rests_until is not None and now < rests_until:
            enter(facts, State.BACKOFF, rests_until)
            return effects
        return effects + launch(facts, now)
    return effects + start_with_full_budgets(facts, now)


def start_with_full_budgets(facts: ProgramFacts, now: float) -> Effects:
    """Whatever it failed of before, it gets an attempt, and all budgets."""
    facts.failures.reset_all()
    facts.suspects.reset_all()
    facts.hang_detector.forget_hangs()
    facts.best_step, facts.ever_trained = None, False
    return launch(facts, now)


def restart_when_stopped(facts: ProgramFacts, event: StartRequested, now: float) -> Effects:
    """A start while it stops, for whatever reason: as from one that stands still, once it is gone."""
    trains_on = facts.current.flush is not None and facts.current.flush.then is Then.GO_ON
    if not (event.resumes or (facts.state is State.FLUSHING and trains_on)):
        facts.current.start_afresh = True
    return record_start_request(facts, event, now)


@leads_to(State.STOPPED)
def stop_waiting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Stop while waiting for the next attempt: nothing to wait for any more."""
    effects = record_stop(facts, event, now)
    _wait_no_more(facts)
    return effects


@leads_to(State.STOPPED)
def close_waiting(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Closed during back-off; whoever runs it next starts it at once."""
    close(facts, event, now)
    _wait_no_more(facts)
    return []


@leads_to(State.STARTING, State.STOPPED)
def backoff_over(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The back-off is over."""
    return launch(facts, now)


def _wait_no_more(facts: ProgramFacts) -> None:
    """What it waited for goes; why its last attempt failed stays to be seen."""
    facts.reason = None if facts.waits_for_host else facts.reason
    enter(facts, State.STOPPED)
