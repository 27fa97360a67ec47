"""Has a death diagnosed (`core/diagnosis`), and says what follows from it."""

from dataclasses import replace

from supervisor.core.actions.transitions import Effects
from supervisor.core.diagnosis.diagnose import diagnose, diagnosis_of
from supervisor.core.diagnosis.evidence import DeathKind, Diagnosis, Evidence, Source
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import WorkerExited
from supervisor.core.program.facts import ProgramFacts, State

CERTAIN = (Source.KERNEL, Source.REPORT, Source.STDERR)
"""Sources that may refine a cause; for the others there are claims of their own."""


def explain(facts: ProgramFacts, event: WorkerExited) -> WorkerExited:
    """The exit with its diagnosis, of what was found and what the core knows."""
    traces = event.evidence or Evidence(stderr=event.error_line or "")
    evidence = replace(
        traces,
        code=event.code,
        signal=event.signal,
        oom=event.oom or traces.oom,
        reported=facts.current.reported_error,
        decided=None if facts.current.decided_end is None else facts.current.decided_end[1],
    )
    return replace(event, diagnosis=diagnose_safely(evidence))


def diagnose_safely(evidence: Evidence) -> Diagnosis | None:
    """The diagnosis; None if that fails: a defect in reading a stranger's text must not decide what follows."""
    try:
        return diagnose(evidence)
    except Exception:  # noqa: BLE001 - see above
        return None


def is_certainly(event: WorkerExited, cause: Cause) -> bool:
    """Whether the diagnosis leaves no doubt that it ended for this cause."""
    diagnosis = event.diagnosis
    if diagnosis is None or diagnosis.source not in CERTAIN or diagnosis.kind is DeathKind.MEMORY_ERROR:
        return False
    return MEANINGS[diagnosis.kind].cause is cause


def with_consequence(facts: ProgramFacts, effects: Effects, diagnosis: Diagnosis | None, now: float) -> Effects:
    """The effects of an end, its record with the diagnosis and what follows; one that was meant to end has none."""
    if diagnosis is None or facts.closing or not facts.wanted:
        return effects
    follows = describe_consequence(facts, now)
    return [
        replace(effect, diagnosis=replace(_in_own_words(diagnosis, effect), follows=follows))
        if isinstance(effect, RecordEnd) and not effect.cause.traits.is_meant
        else effect
        for effect in effects
    ]


def _in_own_words(diagnosis: Diagnosis, record: RecordEnd) -> Diagnosis:
    if diagnosis.what or diagnosis.kind is DeathKind.BY_DAEMON or not record.cause.traits.has_own_words:
        return diagnosis
    return diagnosis_of(DeathKind.REPORTED, record.text, Source.REPORT)


def describe_consequence(facts: ProgramFacts, now: float) -> str:
    """What the program does after an end, in words."""
    match facts.state:
        case State.STARTING:
            return "it is started again at once"
        case State.BACKOFF if facts.waits_for_storage:
            return "it waits for its disk, and starts by itself"
        case State.BACKOFF if facts.waits_for_host:
            return "it waits for what becomes of the host"
        case State.BACKOFF:
            return f"it is started again in {max(1.0, (facts.deadline_at or now) - now):.0f} s"
        case State.FAILED:
            return "it is not started again until somebody starts it"
        case State.EXITED | State.SUCCEEDED:
            return "it is not started again, as autorestart says"
    return "it stays stopped"
