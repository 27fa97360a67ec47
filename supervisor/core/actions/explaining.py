"""Has a death diagnosed (`core/diagnosis`), and says to people how an attempt ended and what follows."""

from dataclasses import replace

from supervisor.core.actions.transitions import USE_WORKER, Effects
from supervisor.core.diagnosis.diagnose import diagnose, diagnosis_of
from supervisor.core.diagnosis.evidence import DeathKind, Diagnosis, Evidence, Source
from supervisor.core.diagnosis.kinds import MEANINGS
from supervisor.core.failures import restart
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import WorkerExited
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.wire.messages import Then

DONE = "done"
NAMED_FAULTS = 3  # of its GPUs in the reason of an end; the log has all
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


# --- how it ended: what the table of exit_causes.py gives for each claim ---


def as_it_ended(facts: ProgramFacts, event: WorkerExited) -> str:
    """Why it died, if that is known; else what it reported, or the last line that it wrote, with the exit status."""
    how = restart.describe_exit(event.code, event.signal)
    if (why := _as_diagnosed(event, how)) is not None:
        return why
    if facts.current.reported_error is not None:
        return f"{facts.current.reported_error} ({how})"
    return how if event.error_line is None else f"{how}: {event.error_line}"


def _as_diagnosed(event: WorkerExited, how: str) -> str | None:
    """What the diagnosis says beyond the exit; None if it says no more, or nobody has looked for more."""
    diagnosis = event.diagnosis
    if diagnosis is None or diagnosis.source is Source.CGROUP:
        return None
    if diagnosis.source is Source.STATUS:
        return f"{how}: {diagnosis.what}" if diagnosis.what and event.evidence is not None else None
    if diagnosis.what:
        return f"{diagnosis.what}: {diagnosis.line} ({how})"
    if diagnosis.source is not Source.STDERR or event.evidence is None:
        return None
    is_last = event.error_line is not None and diagnosis.line in event.error_line  # which may have a remedy
    return f"{how}: {event.error_line if is_last else diagnosis.line}"


def before_run(facts: ProgramFacts, event: WorkerExited) -> str:
    hint = "" if event.error_line is not None else "; see its stderr"
    return f"{as_it_ended(facts, event)}; it exited before it reached worker.Run{hint}"


def done(facts: ProgramFacts, event: WorkerExited) -> str:
    start_step = facts.current.start_step
    if facts.current.made_progress or start_step is None:
        return DONE
    return f"{DONE}; there was nothing to do: it is at total_steps ({start_step})"


def as_decided(facts: ProgramFacts, event: WorkerExited) -> str:
    _, why = decided_end(facts)
    return f"{why}, without a checkpoint: {as_it_ended(facts, event)}" if is_left_unsaved(facts) else why


def as_an_earlier_daemon_asked(facts: ProgramFacts, event: WorkerExited) -> str:
    return "stopped (requested before this daemon started)"


def as_told_from_outside(facts: ProgramFacts, event: WorkerExited) -> str:
    return f"told to stop from outside while the host was going away: {as_it_ended(facts, event)}"


def as_its_gang(facts: ProgramFacts, event: WorkerExited) -> str:
    return "another rank was told to stop, or its host goes away: saved and stopped together"


def killed_for_memory(facts: ProgramFacts, event: WorkerExited) -> str:
    text = as_it_ended(facts, event)
    if event.oom is None or (event.diagnosis is not None and event.diagnosis.source is Source.KERNEL):
        return _with_counter(text, event)
    return f"{text}, sent by the kernel because memory ran out ({event.oom})"


def _with_counter(text: str, event: WorkerExited) -> str:
    return text if event.oom is None else f"{text}; {event.oom}"


def as_its_storage_failed(facts: ProgramFacts, event: WorkerExited) -> str:
    return facts.current.reported_error or as_it_ended(facts, event)


def as_its_gpu_failed(facts: ProgramFacts, event: WorkerExited) -> str:
    """The faults of its GPUs, and how it ended; in its own words, if these say something else."""
    faults = event.evidence.gpu[:NAMED_FAULTS] if event.evidence is not None else ()
    is_same = event.diagnosis is None or event.diagnosis.source in (Source.GPU, Source.KERNEL, Source.STATUS)
    how = restart.describe_exit(event.code, event.signal) if is_same else as_it_ended(facts, event)
    return "; ".join((*faults, how))


def without_training(facts: ProgramFacts, event: WorkerExited) -> str:
    how = "before it reached worker.Run" if facts.current.has_spoken else "without using worker"
    return f"{facts.policy.script} exited 0 {how}: nothing of it was saved; {USE_WORKER}"


def out_of_memory(facts: ProgramFacts, event: WorkerExited) -> str:
    if event.diagnosis is not None and event.diagnosis.what and event.diagnosis.source is not Source.CGROUP:
        return _with_counter(as_it_ended(facts, event), event)
    sender = f", sent by the kernel ({event.oom})" if event.oom else ""
    return f"out of memory: {as_it_ended(facts, event)}{sender}"


def without_completion(facts: ProgramFacts, event: WorkerExited) -> str:
    return "exit status 0, but the worker never reported that training was done"


def is_left_unsaved(facts: ProgramFacts) -> bool:
    """Whether it was to flush before it stopped, and no commit came."""
    flush = facts.current.flush
    return flush is not None and flush.then is Then.STOP and not flush.committed


def decided_end(facts: ProgramFacts) -> tuple[Cause, str]:
    """Why the core has ended the attempt, where it did."""
    assert facts.current.decided_end is not None
    return facts.current.decided_end


# --- what follows ---


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
