"""Recovers from an exception in an action: the facts are as before the event, and the simplest safe thing is done."""

from supervisor.core.actions.transitions import Effects, enter
from supervisor.core.failures.restart import BACKOFF_LIMIT_S, Cause
from supervisor.core.program.effects import RecordEnd, RecordWanted, Terminate
from supervisor.core.program.events import (
    AttemptLost,
    DeadlinePassed,
    Event,
    ProgramClosed,
    SpawnFailed,
    StopRequested,
    WorkerExited,
)
from supervisor.core.program.facts import ALIVE, ProgramFacts, State

AGAIN_S = 10.0  # a deadline whose action failed is handled again; soon enough for a hang, seldom enough for the log


def recover(facts: ProgramFacts, event: Event, error: str, now: float) -> Effects:
    """Restarts after a minute what has ended, and sends the stop signal where a stop was requested.

    Any other event is treated as if it had not happened; a worker trains on.
    """
    match event:
        case WorkerExited() | SpawnFailed() | AttemptLost():
            record = RecordEnd(facts.attempt, Cause.LOST, error)
            facts.current.flush = None
            if facts.closing or not facts.wanted:
                enter(facts, State.STOPPED)
                return [record]
            facts.reason = error
            enter(facts, State.BACKOFF, now + BACKOFF_LIMIT_S)
            return [record]
        case StopRequested() | ProgramClosed():
            return _stop(facts, event, now)
        case DeadlinePassed():
            facts.deadline_at = now + AGAIN_S
    return []


def _stop(facts: ProgramFacts, event: StopRequested | ProgramClosed, now: float) -> Effects:
    remember: Effects = []
    if isinstance(event, StopRequested):
        facts.wanted = False
        remember.append(RecordWanted(False))
    else:
        facts.closing = True
    if facts.state in ALIVE:
        enter(facts, State.STOPPING, now + facts.policy.stopwaitsecs)
        return [*remember, Terminate(facts.attempt)]
    if facts.state is State.BACKOFF:
        enter(facts, State.STOPPED)
    return remember
