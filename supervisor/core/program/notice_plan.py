"""What the host's fate means for one job: when its flushes are due, and whether a start is still worth its while."""

from supervisor.core.failures.restart import Cause
from supervisor.core.notices.flush import latest_flush_at
from supervisor.core.notices.notice import Certainty, Notice
from supervisor.core.program.facts import ALIVE, ProgramFacts, State

UNMEASURED_STARTUP_S = 30.0  # importing TensorFlow, restoring and tracing take 10 to 30 s; then measured
FREEZE_LIMIT_S = (
    600.0  # so long a notice of a freeze suspends the watch for hangs, should nobody ever say that it is over
)
RETRY_S = 1.0  # a flush failed and the host is going: a full disk may have space in a second, and time is short
RETRY_WITHOUT_DEADLINE_S = 30.0  # the same, where nobody says when the host goes


def is_host_going(facts: ProgramFacts) -> bool:
    """Whether the host is certain to go away."""
    return facts.notice is not None and facts.notice.certainty is Certainty.CERTAIN


def host_gone_at(facts: ProgramFacts) -> float | None:
    """When the host may be gone (monotonic seconds); None: it is not certain to go, or nobody says when."""
    return facts.notice.deadline_at if facts.notice is not None and is_host_going(facts) else None


def expected_save_s(facts: ProgramFacts) -> float | None:
    """How long a save is going to take, as far as this job has ever done one."""
    return facts.save_s if facts.save_s is not None else facts.flush_s


def slowest_step_s(facts: ProgramFacts) -> float:
    """How long the step may take that a flush has to wait for; 0 if neither a step nor a flush was measured."""
    if facts.steps_s:
        return max(facts.steps_s)
    return max(0.0, (facts.flush_s or 0.0) - (facts.save_s or 0.0))


def flush_takes_s(facts: ProgramFacts) -> float | None:
    """From asking to a checkpoint on the disk, with the margin; None: never measured."""
    save = expected_save_s(facts)
    return None if save is None else slowest_step_s(facts) + save + facts.policy.notice_margin


def longest_pause_s(facts: ProgramFacts) -> float:
    """The longest time without a step, lately: an evaluation, say. 0 if there was none."""
    return max((each.pause_s for each in facts.pauses), default=0.0)


def wait_for_step_s(facts: ProgramFacts) -> float:
    """How long the last flush has to wait for a step, as it is planned for.

    A pause no longer than a step and a save is planned for, as there is no time to save before it; less the margin,
    which is there for what seldom comes and is not needed twice. For longer ones there is `insurance_at`.
    """
    step, pause = slowest_step_s(facts), longest_pause_s(facts)
    return max(step, pause - facts.policy.notice_margin) if pause <= step + (expected_save_s(facts) or 0.0) else step


def last_flush_at(facts: ProgramFacts) -> float | None:
    """When the last flush before the host goes is due (monotonic seconds).

    None: there is none to come, or nobody knows how long it takes.
    """
    end, save = host_gone_at(facts), expected_save_s(facts)
    if end is None or save is None or facts.current.last_flush_requested or not facts.policy.is_job:
        return None
    return latest_flush_at(end, wait_for_step_s(facts), save, facts.policy.notice_margin)


def early_flush_at(facts: ProgramFacts) -> float | None:
    """When a checkpoint more is due (monotonic seconds), because a long pause may begin before the last one is.

    Training goes on after it; if the pause does come, and outlasts the host, what was trained until here is not lost.
    None: no pause is that long, or it was asked for.
    """
    last_at, pause = last_flush_at(facts), longest_pause_s(facts)
    if last_at is None or facts.current.early_flush_requested or pause <= wait_for_step_s(facts):
        return None
    return last_at + wait_for_step_s(facts) - pause


def flush_due_at(facts: ProgramFacts, now: float) -> float | None:
    """When a job that trains is to be asked for a checkpoint because of the notice (monotonic seconds)."""
    if facts.notice is None or facts.current.done_reported or not facts.policy.is_job:
        return None
    again_at, last_at = facts.current.flush_retry_at, last_flush_at(facts)
    if host_gone_at(facts) is None or facts.current.last_flush_requested:
        return again_at
    if last_at is None:  # how long it takes is not known, so there is no time to lose
        return now if again_at is None else again_at
    insured_at = early_flush_at(facts)
    if (
        insured_at is not None
        and max(now, insured_at) + slowest_step_s(facts) + (expected_save_s(facts) or 0.0) <= last_at
    ):
        last_at = insured_at
    return last_at if again_at is None else min(last_at, again_at)


def flush_limit_s(facts: ProgramFacts, now: float) -> float:
    """Seconds that a flush asked for now has, as the worker is told."""
    limit, end = facts.policy.flush_timeout, host_gone_at(facts)
    return limit if end is None or end <= now else min(limit, end - now)


def no_start_before(facts: ProgramFacts, now: float) -> float | None:
    """Until when a start has to wait (monotonic seconds), as the host goes before a step could be saved; None: now."""
    end, policy = host_gone_at(facts), facts.policy
    if end is None or not policy.is_job:
        return None
    startup_s = UNMEASURED_STARTUP_S if facts.startup_s is None else facts.startup_s
    needed_s = startup_s + slowest_step_s(facts) + (expected_save_s(facts) or 0.0) + policy.notice_margin
    over_at = end + policy.notice_grace
    return over_at if end - now < needed_s and now < over_at else None


def can_flush(facts: ProgramFacts) -> bool:
    """Whether there is a training process that a notice makes save."""
    return facts.policy.is_job and facts.state in (State.RUNNING, State.FLUSHING)


def has_nothing_to_lose(facts: ProgramFacts) -> bool:
    """Whether the host may go at once, as far as this program goes: all is on the disk that was to be."""
    if not facts.policy.is_job or facts.state not in ALIVE:
        return True
    if facts.state is State.RUNNING:
        return facts.current.last_flush_requested and facts.current.flush_retry_at is None
    return facts.state is State.STARTING and not facts.current.made_progress


def stop_cause(facts: ProgramFacts) -> Cause:
    """What a stop is booked as: the daemon leaves because the host goes, or somebody wants it."""
    return Cause.PREEMPTION if facts.closing and (facts.host_leaves or is_host_going(facts)) else Cause.STOPPED


def describe_notice(notice: Notice) -> str:
    """A notice in a few words for people."""
    return f"{notice.source}: {notice.text}" if notice.text else notice.source
