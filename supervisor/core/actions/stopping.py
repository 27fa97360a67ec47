"""PendingFlush, and stop."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.moves import ask, run, terminate, try_flush_again
from supervisor.core.actions.wishes import close, unwant
from supervisor.core.failures.restart import Cause
from supervisor.core.program.events import Closed, Event, FlushRequested
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.core.program.outlook import cause_of_stop
from supervisor.protocol.messages import Then


@leads_to(State.FLUSHING)
def flush(facts: ProgramFacts, event: FlushRequested, now: float) -> Effects:
    """A checkpoint now, and training goes on."""
    return ask(facts, event.reason, Then.GO_ON, now) if facts.policy.is_job else []


@leads_to(State.FLUSHING, State.STOPPING)
def stop_running(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """An operator's stop: a job flushes first."""
    return unwant(facts, event, now) + _stop(facts, "stop", now)


@leads_to(State.FLUSHING, State.STOPPING)
def close_running(facts: ProgramFacts, event: Closed, now: float) -> Effects:
    """Closed: the same, but the program stays wanted."""
    close(facts, event, now)
    return _stop(facts, event.reason, now)


def stop_flushing(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Stop while a checkpoint is being written for somebody who wants training to go on: it has to stop, too."""
    return unwant(facts, event, now) + _stop_after_flush(facts, "stop", now)


def close_flushing(facts: ProgramFacts, event: Closed, now: float) -> Effects:
    """Closed during a flush."""
    close(facts, event, now)
    return _stop_after_flush(facts, event.reason, now)


@leads_to(State.STOPPING)
def stop_starting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """It has not trained yet: nothing to flush."""
    facts.current.decided_end = facts.current.decided_end or (Cause.STOPPED, "stopped while starting")
    return unwant(facts, event, now) + terminate(facts, event, now)


@leads_to(State.STOPPING)
def close_starting(facts: ProgramFacts, event: Closed, now: float) -> Effects:
    """Closed before the program trains."""
    close(facts, event, now)
    facts.current.decided_end = facts.current.decided_end or (
        cause_of_stop(facts),
        f"stopped while starting ({event.reason})",
    )
    return terminate(facts, event, now)


@leads_to(State.STOPPING)
def hurry_flushing(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """No time for the flush before a stop; where training was to go on nobody has told it to stop yet."""
    if facts.current.flush is not None and facts.current.flush.then is Then.GO_ON:
        return []
    return terminate(facts, event, now)


def flush_too_long(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The deadline of FLUSHING: training goes on where it was to go on, else the stop signal."""
    if facts.current.flush is not None and facts.current.flush.then is Then.GO_ON:
        try_flush_again(facts, now)
        run(facts, now)
        return []
    if facts.current.flush is not None and not facts.current.flush.committed:
        cause = facts.current.decided_end[0] if facts.current.decided_end else Cause.STOPPED
        facts.current.decided_end = (cause, f"no checkpoint within {facts.policy.flush_timeout:g} s (flush_timeout)")
    return terminate(facts, event, now)


def stop_now(facts: ProgramFacts, reason: str, now: float) -> Effects:
    """From any state in which it runs: flush first, unless it is a plain program, did not train, or is done."""
    if facts.state is State.FLUSHING:
        return _stop_after_flush(facts, reason, now)
    return _stop(facts, reason, now)


def _stop(facts: ProgramFacts, reason: str, now: float) -> Effects:
    facts.current.decided_end = (cause_of_stop(facts), f"stopped ({reason})")
    if not facts.policy.is_job or facts.current.done_reported:
        return terminate(facts, None, now)
    return ask(facts, reason, Then.STOP, now)


def _stop_after_flush(facts: ProgramFacts, reason: str, now: float) -> Effects:
    if facts.current.flush is not None and facts.current.flush.then is Then.STOP:
        return []
    return _stop(facts, reason, now)
