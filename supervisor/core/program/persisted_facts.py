"""The facts of a job that a later daemon needs to decide as this one would: budgets, suspects, where to begin."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import MAX_MICROBATCHES, Cause
from supervisor.core.failures.suspects import Death
from supervisor.core.program.events import CheckpointSelected
from supervisor.core.program.facts import ALIVE, OnOom, ProgramFacts, State
from supervisor.protocol.checkpoints.account import Older
from supervisor.protocol.damage import OlderBecause


@dataclass(frozen=True, slots=True)
class PersistedFacts:
    """The stored facts of one job; two that are equal lead to the same next start. Names are keys in the ledger.

    `waits_s`: seconds of a back-off that are left, None outside of one. These are of `attempt`: `origin` (path, step
    and place of its checkpoint), `restoring` (it has one), `began_at` (the step it restored), `saved` (the step of its
    last checkpoint), `step` (its last one, once it has ended), `moved` (it made progress), `start_limit_s` (the age at
    which it has to train; None if that is startup_timeout) and `older` (why it begins from an older checkpoint than the
    newest). `mount`, `begin_at`: as in ProgramFacts. The account of progress is not among them: the ledger keeps it in
    two places.
    """

    attempt: int = 0
    by_cause: Mapping[Cause, int] = field(default_factory=dict)
    idle_deaths: int = 0
    avoid: frozenset[str] = frozenset()
    cleared: frozenset[str] = frozenset()
    unfit: tuple[tuple[str, str], ...] = ()
    deaths: tuple[Death, ...] = ()
    hung_step: int | None = None
    hung_in: LoopSection | None = None
    hangs: int = 0
    best_step: int | None = None
    ever_moved: bool = False
    microbatches: int = 1
    before: int | None = None
    waits: bool = False
    reason: str | None = None
    restoring: bool = False
    origin: tuple[str, int, str | None] | None = None
    saved: int | None = None
    began_at: int | None = None
    moved: bool = False
    start_limit_s: float | None = None
    waits_s: float | None = field(default=None, compare=False)
    startup_s: float | None = field(default=None, compare=False)
    steps_s: tuple[float, ...] = field(default=(), compare=False)
    older: tuple[OlderBecause, str] | None = None
    mount: str | None = None
    begin_at: int | None = None
    step: int | None = None


def facts_to_persist(facts: ProgramFacts, now: float) -> PersistedFacts:
    """The facts of a job to store at `now` (monotonic seconds)."""
    is_failure = not (facts.waits_for_host or facts.waits_for_storage)
    waits = facts.state is State.BACKOFF and is_failure and facts.deadline_at is not None
    origin = facts.current.checkpoint
    known = origin is not None and origin.path is not None and origin.step is not None
    return PersistedFacts(
        attempt=facts.attempt,
        by_cause=facts.failures.by_cause,
        idle_deaths=facts.failures.deaths_without_progress,
        avoid=facts.suspects.avoid,
        cleared=facts.suspects.cleared,
        unfit=facts.suspects.unfit,
        deaths=facts.suspects.deaths,
        hung_step=facts.hang_detector.hung_step,
        hung_in=facts.hang_detector.hung_in,
        hangs=facts.hang_detector.hangs,
        best_step=facts.best_step,
        ever_moved=facts.ever_trained,
        microbatches=facts.microbatches,
        before=facts.restore_below_step,
        waits=waits,
        reason=facts.reason if waits else None,
        restoring=facts.current.from_checkpoint,
        origin=(origin.path or "", origin.step or 0, origin.place) if origin is not None and known else None,
        saved=facts.current.saved_step,
        began_at=facts.current.start_step,
        moved=facts.current.made_progress,
        start_limit_s=_start_limit(facts),
        waits_s=max(0.0, (facts.deadline_at or now) - now) if waits else None,
        startup_s=facts.startup_s,
        steps_s=facts.steps_s,
        older=None if facts.current.older is None else (facts.current.older.because, facts.current.older.text),
        mount=facts.mount,
        begin_at=facts.begin_at,
        step=facts.current.step if facts.state not in ALIVE else None,
    )


def _start_limit(facts: ProgramFacts) -> float | None:
    limit_s = round(facts.current.startup_deadline_at - facts.current.started_at, 1)
    return limit_s if limit_s > facts.policy.startup_timeout + 1.0 else None


def restore_facts(facts: ProgramFacts, memory: PersistedFacts, now: float, ago_s: float) -> None:
    """Restores stored facts before the first event. `ago_s`: how old they are.

    Facts of an attempt count only if no later attempt was started since.
    """
    failures, suspects, detector = facts.failures, facts.suspects, facts.hang_detector
    failures.by_cause, failures.deaths_without_progress = memory.by_cause, memory.idle_deaths
    suspects.avoid, suspects.cleared, suspects.deaths = memory.avoid, memory.cleared, memory.deaths
    suspects.unfit = memory.unfit
    detector.hung_step, detector.hung_in, detector.hangs = memory.hung_step, memory.hung_in, memory.hangs
    facts.best_step, facts.ever_trained, facts.restore_below_step = memory.best_step, memory.ever_moved, memory.before
    facts.startup_s, facts.steps_s = memory.startup_s, memory.steps_s
    facts.mount, facts.begin_at = memory.mount, memory.begin_at
    if facts.policy.on_oom is OnOom.MICROBATCH:
        facts.microbatches = min(max(facts.microbatches, memory.microbatches), MAX_MICROBATCHES)
    if memory.attempt != facts.attempt:
        return
    facts.current.from_checkpoint, facts.current.saved_step, facts.current.start_step = (
        memory.restoring,
        memory.saved,
        memory.began_at,
    )
    facts.current.made_progress, facts.current.start_limit_s = memory.moved, memory.start_limit_s
    facts.current.step = memory.step
    facts.current.older = None if memory.older is None else Older(*memory.older)
    if memory.origin is not None:
        path, step, place = memory.origin
        facts.current.checkpoint = CheckpointSelected(facts.attempt, path, step, place)
    if memory.waits_s is not None:
        facts.backoff_until, facts.reason = now + memory.waits_s - ago_s, memory.reason
