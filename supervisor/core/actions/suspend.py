"""The host stood still, or is about to: silence in that time is no hang, and a limit that passed in it did not pass."""

from supervisor.core.actions.adopting import ANSWER_S
from supervisor.core.actions.base import Effects
from supervisor.core.actions.transitions import flushing_deadline, running_deadline, starting_deadline
from supervisor.core.program.events import HostSuspended
from supervisor.core.program.facts import PendingFlush, ProgramFacts
from supervisor.protocol.messages import Then

CHECK_INTERVAL_S = 5.0  # how often the loop looks at the clock
SUSPENDED_AFTER_S = 5.0  # so late is no timer of a host that is merely busy; shorter stands fit into every limit


def suspended_for_s(due_at: float, now: float) -> float | None:
    """How long everything stood still, if what was due at `due_at` (monotonic seconds) comes only now; None: it ran."""
    late_s = now - due_at
    return late_s if late_s > SUSPENDED_AFTER_S else None


def host_suspended_running(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """It may be silent for as long as ever, from now on."""
    facts.restart_silence(now)
    facts.deadline_at = running_deadline(facts, now)
    return []


def host_suspended_starting(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """A job has as long as a new one; a plain program is only older than it was."""
    if facts.policy.is_job:
        facts.restart_silence(now)
        facts.current.startup_deadline_at = now + facts.policy.startup_timeout
        facts.deadline_at = starting_deadline(facts)
    return []


def host_suspended_flushing(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """The same for the checkpoint, or for the worker's way out after it."""
    facts.restart_silence(now)
    flush = facts.current.flush
    if flush is not None and flush.committed and flush.then is Then.STOP:
        facts.deadline_at = now + facts.policy.stopwaitsecs
    elif flush is not None:
        facts.current.flush = PendingFlush(flush.id, flush.then, flush.committed, now)
        facts.deadline_at = flushing_deadline(facts, now)
    return []


def host_suspended_stopping(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """It could not heed the signal."""
    facts.deadline_at = now + facts.policy.stopwaitsecs
    return []


def host_suspended_adopting(facts: ProgramFacts, event: HostSuspended, now: float) -> Effects:
    """It could not answer; one that starts has as long as a new one."""
    facts.restart_silence(now)
    facts.current.startup_deadline_at = now + facts.policy.startup_timeout
    if facts.deadline_at is not None:
        facts.deadline_at = max(facts.deadline_at, now + ANSWER_S)
    return []
