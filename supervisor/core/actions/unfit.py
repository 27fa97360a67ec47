"""A worker that runs and must not go on as it is: it makes room for another attempt, after a flush if it trains."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.moves import ask, terminate
from supervisor.core.program.events import WorkerUnfit
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.messages import Then


@leads_to(State.STOPPING)
def unfit_starting(facts: ProgramFacts, event: WorkerUnfit, now: float) -> Effects:
    """Nothing to flush yet."""
    facts.current.decided_end = (event.cause, event.text)
    return terminate(facts, event, now)


@leads_to(State.FLUSHING, State.STOPPING)
def unfit_running(facts: ProgramFacts, event: WorkerUnfit, now: float) -> Effects:
    """A job flushes first, so that nothing is lost."""
    facts.current.decided_end = (event.cause, event.text)
    if not facts.policy.is_job or facts.current.done_reported:
        return terminate(facts, event, now)
    return ask(facts, str(event.cause), Then.STOP, now)


def unfit_flushing(facts: ProgramFacts, event: WorkerUnfit, now: float) -> Effects:
    """Only news while training was to go on."""
    if facts.current.flush is not None and facts.current.flush.then is Then.STOP:
        return []
    return unfit_running(facts, event, now)
