"""What an action is, and what several share: entering a state, its deadline, requesting a flush, ending, giving up."""

from collections.abc import Callable
from typing import Any

from supervisor.core.failures.hang_detection import SAFETY, LoopSection
from supervisor.core.failures.hang_evidence import least_silence_s, look_for_s, usual_step_s
from supervisor.core.program import notice_plan
from supervisor.core.program.effects import (
    Abort,
    Effect,
    Kill,
    RequestFlush,
    Terminate,
)
from supervisor.core.program.events import Event
from supervisor.core.program.facts import (
    KILL_AGAIN_S,
    PendingFlush,
    Policy,
    ProgramFacts,
    State,
)
from supervisor.protocol.wire.messages import Then

Effects = list[Effect]
Action = Callable[[ProgramFacts, Any, float], Effects]

TARGETS: dict[Action, frozenset[State]] = {}
"""For each action, the states it may lead to; an action that is not here leaves the state unchanged."""


def leads_to(*states: State) -> Callable[[Action], Action]:
    """Declares every state an action may move the program to.

    The diagram is drawn from this, and a test walks the machine at random to hold the declarations to the truth.
    """

    def declare(action: Action) -> Action:
        TARGETS[action] = frozenset(states)
        return action

    return declare


USE_WORKER = "train with worker.Run (docs/recipes.md), or remove checkpoint_dir to run it as a plain program"
"""The remedy for a job whose script does not speak to the daemon."""


def enter(facts: ProgramFacts, state: State, deadline_at: float | None = None) -> None:
    """Changes the state and its one deadline, always together."""
    facts.state = state
    facts.deadline_at = deadline_at


def enter_running(facts: ProgramFacts, now: float) -> None:
    """Enters RUNNING: no flush is pending, and the next deadline is a hang or a flush for a notice."""
    facts.current.made_progress = True
    facts.current.flush = None
    enter(facts, State.RUNNING, running_deadline(facts, now))


def plain_program_started(facts: ProgramFacts, now: float) -> None:
    """Enters RUNNING for a plain program, whose earlier failed starts no longer count."""
    enter_running(facts, now)
    facts.failures.refill_budgets()
    facts.storage = None


def running_deadline(facts: ProgramFacts, now: float) -> float | None:
    """The one deadline of RUNNING: silence becomes a hang or is looked at, or a flush for the notice is due."""
    hangs_at = hang_deadline(facts)
    times = (hangs_at, evidence_due_at(facts, hangs_at), notice_plan.flush_due_at(facts, now))
    return min((at for at in times if at is not None), default=None)


def hang_deadline(facts: ProgramFacts) -> float | None:
    """When silence, or a save that does not end, becomes a hang; None for a plain program."""
    due = hang_due_in_section(facts)
    if due is None:
        return None
    return due[0] if facts.freeze_until is None else max(due[0], facts.freeze_until)


def evidence_due_at(facts: ProgramFacts, hangs_at: float | None) -> float | None:
    """When the processes of a silent job are looked at; None if never, or if that would come too late (`hangs_at`).

    Never at a place where the job hung before: if it was only slow there, it needs the whole limit to pass. Nor once
    training is complete: what a script does then has nothing to do with steps.
    """
    floor_s, step_s, current = facts.policy.hang_evidence, usual_step_s(facts.steps_s), facts.current
    if floor_s is None or hangs_at is None or step_s is None:
        return None
    if facts.freeze_until is not None or facts.hang_detector.hangs or current.done_reported:
        return None
    least_s = least_silence_s(floor_s, step_s)
    over_s = look_for_s(least_s)
    due_at = max(current.progressed_at + least_s - over_s, current.looks_end_at)
    return due_at if due_at + over_s < hangs_at else None


def hang_due_in_section(facts: ProgramFacts) -> tuple[float, LoopSection] | None:
    """The hang deadline and the section it is in, without regard to an announced freeze."""
    policy, detector = facts.policy, facts.hang_detector
    if not policy.is_job:
        return None
    if policy.hang_timeout_min is not None:
        return detector.deadline(facts.current.progressed_at, policy.hang_timeout_min)
    if policy.hang_timeout is not None:
        return detector.fixed_deadline(facts.current.progressed_at, policy.hang_timeout, fixed_save_limit(policy))
    return None


def fixed_save_limit(policy: Policy) -> float:
    """How long a save may be written beside training where hang_timeout is fixed.

    Training goes on meanwhile, so little is lost, and a limit for steps says little about saves.
    """
    return SAFETY * max(policy.hang_timeout or 0.0, policy.flush_timeout)


def starting_deadline(facts: ProgramFacts) -> float:
    """The one deadline of a job's STARTING: startup_timeout in all, or a learned limit for the part it is in."""
    policy, detector = facts.policy, facts.hang_detector
    if policy.hang_timeout_min is None:
        return facts.current.startup_deadline_at
    silent_by = detector.since + detector.limit(detector.section, policy.hang_timeout_min)
    return min(
        facts.current.startup_deadline_at,
        silent_by if facts.freeze_until is None else max(silent_by, facts.freeze_until),
    )


def request_flush(facts: ProgramFacts, reason: str, then: Then, now: float) -> Effects:
    """Enters FLUSHING and asks the worker for a checkpoint."""
    facts.flushes_requested += 1
    facts.current.flush = PendingFlush(facts.flushes_requested, then, requested_at=now)
    facts.current.flush_retry_at = None
    enter(facts, State.FLUSHING, flushing_deadline(facts, now))
    return [RequestFlush(facts.attempt, facts.current.flush.id, reason, then, notice_plan.flush_limit_s(facts, now))]


def flushing_deadline(facts: ProgramFacts, now: float) -> float:
    """The one deadline of FLUSHING: flush_timeout, or the last flush before the host goes is due.

    The last flush itself is waited for until the host may be gone, as long as it was planned to take (its step may be
    longer than flush_timeout): to end the worker earlier would save nothing.
    """
    flush = facts.current.flush
    ends_at = (now if flush is None else flush.requested_at) + facts.policy.flush_timeout
    if flush is not None and flush.then is Then.STOP:
        return max(ends_at, notice_plan.last_flush_ends_at(facts) or ends_at)
    last_at = notice_plan.last_flush_at(facts) if flush is not None else None
    return ends_at if last_at is None else min(ends_at, last_at)


def abort(facts: ProgramFacts, now: float) -> Effects:
    """Dumps the stacks of a stuck worker and ends it with SIGABRT."""
    enter(facts, State.STOPPING, now + facts.policy.stopwaitsecs)
    return [Abort(facts.attempt, facts.policy.stopwaitsecs)]


def terminate(facts: ProgramFacts, event: Event | None, now: float) -> Effects:
    """Sends the stop signal; STOPPING lasts at most stopwaitsecs."""
    enter(facts, State.STOPPING, now + facts.policy.stopwaitsecs)
    return [Terminate(facts.attempt)]


@leads_to(State.KILLING)
def kill(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Sends SIGKILL to the worker and everything it started; repeated until it is gone."""
    enter(facts, State.KILLING, now + KILL_AGAIN_S)
    return [Kill(facts.attempt)]


def schedule_flush_retry(facts: ProgramFacts, now: float) -> None:
    """Schedules a failed flush again while a notice holds, the last one too."""
    if facts.notice is not None:
        pause = notice_plan.RETRY_WITHOUT_DEADLINE_S if notice_plan.host_gone_at(facts) is None else notice_plan.RETRY_S
        facts.current.flush_retry_at = now + pause


def give_up(facts: ProgramFacts, reason: str) -> Effects:
    """Gives up until a person acts."""
    facts.reason = reason
    enter(facts, State.FAILED)
    return []
