"""While a worker runs: steps, checkpoints, reports of completion and failure, hangs."""

from dataclasses import replace
from pathlib import PurePath

from supervisor.core.actions.crash_loops import persist_hang_history, record_failed_step
from supervisor.core.actions.memory_copies import release_memory
from supervisor.core.actions.transitions import (
    Effects,
    abort,
    enter_running,
    fixed_save_limit,
    hang_due_in_section,
    kill,
    leads_to,
    running_deadline,
    schedule_flush_retry,
)
from supervisor.core.failures.hang_detection import SAFETY, LoopSection
from supervisor.core.failures.restart import Cause
from supervisor.core.notices.flush import RECENT_COUNT, Pause, remember_pause
from supervisor.core.program import account
from supervisor.core.program.effects import LookAtStorage
from supervisor.core.program.events import (
    AttemptLost,
    CheckpointCommitted,
    CheckpointMirrored,
    CheckpointSaveFailed,
    Event,
    FailureReported,
    SpeedChanged,
    StepsDone,
    StorageSeen,
)
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.wire.messages import Then


def step_done(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """Records the step and moves the hang deadline."""
    record_step(facts, event, now)
    facts.deadline_at = running_deadline(facts, now)
    return []


def record_step(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """Records a step, whatever else is going on."""
    before = facts.current.step
    facts.current.step = max(event.step, before or 0)  # a commit may overtake the report of the step before
    facts.current.progressed_at, facts.current.silence = now, None
    facts.current.made_progress = facts.current.has_spoken = facts.current.restore_begun = facts.ever_trained = True
    facts.hang_detector.progress_reported(event.section, now)
    facts.hang_detector.save_reported(event.saving_s, now)
    facts.hang_detector.step_passed(event.step)
    if event.step_s is not None and event.step_s >= 0:
        facts.steps_s = (*facts.steps_s, event.step_s)[-RECENT_COUNT:]
    _note_pause(facts, before, now)
    return []


def _note_pause(facts: ProgramFacts, before: int | None, now: float) -> None:
    """Records the time since the last report (of step `before`), less what the steps before the newest one took."""
    if facts.current.last_step_at is not None and facts.current.step is not None and before is not None:
        steps_s = max(0, facts.current.step - before - 1) * min(facts.steps_s, default=0.0)
        facts.pauses = remember_pause(facts.pauses, Pause(now, max(0.0, now - facts.current.last_step_at - steps_s)))
    facts.current.last_step_at = now


def committed(facts: ProgramFacts, event: CheckpointCommitted, now: float) -> Effects:
    """Records a checkpoint. A new best one refills all budgets: what is limited is failing without progress."""
    facts.current.saved_step, facts.current.save_error, facts.current.flush_failure = event.step, None, None
    facts.current.step = max(event.step, facts.current.step or 0)  # progress is reported now and then
    account.record_begun(facts)
    account.record_commit(facts, event.step, event.wall_at, event.name)
    facts.hang_detector.save_ended(now)
    if facts.best_step is None or event.step > facts.best_step:
        facts.best_step = event.step
        facts.failures.refill_budgets()
        facts.suspects.checkpoint_committed()
    flush = facts.current.flush
    if flush is not None and flush.id in event.flushes:
        facts.current.flush = replace(flush, committed=True)
        if not event.is_repeated:  # else it says nothing of how long the next one takes
            facts.flush_s = max(0.0, now - flush.requested_at)
        facts.current.flush_retry_at = None
    return persist_hang_history(facts)


def committed_in_training(facts: ProgramFacts, event: CheckpointCommitted, now: float) -> Effects:
    """Records a checkpoint as progress: the time it took does not count as silence."""
    facts.current.progressed_at = now
    effects = committed(facts, event, now)
    facts.deadline_at = running_deadline(facts, now)
    return effects


@leads_to(State.RUNNING)
def committed_in_flush(facts: ProgramFacts, event: CheckpointCommitted, now: float) -> Effects:
    """If it is the requested checkpoint, training goes on, or the worker has its time to exit by itself."""
    facts.current.progressed_at = now
    effects = committed(facts, event, now)
    flush = facts.current.flush
    if flush is None or not flush.committed:
        return effects
    if flush.then is Then.GO_ON:
        enter_running(facts, now)
    else:
        facts.deadline_at = now + facts.policy.stopwaitsecs
    return effects


def checkpoint_mirrored(facts: ProgramFacts, event: CheckpointMirrored, now: float) -> Effects:
    """Records where the newest checkpoint is as well."""
    account.record_mirrored(facts, event)
    return []


def save_failed_in_training(facts: ProgramFacts, event: CheckpointSaveFailed, now: float) -> Effects:
    """Records the failed save as a sign of life."""
    _record_failed_save(facts, event)
    facts.current.progressed_at = now
    facts.hang_detector.save_ended(now)
    facts.deadline_at = running_deadline(facts, now)
    return [LookAtStorage(facts.attempt, newest=facts.account.newest)]


@leads_to(State.KILLING)
def storage_seen_in_training(facts: ProgramFacts, event: StorageSeen, now: float) -> Effects:
    """Ends an attempt over whose directory a volume was mounted, if that holds all that the account knows of.

    It can't save there any more, and what it has trained since its last save would be trained again at any time; the
    next one begins from what is mounted now. Otherwise it trains on: its newest checkpoint is below the volume, or on
    one that is away, and once that is in reach again it saves there.
    """
    before = facts.mount
    if event.error is not None or not _is_mounted_over(before, event.mount):
        return []
    if account.loss_at(facts, event) is not None:
        return []
    text = f"checkpoint_dir {facts.policy.checkpoint_dir} was on {before} when this attempt began, and is now on"
    holds = "no checkpoint" if event.highest_step is None else f"step {event.highest_step}"
    text = f"{text} {event.mount}, which was mounted meanwhile and has {holds}; going on from what is there"
    facts.current.decided_end = (Cause.STORAGE, text)
    return [*release_memory(facts), *kill(facts, event, now)]


def _is_mounted_over(before: str | None, now: str | None) -> bool:
    """Whether a file system, in words as in facts, is mounted below the point of an earlier one."""
    if before is None or now is None:
        return False
    point, new_point = (PurePath(words.rpartition(" at ")[2]) for words in (before, now))
    return new_point != point and new_point.is_relative_to(point)


@leads_to(State.RUNNING)
def save_failed_in_flush(facts: ProgramFacts, event: CheckpointSaveFailed, now: float) -> Effects:
    """Ends the flush if training goes on; a worker that was told to stop exits with its own status."""
    flush = facts.current.flush
    _record_failed_save(facts, event)
    facts.hang_detector.save_ended(now)
    if flush is not None and flush.then is Then.GO_ON and flush.id in event.flushes:
        facts.current.progressed_at = now
        schedule_flush_retry(facts, now)
        enter_running(facts, now)
        return [LookAtStorage(facts.attempt, newest=facts.account.newest)]
    return []


def _record_failed_save(facts: ProgramFacts, event: CheckpointSaveFailed) -> None:
    facts.current.save_error = event.error
    if event.step is not None:
        facts.current.step = max(event.step, facts.current.step or 0)


def done_reported(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Records that training is complete; the exit status has to confirm it."""
    facts.current.done_reported = True
    return []


def failure_reported(facts: ProgramFacts, event: FailureReported, now: float) -> Effects:
    """Records the failure, which says more than an exit status."""
    facts.current.has_spoken = True
    record_failure(facts, event)
    return []


def record_failure(facts: ProgramFacts, event: FailureReported | AttemptLost) -> None:
    """What the worker says of its failure, whether or not a daemon was there to hear of it."""
    facts.current.reported_error, facts.current.failed_step = event.error, event.step
    facts.current.out_of_memory, facts.current.go_back = event.out_of_memory, event.go_back
    facts.current.failed_errno, facts.current.gang_attempt = event.errno, event.gang_attempt
    record_failed_step(facts, event.step)


def speed_changed(facts: ProgramFacts, event: SpeedChanged, now: float) -> Effects:
    """Records that it trains slower than it used to, or no longer does."""
    facts.current.slowdown = event.slowdown
    return []


def end_hung_worker(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Ends a hung worker: its stacks are dumped before it is killed."""
    policy, detector = facts.policy, facts.hang_detector
    due = hang_due_in_section(facts)
    section = due[1] if due is not None else detector.section
    silent = f"no step for {policy.hang_timeout or 0:g} s (hang_timeout)"
    if policy.hang_timeout_min is not None:
        limit_s = detector.limit(section, policy.hang_timeout_min)
        silent = f"no step for {limit_s:g} s in section {section} (hang_timeout = auto)"
        detector.record_hang(facts.current.step, section)
    elif section is LoopSection.SAVE and detector.saving_since is not None:
        limit = f"{fixed_save_limit(policy):g} s ({SAFETY:g} times the longer of hang_timeout and flush_timeout)"
        silent = f"a checkpoint was not on the disk within {limit}"
    facts.current.decided_end = (Cause.HANG, f"{silent} after step {facts.current.step}")
    return abort(facts, now)
