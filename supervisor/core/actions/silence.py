"""While a job is silent: when its processes are looked at, and what follows from what they do."""

from supervisor.core.actions.transitions import (
    Effects,
    abort,
    evidence_due_at,
    hang_deadline,
    hang_due_in_section,
    leads_to,
    running_deadline,
)
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.hang_evidence import (
    LOOK_AGAIN_S,
    LOOKS,
    Hang,
    SignOfLife,
    SilenceContext,
    judge_silence,
    least_silence_s,
    look_for_s,
    usual_step_s,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import LookAtSilence
from supervisor.core.program.events import SilenceObserved
from supervisor.core.program.facts import ProgramFacts, State

SLACK_S = 15.0  # for looks at a host that is busy; after that the answer is not waited for any more


def look_at_silence(facts: ProgramFacts, now: float) -> Effects:
    """Asks for looks at the processes, if the job has been silent for long enough for that; else nothing."""
    due_at, step_s = evidence_due_at(facts, hang_deadline(facts)), usual_step_s(facts.steps_s)
    if due_at is None or now < due_at or facts.policy.hang_evidence is None or step_s is None:
        return []
    over_s = look_for_s(least_silence_s(facts.policy.hang_evidence, step_s))
    facts.current.looks_end_at = now + over_s + SLACK_S
    facts.deadline_at = running_deadline(facts, now)
    return [LookAtSilence(facts.attempt, over_s, LOOKS)]


@leads_to(State.STOPPING)
def silence_observed(facts: ProgramFacts, event: SilenceObserved, now: float) -> Effects:
    """Ends a worker that provably hangs. Any other is looked at again later, or has the whole limit for silence."""
    policy, detector, evidence = facts.policy, facts.hang_detector, event.evidence
    facts.current.looks_end_at = now + LOOK_AGAIN_S
    due, step_s = hang_due_in_section(facts), usual_step_s(facts.steps_s)
    if evidence.began_at <= facts.current.progressed_at or due is None or step_s is None:
        facts.current.looks_end_at = now
        facts.deadline_at = running_deadline(facts, now)
        return []
    silent_s = now - facts.current.progressed_at
    context = SilenceContext(
        section=detector.section,
        silent_s=silent_s,
        longest_s=detector.longest.get(detector.section, 0.0),
        patience_s=max(0.0, due[0] - now),
        waits_elsewhere=policy.has_ranks_elsewhere,
    )
    verdict = judge_silence(evidence, context)
    facts.current.silence = verdict
    if isinstance(verdict, Hang):
        detector.record_hang(facts.current.step, detector.section)
        text = f"hung in {_section(detector.section)} for {silent_s:.0f} s (its steps take {_span(step_s)})"
        facts.current.decided_end = (Cause.HANG, f"{text} after step {facts.current.step}: {verdict.why}")
        return abort(facts, now)
    if isinstance(verdict, SignOfLife) and verdict.is_paused and (evidence.is_frozen or policy.hang_timeout is None):
        facts.restart_silence(now)
    facts.deadline_at = running_deadline(facts, now)
    return []


def _section(section: LoopSection) -> str:
    return {LoopSection.STEP: "a step", LoopSection.SAVE: "a save", LoopSection.EVALUATION: "an evaluation"}.get(
        section, f"section {section}"
    )


def _span(length_s: float) -> str:
    return f"{length_s:.2g} s" if length_s < 10 else f"{length_s:.0f} s"
