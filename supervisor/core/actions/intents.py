"""Intents of operators and of the daemon: start, stop while nothing trains, leave."""

from supervisor.core.actions.launching import launch
from supervisor.core.actions.storage_waits import look_at_storage
from supervisor.core.actions.transitions import Effects, enter, leads_to
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordWanted, WithdrawOrder
from supervisor.core.program.events import Event, GangBegins, ProgramClosed, StartRequested
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.wire.messages import Then


def record_start_request(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Records that the program is to run; what goes on now is not interrupted."""
    if facts.wanted:
        return []
    facts.wanted = True
    return [RecordWanted(True)]


def record_stop(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Records that the program is to stop; there is nothing to stop, or it is stopping already."""
    withdraw: Effects = [] if facts.begin_at in (None, facts.set_aside) else [WithdrawOrder()]
    facts.current.start_afresh, facts.begin_at = False, facts.set_aside  # what is carried out on the disk holds
    if not facts.wanted:
        return withdraw
    facts.wanted = False
    return [*withdraw, RecordWanted(False)]


def close(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Records that nothing may be started any more; there is nothing to stop, or it is stopping already.

    If it turns out later that the host shuts down, a stop under way becomes a preemption; an operator's stop does not.
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
    """Starts the program: with full budgets for an operator, from where the last daemon was for a new one."""
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


@leads_to(State.STARTING, State.BACKOFF)
def begin_with_gang(facts: ProgramFacts, event: GangBegins, now: float) -> Effects:
    """Starts the next attempt of a rank, with all others and without a pause: budgets count on."""
    if facts.closing or not facts.wanted:
        return []
    facts.launched, facts.backoff_until = False, None
    return launch(facts, now)


def start_with_full_budgets(facts: ProgramFacts, now: float) -> Effects:
    """Launches an attempt with full budgets, whatever failed before."""
    facts.failures.reset_all()
    facts.suspects.reset_all()
    facts.hang_detector.forget_hangs()
    facts.best_step, facts.ever_trained = None, False
    facts.storage, facts.no_copies = None, False
    return launch(facts, now)


def restart_when_stopped(facts: ProgramFacts, event: StartRequested, now: float) -> Effects:
    """Records a start request while the program stops: once it is gone, it is started with full budgets."""
    trains_on = facts.current.flush is not None and facts.current.flush.then is Then.GO_ON
    if not (event.resumes or (facts.state is State.FLUSHING and trains_on)):
        facts.current.start_afresh = True
    return record_start_request(facts, event, now)


@leads_to(State.STOPPED)
def stop_waiting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Stops a program that waits for its next attempt."""
    effects = record_stop(facts, event, now)
    _wait_no_more(facts)
    return effects


@leads_to(State.STOPPED)
def close_waiting(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Ends the back-off because the program is closed; the next daemon starts it at once."""
    close(facts, event, now)
    _wait_no_more(facts)
    return []


@leads_to(State.STARTING, State.STOPPED)
def backoff_over(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Launches the next attempt when the back-off is over; first looks at storage that is waited for."""
    return look_at_storage(facts, now) if facts.waits_for_storage else launch(facts, now)


def _wait_no_more(facts: ProgramFacts) -> None:
    """Ends the waiting. The reason for which the last attempt failed stays visible."""
    facts.reason = None if facts.waits_for_host else facts.reason
    facts.waits_for_storage = facts.start_paths_missing = False
    enter(facts, State.STOPPED)
