"""A start has failed: there is no process, no checkpoint to begin from, or no first step in time."""

from supervisor.core.actions.explaining import diagnose_safely, with_consequence
from supervisor.core.actions.intents import start_with_full_budgets
from supervisor.core.actions.launching import launch, retry
from supervisor.core.actions.storage_waits import wait_for_start_paths, wait_for_storage
from supervisor.core.actions.transitions import (
    USE_WORKER,
    Effects,
    abort,
    enter,
    give_up,
    kill,
    leads_to,
    plain_program_started,
    terminate,
)
from supervisor.core.diagnosis.evidence import Evidence
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.start_paths import waits_for_disk
from supervisor.core.failures.storage import is_waited_for
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import Event, SelectionFailed, SpawnFailed
from supervisor.core.program.facts import ProgramFacts, State


@leads_to(State.STARTING, State.STOPPED, State.FAILED, State.BACKOFF)
def spawn_failed(facts: ProgramFacts, event: SpawnFailed, now: float) -> Effects:
    """Records why there is no process, and does what follows."""
    return with_consequence(facts, _spawn_failed(facts, event, now), diagnose_safely(Evidence(error=event.error)), now)


def _spawn_failed(facts: ProgramFacts, event: SpawnFailed, now: float) -> Effects:
    """Follows a failed spawn like any other death, but gives up at once if the cause is permanent.

    If the host could not take the attempt, or the disk that it is started from is away, that counts against no budget.
    If the attempt was ended before it was spawned, it is recorded as that end.
    """
    if event.retry_in_s is not None and facts.wanted and not facts.closing:
        facts.reason = event.error
        enter(facts, State.BACKOFF, now + event.retry_in_s)
        return []
    has_worked = bool(facts.worked_paths) and facts.worked_paths == facts.policy.start_paths
    away = None if event.missing is None else waits_for_disk(event.missing, has_worked, facts.mount)
    failed = (Cause.SETUP if event.permanent else Cause.SPAWN, event.error)
    if away is not None:
        failed = (Cause.STORAGE, f"{event.error}; {away}: once the disk is back, it starts by itself")
    cause, text = facts.current.decided_end or failed
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
    if cause is Cause.STORAGE and facts.current.decided_end is None:
        return [record, *wait_for_start_paths(facts, text, now)]
    if cause is Cause.STORAGE:
        return [record, *wait_for_storage(facts, text, now)]
    return [record, *retry(facts, cause, text, now)]


@leads_to(State.KILLING)
def selection_failed(facts: ProgramFacts, event: SelectionFailed, now: float) -> Effects:
    """Kills the worker, since there is nothing it may begin from; it has done nothing yet."""
    _note_attempts_used(facts, event)
    if event.permanent and event.errno is None and facts.begin_at:
        facts.begin_at = facts.set_aside = None  # there is no such step: what was asked for can't be done
    facts.current.decided_end = (_selection_failure(facts, event), event.error)
    facts.current.older_readable = event.older_readable
    return kill(facts, event, now)


@leads_to(State.FAILED)
def selection_failed_late(facts: ProgramFacts, event: SelectionFailed, now: float) -> Effects:
    """The worker died before the selection failed: gives up if a person has to act, or waits for the storage."""
    _note_attempts_used(facts, event)
    cause = _selection_failure(facts, event)
    if cause is Cause.STORAGE:
        facts.current.older_readable = event.older_readable
        return wait_for_storage(facts, event.error, now)
    return give_up(facts, event.error) if cause is Cause.SETUP else []


def _note_attempts_used(facts: ProgramFacts, event: SelectionFailed) -> None:
    """Another host or daemon has trained since: what was given up here before that is not what it has saved."""
    facts.attempts_used = max(facts.attempts_used, event.attempts_used)
    if event.attempts_used >= facts.attempt and not facts.policy.is_gang:
        facts.restore_below_step = None


def _selection_failure(facts: ProgramFacts, event: SelectionFailed) -> Cause:
    if event.attempts_used >= facts.attempt:
        return Cause.LOST  # nothing failed: the next attempt has a number that nobody has used
    if is_waited_for(event.errno, has_worked=facts.account.newest is not None):
        return Cause.STORAGE
    return Cause.SETUP if event.permanent else Cause.CRASH


@leads_to(State.RUNNING, State.STOPPING)
def starting_too_long(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The deadline of STARTING: a plain program has outlived startsecs or not become ready, a job has not trained.

    A READY=1 from before this daemon may have been lost, so an adopted program counts as ready at its deadline.
    """
    policy = facts.policy
    if not policy.is_job and policy.notify_timeout is not None and not facts.current.readiness_unknown:
        text = f"did not send READY=1 within {policy.notify_timeout:g} s (notify_timeout)"
        facts.current.decided_end = (Cause.STARTUP_TIMEOUT, text)
        return terminate(facts, event, now)
    if not policy.is_job:
        plain_program_started(facts, now)
        return []
    if facts.current.checkpoint is None and policy.checkpoint_dir is not None:
        text = f"did not answer within {policy.startup_timeout:g} s (startup_timeout); check the disk or its server"
        facts.current.decided_end = (Cause.STORAGE, f"cannot read checkpoint_dir {policy.checkpoint_dir}: it {text}")
        return abort(facts, now)
    detector = facts.hang_detector
    limit = f"{policy.startup_timeout:g} s (startup_timeout)"
    if policy.hang_timeout_min is not None and now < facts.current.startup_deadline_at:
        limit_s = detector.limit(detector.section, policy.hang_timeout_min)
        limit = f"{limit_s:g} s in {detector.section} (hang_timeout = auto)"
        detector.record_hang(facts.current.step, detector.section)
    if _never_used_worker(facts) and now >= facts.current.startup_deadline_at:
        text = f"{policy.script} did not use worker within {limit}; {USE_WORKER}, or raise startup_timeout"
        facts.current.decided_end = (Cause.SETUP, text)
        return abort(facts, now)
    text = f"did not train within {limit}; does the script use worker.Run?"
    facts.current.decided_end = (Cause.STARTUP_TIMEOUT, text)
    return abort(facts, now)


def _never_used_worker(facts: ProgramFacts) -> bool:
    """Whether no attempt of the job, as far as is known, ever said a word: what it runs may be no worker at all."""
    is_proven = facts.ever_trained or facts.account.newest is not None or facts.best_step is not None
    return not facts.current.has_spoken and not is_proven
