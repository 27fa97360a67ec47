"""Launches an attempt, now or later, and follows it from the spawn to the first step."""

from supervisor.core.actions.crash_loops import own_checkpoint
from supervisor.core.actions.memory_copies import restores_from_memory
from supervisor.core.actions.training import record_step
from supervisor.core.actions.transitions import (
    Effects,
    enter,
    enter_running,
    give_up,
    kill,
    leads_to,
    plain_program_started,
    running_deadline,
    starting_deadline,
)
from supervisor.core.failures import restart
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.storage import UNREADABLE_WAIT_S
from supervisor.core.program import account, notice_plan
from supervisor.core.program.effects import QuarantineCheckpoints, SelectCheckpoint, SendGo, Spawn
from supervisor.core.program.events import (
    CheckpointSelected,
    Event,
    RestoreBegun,
    SpawnDelayed,
    SpawnSucceeded,
    StepsDone,
    TrainingRestored,
    WorkerMet,
)
from supervisor.core.program.facts import AttemptFacts, Policy, ProgramFacts, State
from supervisor.protocol.checkpoints.account import Older, Unexplained
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import parse_name


def launch(facts: ProgramFacts, now: float) -> Effects:
    """Starts a new attempt. A job's checkpoint is verified while its worker loads.

    If a dependency is not ready, the program stays STOPPED until its next start request; a rank of a gang that has had
    its attempt, until all begin again. If the host goes away before a job could save a step, the job waits in BACKOFF
    for what becomes of the host.
    """
    policy = facts.policy
    facts.waits_for_storage = facts.start_paths_missing = False
    if facts.held_back:
        enter(facts, State.STOPPED)
        return []
    if (until := notice_plan.no_start_before(facts, now)) is not None:
        return wait_for_host(facts, until)
    if policy.is_gang and facts.launched:
        enter(facts, State.STOPPED)
        return []
    facts.attempt = max(facts.attempt, facts.attempts_used) + 1
    facts.launched = True
    facts.current = AttemptFacts(started_at=now, progressed_at=now, checkpoint_dir=policy.checkpoint_dir)
    if facts.begin_at is not None and facts.begin_since is None:
        facts.begin_since = facts.attempt
    facts.reason, facts.waits_for_host = None, False
    facts.hang_detector.start_attempt(now)
    if not policy.is_job:
        enter(facts, State.STARTING, now + plain_start_s(policy))
        return [Spawn(facts.attempt)]
    facts.current.startup_deadline_at = now + policy.startup_timeout
    enter(facts, State.STARTING, starting_deadline(facts))
    return [Spawn(facts.attempt, facts.microbatches), select_checkpoint(facts, now)]


def wait_for_host(facts: ProgramFacts, until: float) -> Effects:
    """Enters BACKOFF, without a process, until it is known what becomes of the host."""
    facts.waits_for_host = True
    facts.current.flush = None
    why = notice_plan.describe_notice(facts.notice) if facts.notice else "reason unknown"
    facts.reason = f"waiting because the host is going away ({why}); it starts if the host stays"
    enter(facts, State.BACKOFF, until)
    return []


def plain_start_s(policy: Policy) -> float:
    """How long a plain program is STARTING from its process on: until it counts as running, or as not ready."""
    return policy.startsecs if policy.notify_timeout is None else policy.notify_timeout


def select_checkpoint(facts: ProgramFacts, now: float) -> SelectCheckpoint:
    """The request for a checkpoint from which the current attempt may begin."""
    waited = facts.storage
    below = facts.restore_below_step if facts.begin_at is None else None
    return SelectCheckpoint(
        facts.attempt,
        facts.suspects.avoid,
        below,
        facts.suspects.unfit,
        facts.account.newest,
        facts.begin_at,
        waited is not None and waited.unreadable and now - waited.since >= UNREADABLE_WAIT_S,
        facts.begin_since,
        None if below is None else facts.diverged_attempt,
        facts.no_copies,
    )


def retry(facts: ProgramFacts, cause: Cause, text: str, now: float) -> Effects:
    """Counts a failure and starts again: at once after progress, later after none, never once the budget is spent."""
    policy, failures = facts.policy, facts.failures
    failures.count_failure(cause, facts.current.made_progress)
    if failures.is_exhausted(cause, restart.allowed_retries(cause, policy.startretries)):
        lack = "a new checkpoint" if policy.is_job else "staying up"
        count = failures.by_cause[cause]
        if count == 1:
            return give_up(facts, f"1 failure ({cause}) without {lack}: {text}")
        return give_up(facts, f"{count} failures ({cause}) in a row without {lack}, the last: {text}")
    pause = restart.backoff_s(failures.deaths_without_progress, f"{policy.name}:{facts.attempt}")
    if not policy.is_job and facts.current.made_progress:
        pause = short_life_pause_s(facts, now)
    facts.reason = text
    if pause <= 0:
        return launch(facts, now)
    enter(facts, State.BACKOFF, now + pause)
    return []


def short_life_pause_s(facts: ProgramFacts, now: float) -> float:
    """Counts a crash of a plain program that had started; returns the pause, longer for each one that follows soon."""
    failures = facts.failures
    failures.count_short_life(now - facts.current.started_at)
    return restart.backoff_s(failures.short_lives - restart.AT_ONCE, f"{facts.policy.name}:{facts.attempt}")


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
    account.record_passed_over(facts, verdict, event)
    if not facts.policy.is_gang:  # what was given up is in quarantine; of a gang, the mirror alone may have had it
        facts.restore_below_step = None
    gives_up_newer = isinstance(verdict, Older) and verdict.because is OlderBecause.OPERATOR
    stated = account.stated_reason(facts, verdict)
    seen_on = None if event.mount is None or event.device is None else (event.mount, event.device)
    highest_step = None if event.mount is None else max(event.highest_step or 0, event.step or 0)
    return [SendGo(
        facts.attempt, event.path, gives_up_newer, memory=event.memory, stated=stated, no_copies=facts.no_copies,
        seen_on=seen_on, highest_step=highest_step, passed_over=facts.passed_over,
    )]  # fmt: skip


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
