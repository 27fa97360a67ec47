"""The moves that several actions share: entering a state, launching, asking for a flush, giving up."""

from supervisor.core import restart
from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.effects import Abort, Kill, RequestFlush, SelectCheckpoint, Spawn, Terminate
from supervisor.core.events import Event
from supervisor.core.facts import KILL_AGAIN_S, Facts, Flush, State
from supervisor.core.restart import Cause
from supervisor.protocol.messages import Then


def enter(facts: Facts, state: State, deadline_at: float | None = None) -> None:
    """Changes the state and its one deadline, always together."""
    facts.state = state
    facts.deadline_at = deadline_at


def run(facts: Facts) -> None:
    """It does its work: no flush is pending, the next deadline is the hang's."""
    facts.moved = True
    facts.flush = None
    enter(facts, State.RUNNING, hang_deadline(facts))


def hang_deadline(facts: Facts) -> float | None:
    """When silence becomes a hang; never for a plain program, whose progress nobody sees."""
    timeout = facts.policy.hang_timeout
    return None if timeout is None or not facts.policy.is_job else facts.progressed_at + timeout


def launch(facts: Facts, now: float) -> Effects:
    """A new attempt; what was known of the last one is forgotten. A job's checkpoint is verified while it loads."""
    policy = facts.policy
    facts.attempt += 1
    facts.started_at = facts.progressed_at = now
    facts.moved = facts.done_said = facts.restoring = facts.outdated = False
    facts.step = facts.flush = facts.last_words = facts.ending = facts.reason = None
    if not policy.is_job:
        enter(facts, State.STARTING, now + policy.startsecs)
        return [Spawn(facts.attempt)]
    enter(facts, State.STARTING, now + policy.startup_timeout)
    return [Spawn(facts.attempt), SelectCheckpoint(facts.attempt)]


def ask(facts: Facts, reason: str, then: Then, now: float) -> Effects:
    """Asks the worker for a checkpoint."""
    facts.flushes_asked += 1
    facts.flush = Flush(facts.flushes_asked, then)
    limit = facts.policy.flush_timeout
    enter(facts, State.FLUSHING, now + limit)
    return [RequestFlush(facts.attempt, facts.flush.id, reason, then, limit)]


def abort(facts: Facts, now: float) -> Effects:
    """Has the worker write down what it was doing, and die."""
    enter(facts, State.STOPPING, now + facts.policy.stop_timeout)
    return [Abort(facts.attempt)]


@leads_to(State.STOPPING)
def terminate(facts: Facts, event: Event, now: float) -> Effects:
    """The stop signal, and its time limit."""
    enter(facts, State.STOPPING, now + facts.policy.stop_timeout)
    return [Terminate(facts.attempt)]


@leads_to(State.KILLING)
def kill(facts: Facts, event: Event, now: float) -> Effects:
    """SIGKILL to everything the worker started; repeated until it is gone."""
    enter(facts, State.KILLING, now + KILL_AGAIN_S)
    return [Kill(facts.attempt)]


def retry(facts: Facts, cause: Cause, text: str, now: float) -> Effects:
    """Books a failure and goes on: at once after progress, later after none, never once the budget is spent."""
    policy, failures = facts.policy, facts.failures
    failures.add(cause, facts.moved)
    if failures.exhausted(cause, policy.startretries):
        lack = "a new checkpoint" if policy.is_job else "staying up"
        count = failures.by_cause[cause]
        return fail(facts, f"{count} failures ({cause}) in a row without {lack}, the last: {text}")
    pause = restart.delay(failures.idle_deaths, f"{policy.name}:{facts.attempt}")
    if pause <= 0:
        return launch(facts, now)
    facts.reason = text
    enter(facts, State.BACKOFF, now + pause)
    return []


def fail(facts: Facts, reason: str) -> Effects:
    """Gives up until a person acts."""
    facts.reason = reason
    enter(facts, State.FAILED)
    return []
