"""From the spawn to the first step."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.crash_loops import own_checkpoint
from supervisor.core.actions.explaining import diagnose_safely, with_consequence
from supervisor.core.actions.intents import start_with_full_budgets
from supervisor.core.actions.memory_copies import restores_from_memory
from supervisor.core.actions.training import record_step
from supervisor.core.actions.transitions import (
    USE_WORKER,
    abort,
    enter,
    enter_running,
    give_up,
    kill,
    launch,
    plain_program_started,
    plain_start_s,
    retry,
    running_deadline,
    starting_deadline,
    terminate,
    wait_for_start_paths,
    wait_for_storage,
)
from supervisor.core.diagnosis.evidence import Evidence
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.start_paths import waits_for_disk
from supervisor.core.failures.storage import is_waited_for
from supervisor.core.program import account
from supervisor.core.program.effects import QuarantineCheckpoints, RecordEnd, SendGo
from supervisor.core.program.events import (
    CheckpointSelected,
    Event,
    RestoreBegun,
    SelectionFailed,
    SpawnDelayed,
    SpawnFailed,
    SpawnSucceeded,
    StepsDone,
    TrainingRestored,
    WorkerMet,
)
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.checkpoints.account import Older, Unexplained
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import parse_name


def spawn_delayed(facts: ProgramFacts, event: SpawnDelayed, now: float) -> Effects:
    """Extends the start's limits by the delay, which has a limit of its own."""
    if facts.policy.is_job:
        _begin_limits(facts, now + max(0.0, event.limit_s))
    return []


def _begin_limits(facts: ProgramFacts, at: float) -> None:
    facts.hang_detector.start_attempt(at)
    facts.current.startup_deadline_at = at + facts.policy.startup_timeout
    facts.deadline_at = starting_deadline(facts)


@leads_to(State.RUNNING)
def spawned(facts: ProgramFacts, event: SpawnSucceeded, now: float) -> Effects:
    """Begins the limits of its start; with startsecs = 0 a plain program counts as running as soon as it exists."""
    policy = facts.policy
    facts.worked_paths, facts.current.gpus_left_out = policy.start_paths, event.gpus_left_out
    facts.current.started_at = facts.current.progressed_at = now
    if policy.is_job:
        _begin_limits(facts, now)
    elif policy.notify_timeout is None and policy.startsecs <= 0:
        plain_program_started(facts, now)
    else:
        facts.deadline_at = now + plain_start_s(policy)
    return []


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
def checkpoint_selected(facts: ProgramFacts, event: CheckpointSelected, now: float) -> Effects:
    """Tells the worker to restore the verified checkpoint and train, unless it is older than the newest that was ever
    reported and nothing explains why."""
    if event.below_step is not None and facts.begin_at is None:  # another rank may have said so
        facts.restore_below_step, facts.diverged_attempt = event.below_step, facts.diverged_attempt or facts.attempt
    verdict = account.judge_start(facts, event)
    if isinstance(verdict, Unexplained):
        facts.current.decided_end = (Cause.STORAGE, verdict.text)
        return kill(facts, event, now)
    facts.current.from_checkpoint = event.path is not None
    facts.current.checkpoint = event
    facts.current.older = verdict if isinstance(verdict, Older) else None
    facts.mount = event.mount
    if not facts.policy.is_gang:  # what was given up is in quarantine; of a gang, the mirror alone may have had it
        facts.restore_below_step = None
    gives_up_newer = isinstance(verdict, Older) and verdict.because is OlderBecause.OPERATOR
    stated = account.stated_reason(facts, verdict)
    seen_on = None if event.mount is None or event.device is None else (event.mount, event.device)
    highest_step = None if event.mount is None else max(event.highest_step or 0, event.step or 0)
    return [SendGo(
        facts.attempt, event.path, gives_up_newer, memory=event.memory, stated=stated, no_copies=facts.no_copies,
        seen_on=seen_on, highest_step=highest_step,
    )]  # fmt: skip


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


def worker_met(facts: ProgramFacts, event: WorkerMet, now: float) -> Effects:
    """Records that there is a worker, and whether its restore has to be reckoned with from now on."""
    facts.current.has_spoken = True
    facts.current.restore_begun = facts.current.restore_begun or not event.reports_restore
    return []


def restore_begun(facts: ProgramFacts, event: RestoreBegun, now: float) -> Effects:
    """Records that the checkpoint may be to blame for what follows: what is restored, where that is in memory."""
    facts.current.has_spoken = facts.current.restore_begun = True
    _take_back_end(facts, now)
    if event.in_memory is not None:
        restores_from_memory(facts, event.in_memory)
    return []


def training_restored(facts: ProgramFacts, event: TrainingRestored, now: float) -> Effects:
    """Records the step that the worker restored; it counts as training once the first new step arrives."""
    facts.current.has_spoken = facts.current.restore_begun = True
    _take_back_end(facts, now)
    facts.current.step = facts.current.start_step = event.step
    account.record_restored(facts)
    if event.in_memory is not None:
        restores_from_memory(facts, event.in_memory)
    else:
        account.record_start(facts)
        if facts.current.from_checkpoint:
            facts.best_step = max(event.step, facts.best_step or 0)
    if facts.state is State.STARTING:
        facts.hang_detector.progress_reported(LoopSection.TRACING, now)
        facts.deadline_at = starting_deadline(facts)
    return _set_aside_newer(facts)


def _take_back_end(facts: ProgramFacts, now: float) -> None:
    """The script has another run, so the end of the one before it was not that of training: it is flushed and
    supervised again, and its death is none of a job that is done, nor of the failure that the script has caught.

    A worker that tells a daemon all once more tells of its own end after this.
    """
    current = facts.current
    current.reported_error = current.failed_step = current.failed_errno = current.gang_attempt = None
    current.out_of_memory = current.go_back = False
    if not current.done_reported:
        return
    current.done_reported = False
    facts.restart_silence(now)
    if facts.state is State.RUNNING:
        facts.deadline_at = running_deadline(facts, now)


def _set_aside_newer(facts: ProgramFacts) -> Effects:
    """Quarantines newer checkpoints that did not fit: as an older one fits, the program is not to blame."""
    own = own_checkpoint(facts)
    if own is None or not facts.current.from_checkpoint:
        return []
    newer = tuple((name, why) for name, why in facts.suspects.unfit if _is_older(own, name))
    if not newer:
        return []
    facts.suspects.unfit = tuple(checkpoint for checkpoint in facts.suspects.unfit if checkpoint not in newer)
    return [QuarantineCheckpoints(facts.attempt, newer)]


def _is_older(name: str, than: str) -> bool:
    mine, other = parse_name(name), parse_name(than)
    return mine is not None and other is not None and (mine.step, mine.attempt) < (other.step, other.attempt)


@leads_to(State.RUNNING)
def first_step(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """The first step: the job is RUNNING."""
    record_step(facts, event, now)
    facts.startup_s = now - facts.current.started_at
    facts.storage = None
    enter_running(facts, now)
    return []


@leads_to(State.RUNNING)
def ready_reported(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """A plain program with notify_timeout is RUNNING once it sent READY=1; others need startsecs."""
    if not facts.policy.is_job and facts.policy.notify_timeout is not None:
        plain_program_started(facts, now)
    return []


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
