"""The facts of a job that a later daemon needs to decide as this one would: budgets, suspects, where to begin."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from supervisor.core.failures.hang_detection import HangDetector, LoopSection
from supervisor.core.failures.restart import MAX_MICROBATCHES, Cause, FailureCounts
from supervisor.core.failures.suspects import MAX_DEATHS, Death, Suspects
from supervisor.core.program.events import CheckpointSelected
from supervisor.core.program.facts import ALIVE, AttemptFacts, OnOom, ProgramFacts, State
from supervisor.protocol.checkpoints.account import Older
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.wire.limits import Items, Range

MAX_NAMES = 1000  # more than a job ever has

Names = Annotated[frozenset[str], Items(MAX_NAMES)]
Seconds = Annotated[float, Range(0, 1e12)]


@dataclass(frozen=True, slots=True)
class PersistedFacts:
    """The stored facts of one job; two that are equal lead to the same next start. Names are keys in the ledger.

    Names and units are those of ProgramFacts and what it consists of. `backoff_left_s`: seconds of a back-off that are
    left, None outside of one, and `reason` why it waits. These are of `attempt`: `origin` (path, step and place of its
    checkpoint), `from_checkpoint`, `restore_begun`, `start_step`, `saved_step`, `step` (once it has ended),
    `made_progress`, `start_limit_s` (the age at which it has to train; None if that is startup_timeout), `older` (why
    it begins from an older checkpoint than the newest), `start_afresh`, `checkpoint_dir` (where it saves) and
    `gpus_left_out` (what people read of the GPUs that it does without).

    Of a plain program, only `worked_paths` is stored. The account of progress is not among them: the ledger keeps it in
    two places. A test has the list of all other facts, and why each is known without being stored.

    The ledger encodes it with the wire's codec, so a field needs its line here, with its limits and a default for
    ledgers that lack it; another meaning or name needs a migration.
    """

    attempt: int = 0
    by_cause: Annotated[Mapping[Cause, int], Items(MAX_NAMES)] = field(default_factory=dict)
    deaths_without_progress: int = 0
    avoid: Names = frozenset()
    cleared: Names = frozenset()
    unfit: Annotated[tuple[tuple[str, str], ...], Items(MAX_NAMES)] = ()
    deaths: Annotated[tuple[Death, ...], Items(MAX_DEATHS)] = ()
    hung_step: int | None = None
    hung_in: LoopSection | None = None
    hangs: Annotated[int, Range(0, 64)] = 0
    best_step: int | None = None
    ever_trained: bool = False
    microbatches: Annotated[int, Range(1, MAX_MICROBATCHES)] = 1
    restore_below_step: int | None = None
    in_backoff: bool = False
    reason: str | None = None
    from_checkpoint: bool = False
    restore_begun: bool = False
    origin: tuple[str, int, str | None] | None = None
    saved_step: int | None = None
    start_step: int | None = None
    made_progress: bool = False
    start_limit_s: Seconds | None = None
    backoff_left_s: Seconds | None = field(default=None, compare=False)
    startup_s: Seconds | None = field(default=None, compare=False)
    steps_s: Annotated[tuple[Seconds, ...], Items(MAX_NAMES)] = field(default=(), compare=False)
    older: tuple[OlderBecause, str] | None = None
    mount: str | None = None
    salvaged: str | None = None
    begin_at: int | None = None
    worked_paths: Annotated[tuple[str, ...], Items(MAX_NAMES)] = ()
    step: int | None = None
    begin_since: int | None = None
    diverged_attempt: int | None = None
    no_copies: bool = False
    start_afresh: bool = False
    ports_lost: Annotated[int, Range(0, MAX_NAMES)] = 0
    set_aside: int | None = None
    checkpoint_dir: str | None = None
    gpus_left_out: str | None = None
    passed_over: str | None = None


_IN_ANOTHER_FORM = frozenset(
    {"attempt", "by_cause", "ports_lost", "microbatches", "in_backoff", "reason", "backoff_left_s", "restore_begun"}
    | {"origin", "start_limit_s", "older", "worked_paths", "step"}
)
"""Facts that have their lines in `facts_to_persist` and `restore_facts`; the others are stored as they are."""


def _stored_of(kind: type[Any]) -> tuple[str, ...]:
    """The names of the facts that are stored as what is of this class has them."""
    stored = {fact.name for fact in fields(PersistedFacts)} - _IN_ANOTHER_FORM
    return tuple(fact.name for fact in fields(kind) if fact.name in stored)


_AS_THEY_ARE: tuple[tuple[Callable[[ProgramFacts], object], tuple[str, ...]], ...] = (
    (lambda facts: facts, _stored_of(ProgramFacts)),
    (lambda facts: facts.failures, _stored_of(FailureCounts)),
    (lambda facts: facts.suspects, _stored_of(Suspects)),
    (lambda facts: facts.hang_detector, _stored_of(HangDetector)),
)
_AS_THEY_ARE_OF_ATTEMPT = _stored_of(AttemptFacts)


def facts_to_persist(facts: ProgramFacts, now: float) -> PersistedFacts:
    """The facts of a program to store at `now` (monotonic seconds)."""
    if not facts.policy.is_job:
        return PersistedFacts(worked_paths=facts.worked_paths)
    is_failure = not (facts.waits_for_host or facts.waits_for_storage)
    waits = facts.state is State.BACKOFF and is_failure and facts.deadline_at is not None
    current = facts.current
    origin, older = current.checkpoint, current.older
    known = origin is not None and origin.path is not None and origin.step is not None
    as_they_are: dict[str, Any] = {name: getattr(part(facts), name) for part, names in _AS_THEY_ARE for name in names}
    as_they_are |= {name: getattr(current, name) for name in _AS_THEY_ARE_OF_ATTEMPT}
    return PersistedFacts(
        **as_they_are,
        attempt=facts.attempt,
        by_cause=dict(facts.failures.by_cause),
        ports_lost=min(facts.failures.ports_lost, MAX_NAMES),
        microbatches=facts.microbatches,
        in_backoff=waits,
        reason=facts.reason if waits else None,
        backoff_left_s=max(0.0, (facts.deadline_at or now) - now) if waits else None,
        restore_begun=current.restore_begun,
        origin=(origin.path or "", origin.step or 0, origin.place) if origin is not None and known else None,
        start_limit_s=_start_limit(facts),
        older=None if older is None else (older.because, older.text),
        worked_paths=facts.worked_paths,
        step=current.step if facts.state not in ALIVE else None,
    )


def _start_limit(facts: ProgramFacts) -> float | None:
    limit_s = round(facts.current.startup_deadline_at - facts.current.started_at, 1)
    return limit_s if math.isfinite(limit_s) and limit_s > facts.policy.startup_timeout + 1.0 else None


def restore_facts(facts: ProgramFacts, stored: PersistedFacts, now: float, ago_s: float) -> None:
    """Restores stored facts before the first event. `ago_s`: how old they are.

    Facts of an attempt count only if no later attempt was started since.
    """
    facts.worked_paths = stored.worked_paths
    if not facts.policy.is_job:
        return
    for part, names in _AS_THEY_ARE:
        for name in names:
            setattr(part(facts), name, getattr(stored, name))
    facts.failures.by_cause, facts.failures.ports_lost = stored.by_cause, stored.ports_lost
    if _is_carried_out(facts):
        facts.begin_at = facts.begin_since = facts.set_aside = None
    if facts.policy.on_oom is OnOom.MICROBATCH:
        facts.microbatches = min(max(facts.microbatches, stored.microbatches), MAX_MICROBATCHES)
    if stored.attempt != facts.attempt:
        return
    current = facts.current
    for name in _AS_THEY_ARE_OF_ATTEMPT:
        setattr(current, name, getattr(stored, name))
    current.restore_begun = stored.restore_begun or stored.start_step is not None
    current.start_limit_s, current.step = stored.start_limit_s, stored.step
    current.older = None if stored.older is None else Older(*stored.older)
    if stored.origin is not None:
        path, step, place = stored.origin
        current.checkpoint = CheckpointSelected(facts.attempt, path, step, place)
    if stored.backoff_left_s is not None:
        facts.backoff_until, facts.reason = now + stored.backoff_left_s - ago_s, stored.reason


def _is_carried_out(facts: ProgramFacts) -> bool:
    """Whether the account knows of training that what an operator chose has begun: stored facts may be from before."""
    newest, since = facts.account.newest, facts.begin_since
    if newest is None or newest.since is None or since is None:
        return False
    return newest.since >= since and not facts.policy.is_gang  # whose ranks have other attempts
