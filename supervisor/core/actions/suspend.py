"""Suspend detection: the host was suspended or frozen, or the daemon could not run.

Meanwhile no worker could do a step and no report could arrive, but the clock that limits are measured with went on. (In
a suspend to memory that clock stops too, so nothing needs to be done.) A timer that comes more than 5 s late shows it.
Whatever was waited for then has its whole time again: a limit that passed unseen says nothing about the worker.
"""

from supervisor.core.actions.adopting import ANSWER_S
from supervisor.core.actions.transitions import Effects, flushing_deadline, running_deadline, starting_deadline
from supervisor.core.program.events import HostSuspended
from supervisor.core.program.facts import PendingFlush, ProgramFacts
from supervisor.protocol.wire.messages import Then

CHECK_INTERVAL_S = 5.0  # how often the daemon checks the clock
SUSPENDED_AFTER_S = 5.0  # no timer of a busy host is that late; shorter suspensions fit into every limit


def suspended_for_s(due_at: float, now: float) -> float | None:
    """For how long nothing ran, if what was due at `due_at` (monotonic seconds) happens only now; None if all ran."""
    late_s = now - due_at
    return late_s if late_s > SUSPENDED_AFTER_S else None


def host_suspended_running(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """Measures silence from now on."""
    facts.restart_silence(now)
    facts.deadline_at = running_deadline(facts, now)
    return []


def host_suspended_starting(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """Gives a job a whole start-up's time again; a plain program has only become older."""
    if facts.policy.is_job:
        facts.restart_silence(now)
        facts.current.startup_deadline_at = now + facts.policy.startup_timeout
        facts.deadline_at = starting_deadline(facts)
    return []


def host_suspended_flushing(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """Gives the flush, or the stop after it, its whole time again."""
    facts.restart_silence(now)
    flush = facts.current.flush
    if flush is not None and flush.committed and flush.then is Then.STOP:
        facts.deadline_at = now + facts.policy.stopwaitsecs
    elif flush is not None:
        facts.current.flush = PendingFlush(flush.id, flush.then, flush.committed, now)
        facts.deadline_at = flushing_deadline(facts, now)
    return []


def host_suspended_stopping(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """Gives the worker its whole time to stop again."""
    facts.deadline_at = now + facts.policy.stopwaitsecs
    return []


def host_suspended_adopting(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """Gives the worker its time to answer again, and a whole start-up's time."""
    facts.restart_silence(now)
    facts.current.startup_deadline_at = now + facts.policy.startup_timeout
    if facts.deadline_at is not None:
        facts.deadline_at = max(facts.deadline_at, now + ANSWER_S)
    return []
