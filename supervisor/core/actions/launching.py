"""From the spawn to the first step."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.crash_loops import own_checkpoint
from supervisor.core.actions.intents import start_with_full_budgets
from supervisor.core.actions.training import record_step
from supervisor.core.actions.transitions import (
    abort,
    enter,
    enter_running,
    give_up,
    kill,
    launch,
    plain_program_started,
    retry,
    starting_deadline,
    terminate,
)
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import QuarantineCheckpoints, RecordEnd, SendGo
from supervisor.core.program.events import (
    CheckpointSelected,
    Event,
    SelectionFailed,
    SpawnDelayed,
    SpawnFailed,
    StepsDone,
    TrainingRestored,
)
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.layout import parse_name


def spawn_delayed(facts: ProgramFacts, event: SpawnDelayed, now: float) -> Effects:
    """A job's limits for its start begin when its process exists; until then only the delay has one."""
    if facts.policy.is_job:
        _begin_limits(facts, now + max(0.0, event.limit_s))
    return []


def _begin_limits(facts: ProgramFacts, at: float) -> None:
    facts.hang_detector.start_attempt(at)
    facts.current.startup_deadline_at = at + facts.policy.startup_timeout
    facts.deadline_at = starting_deadline(facts)


@leads_to(State.RUNNING)
def spawned(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """With startsecs = 0 a plain program counts as running as soon as it exists."""
    policy = facts.policy
    if policy.is_job:
        facts.current.started_at = facts.current.progressed_at = now
        _begin_limits(facts, now)
    if not policy.is_job and policy.notify_timeout is None and policy.startsecs <= 0:
        plain_program_started(facts, now)
    return []


@leads_to(State.STARTING, State.STOPPED, State.FAILED, State.BACKOFF)
def spawn_failed(facts: ProgramFacts, event: SpawnFailed, now: float) -> Effects:
    """No process: hopeless at once if the cause is permanent, else like any other death. What the host could not take
    counts against nothing; what was ended before it was started is booked as that end.
    """
    if event.retry_in_s is not None and facts.wanted and not facts.closing:
        facts.reason = event.error
        enter(facts, State.BACKOFF, now + event.retry_in_s)
        return []
    cause, text = facts.current.decided_end or (Cause.SETUP if event.permanent else Cause.SPAWN, event.error)
    record = RecordEnd(facts.attempt, cause, text)
    if facts.closing or not facts.wanted:
        enter(facts, State.STOPPED)
        return [record]
    if facts.current.start_afresh:
        return [record, *start_with_full_budgets(facts, now)]
    if cause in (Cause.STOPPED, Cause.PREEMPTION):  # started again while it was stopping
        return [record, *launch(facts, now)]
    if cause is Cause.SETUP:
        return [record, *give_up(facts, text)]
    return [record, *retry(facts, cause, text, now)]


def checkpoint_selected(facts: ProgramFacts, event: CheckpointSelected, now: float) -> Effects:
    """The checkpoint is proven: the worker may restore it and train."""
    facts.current.from_checkpoint = event.path is not None
    facts.current.checkpoint = event
    facts.restore_below_step = None
    return [SendGo(facts.attempt, event.path)]


@leads_to(State.KILLING)
def selection_failed(facts: ProgramFacts, event: SelectionFailed, now: float) -> Effects:
    """There is nothing the worker may begin from; it has done nothing yet, so it is killed."""
    facts.current.decided_end = (Cause.SETUP if event.permanent else Cause.CRASH, event.error)
    return kill(facts, event, now)


@leads_to(State.FAILED)
def selection_failed_late(facts: ProgramFacts, event: SelectionFailed, now: float) -> Effects:
    """As above, but the worker died first: no further attempt."""
    return give_up(facts, event.error) if event.permanent else []


def training_restored(facts: ProgramFacts, event: TrainingRestored, now: float) -> Effects:
    """The worker stands at a step; it trains when the first new step arrives."""
    facts.current.step = facts.current.start_step = event.step
    if facts.current.from_checkpoint:
        facts.best_step = max(event.step, facts.best_step or 0)
    if facts.state is State.STARTING:
        facts.hang_detector.progress_reported(LoopSection.TRACING, now)
        facts.deadline_at = starting_deadline(facts)
    return _set_aside_newer(facts)


def _set_aside_newer(facts: ProgramFacts) -> Effects:
    """The program fits what is older, so it is not to blame. Of what is older still, that says nothing."""
    own = own_checkpoint(facts)
    if own is None or not facts.current.from_checkpoint:
        return []
    newer = tuple((name, why) for name, why in facts.suspects.unfit if _is_older(own, name))
    if not newer:
        return []
    facts.suspects.unfit = tuple(each for each in facts.suspects.unfit if each not in newer)
    return [QuarantineCheckpoints(facts.attempt, newer)]


def _is_older(name: str, than: str) -> bool:
    mine, other = parse_name(name), parse_name(than)
    return mine is not None and other is not None and (mine.step, mine.attempt) < (other.step, other.attempt)


@leads_to(State.RUNNING)
def first_step(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """It trains."""
    record_step(facts, event, now)
    facts.startup_s = now - facts.current.started_at
    enter_running(facts, now)
    return []


@leads_to(State.RUNNING)
def ready_reported(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """It says so itself; one that did not promise to (notify) has startsecs for it."""
    if not facts.policy.is_job and facts.policy.notify_timeout is not None:
        plain_program_started(facts, now)
    return []


@leads_to(State.RUNNING, State.STOPPING)
def starting_too_long(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The deadline of STARTING: a plain program has outlived startsecs or not become ready, a job has not trained.

    One that an earlier daemon started may have said that it is ready while nobody heard it.
    """
    policy = facts.policy
    if not policy.is_job and policy.notify_timeout is not None and not facts.current.readiness_unknown:
        text = f"did not send READY=1 within {policy.notify_timeout:g} s (notify_timeout)"
        facts.current.decided_end = (Cause.STARTUP_TIMEOUT, text)
        return terminate(facts, event, now)
    if not policy.is_job:
        plain_program_started(facts, now)
        return []
    detector = facts.hang_detector
    limit = f"{policy.startup_timeout:g} s (startup_timeout)"
    if policy.hang_timeout_min is not None and now < facts.current.startup_deadline_at:
        limit_s = detector.limit(detector.section, policy.hang_timeout_min)
        limit = f"{limit_s:g} s in {detector.section} (hang_timeout = auto)"
        detector.record_hang(facts.current.step, detector.section)
    facts.current.decided_end = (
        Cause.STARTUP_TIMEOUT,
        f"did not train within {limit}; does the script use worker.Run?",
    )
    return abort(facts, now)
