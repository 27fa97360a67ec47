"""Flushes, stops, and restarts that a limit or a health check requires."""

from supervisor.core.actions.intents import close, record_stop
from supervisor.core.actions.memory_copies import release_memory
from supervisor.core.actions.transitions import (
    Effects,
    enter_running,
    kill,
    leads_to,
    request_flush,
    schedule_flush_retry,
    terminate,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.program.events import (
    CheckpointOutdated,
    Event,
    FlushRequested,
    GangBroken,
    ProgramClosed,
    RestartRequired,
    RunTakenOver,
)
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.core.program.notice_plan import last_flush_ends_at, stop_cause
from supervisor.protocol.wire.messages import Then


@leads_to(State.FLUSHING)
def flush_running(facts: ProgramFacts, event: FlushRequested, now: float) -> Effects:
    """Requests a checkpoint; training goes on."""
    return request_flush(facts, event.reason, Then.GO_ON, now) if facts.policy.is_job else []


@leads_to(State.FLUSHING, State.STOPPING)
def stop_running(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Stops for an operator; a job flushes first."""
    return record_stop(facts, event, now) + _stop(facts, "stop", now)


@leads_to(State.FLUSHING, State.STOPPING)
def close_running(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Stops as for an operator, but the program stays wanted."""
    close(facts, event, now)
    return _stop(facts, event.reason, now)


def stop_flushing(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Stops after the flush under way; if training was to go on after it, another flush is requested."""
    return record_stop(facts, event, now) + _stop_after_flush(facts, "stop", now)


def close_flushing(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Stops after the flush under way; the program stays wanted."""
    close(facts, event, now)
    return _stop_after_flush(facts, event.reason, now)


@leads_to(State.STOPPING)
def stop_starting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Sends the stop signal at once, as there is nothing to flush before the first step."""
    facts.current.decided_end = facts.current.decided_end or (Cause.STOPPED, "stopped while starting")
    return record_stop(facts, event, now) + terminate(facts, event, now)


@leads_to(State.STOPPING)
def close_starting(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Sends the stop signal at once; the program stays wanted."""
    close(facts, event, now)
    facts.current.decided_end = facts.current.decided_end or (
        stop_cause(facts),
        f"stopped while starting ({event.reason})",
    )
    return terminate(facts, event, now)


@leads_to(State.STOPPING)
def hurry_flushing(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Cuts short the flush before a stop; a flush after which training goes on is left alone."""
    if facts.current.flush is not None and facts.current.flush.then is Then.GO_ON:
        return []
    if facts.current.flush is not None and not facts.current.flush.committed:
        facts.current.flush_failure = "the stop was hurried"
    return terminate(facts, event, now)


def flush_too_long(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The flush took too long: training goes on, or the stop signal is sent if a stop was to follow."""
    if facts.current.flush is not None and facts.current.flush.then is Then.GO_ON:
        schedule_flush_retry(facts, now)
        enter_running(facts, now)
        return []
    if facts.current.flush is not None and not facts.current.flush.committed:
        cause = facts.current.decided_end[0] if facts.current.decided_end else Cause.STOPPED
        ends_at = facts.current.flush.requested_at + facts.policy.flush_timeout
        limit = f"within {facts.policy.flush_timeout:g} s (flush_timeout)"
        if (last_flush_ends_at(facts) or 0.0) > ends_at:
            limit = "before the deadline of the notice"
        facts.current.decided_end = (cause, f"no checkpoint {limit}")
        facts.current.flush_failure = f"no checkpoint came {limit}"
    return terminate(facts, event, now)


def stop_now(facts: ProgramFacts, reason: str, now: float) -> Effects:
    """Stops from RUNNING or FLUSHING: a job that trains and is not done flushes first."""
    if facts.state is State.FLUSHING:
        return _stop_after_flush(facts, reason, now)
    return _stop(facts, reason, now)


def _stop(facts: ProgramFacts, reason: str, now: float) -> Effects:
    facts.current.decided_end = (stop_cause(facts), f"stopped ({reason})")
    if not facts.policy.is_job or facts.current.done_reported:
        return terminate(facts, None, now)
    return request_flush(facts, reason, Then.STOP, now)


def _stop_after_flush(facts: ProgramFacts, reason: str, now: float) -> Effects:
    if facts.current.flush is not None and facts.current.flush.then is Then.STOP:
        return []
    return _stop(facts, reason, now)


# --- a worker that is over its memory limit, or unhealthy, makes room for another attempt ---


@leads_to(State.KILLING)
def run_taken_over(facts: ProgramFacts, event: RunTakenOver, now: float) -> Effects:
    """Kills the worker without a flush, and gives up: another host trains this run, and what is here does not count."""
    facts.current.decided_end = (Cause.SETUP, event.text)
    return kill(facts, event, now)


@leads_to(State.KILLING)
def checkpoint_outdated(facts: ProgramFacts, event: CheckpointOutdated, now: float) -> Effects:
    """Kills the worker without a flush, and begins again at once from the newer one; counts against no budget."""
    facts.current.decided_end = (Cause.LOST, event.text)
    return [*release_memory(facts), *kill(facts, event, now)]


@leads_to(State.STOPPING, State.KILLING)
def restart_starting(facts: ProgramFacts, event: RestartRequired, now: float) -> Effects:
    """Sends the stop signal; there is nothing to flush yet."""
    facts.current.decided_end = (event.cause, event.text)
    return terminate(facts, event, now) if event.can_save else kill(facts, event, now)


@leads_to(State.KILLING)
def gang_broken(facts: ProgramFacts, event: GangBroken, now: float) -> Effects:
    """Kills the worker: it can neither step nor save, as both need all ranks. The failure counts where it happened.

    Training diverges on all ranks at once, and whichever ends first: what this one has reported holds.
    """
    facts.current.decided_end = (Cause.LOST, event.text)
    if facts.current.go_back and facts.current.reported_error is not None:
        facts.current.decided_end = (Cause.DIVERGENCE, facts.current.reported_error)
    return kill(facts, event, now)


@leads_to(State.FLUSHING, State.STOPPING, State.KILLING)
def restart_running(facts: ProgramFacts, event: RestartRequired, now: float) -> Effects:
    """Stops the worker; a job flushes first, so that nothing is lost. One that can't is killed."""
    facts.current.decided_end = (event.cause, event.text)
    if not event.can_save:
        return kill(facts, event, now)
    if not facts.policy.is_job or facts.current.done_reported:
        return terminate(facts, event, now)
    return request_flush(facts, str(event.cause), Then.STOP, now)


@leads_to(State.FLUSHING, State.STOPPING, State.KILLING)
def restart_flushing(facts: ProgramFacts, event: RestartRequired, now: float) -> Effects:
    """Stops the worker after a flush, unless a stop is under way already; in that, one that can't save is killed."""
    flush = facts.current.flush
    if flush is not None and flush.then is Then.STOP:
        if event.can_save or flush.committed:
            return []
        if facts.current.decided_end is None or facts.current.decided_end[0] is not Cause.STOPPED:
            facts.current.decided_end = (event.cause, event.text)
        facts.current.flush_failure = event.text
        return kill(facts, event, now)
    return restart_running(facts, event, now)
