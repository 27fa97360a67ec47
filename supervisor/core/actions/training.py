"""While it runs: steps, checkpoints, last words."""

from dataclasses import replace

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.looping import note_failed_step, remember
from supervisor.core.actions.moves import (
    abort,
    fixed_save_limit,
    hang_due,
    run,
    running_deadline,
    try_flush_again,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.silences import SAFETY, Section
from supervisor.core.notices.flush import RECENT_COUNT, Pause, remember_pause
from supervisor.core.program.events import (
    CheckpointCommitted,
    Event,
    FailureSaid,
    SaveFailed,
    StepsDone,
)
from supervisor.core.program.facts import Facts, State
from supervisor.protocol.messages import Then


def step_done(facts: Facts, event: StepsDone, now: float) -> Effects:
    """Training moves: the hang deadline moves with it."""
    note_step(facts, event, now)
    facts.deadline_at = running_deadline(facts, now)
    return []


def note_step(facts: Facts, event: StepsDone, now: float) -> Effects:
    """A step counts, whatever is going on besides."""
    before = facts.step
    facts.step = event.step
    facts.progressed_at = now
    facts.moved = facts.ever_moved = True
    facts.patience.heard(event.section, now)
    facts.patience.saving(event.saving_s, now)
    facts.patience.passed(event.step)
    if event.step_s is not None and event.step_s >= 0:
        facts.steps_s = (*facts.steps_s, event.step_s)[-RECENT_COUNT:]
    _note_pause(facts, before, now)
    return []


def _note_pause(facts: Facts, before: int | None, now: float) -> None:
    """What passed since the last word of a step (of `before`), less what the steps before the last one took."""
    if facts.stepped_at is not None and facts.step is not None and before is not None:
        steps_s = max(0, facts.step - before - 1) * min(facts.steps_s, default=0.0)
        facts.pauses = remember_pause(facts.pauses, Pause(now, max(0.0, now - facts.stepped_at - steps_s)))
    facts.stepped_at = now


def committed(facts: Facts, event: CheckpointCommitted, now: float) -> Effects:
    """A new best checkpoint clears all budgets: what is limited is failing without progress."""
    facts.saved = event.step
    facts.patience.save_ended(now)
    if facts.best_step is None or event.step > facts.best_step:
        facts.best_step = event.step
        facts.failures.forgive()
        facts.suspects.forgive()
    flush = facts.flush
    if flush is not None and flush.id in event.flushes:
        facts.flush = replace(flush, committed=True)
        facts.flushed_s = max(0.0, now - flush.asked_at)
        facts.flush_again_at = None
    return remember(facts)


def committed_in_training(facts: Facts, event: CheckpointCommitted, now: float) -> Effects:
    """A save is progress too: the time it took does not count as silence."""
    facts.progressed_at = now
    effects = committed(facts, event, now)
    facts.deadline_at = running_deadline(facts, now)
    return effects


@leads_to(State.RUNNING)
def committed_in_flush(facts: Facts, event: CheckpointCommitted, now: float) -> Effects:
    """Perhaps the one that was asked for: go on, or give the worker its time to leave by itself."""
    facts.progressed_at = now
    effects = committed(facts, event, now)
    flush = facts.flush
    if flush is None or not flush.committed:
        return effects
    if flush.then is Then.GO_ON:
        run(facts, now)
    else:
        facts.deadline_at = now + facts.policy.stopwaitsecs
    return effects


def save_failed_in_training(facts: Facts, event: SaveFailed, now: float) -> Effects:
    """Bad news, but from a loop that lives."""
    facts.progressed_at = now
    facts.patience.save_ended(now)
    facts.deadline_at = running_deadline(facts, now)
    return []


@leads_to(State.RUNNING)
def save_failed_in_flush(facts: Facts, event: SaveFailed, now: float) -> Effects:
    """Where training goes on there is nothing to wait for; a worker told to stop leaves with its own exit status."""
    flush = facts.flush
    facts.patience.save_ended(now)
    if flush is not None and flush.then is Then.GO_ON and flush.id in event.flushes:
        facts.progressed_at = now
        try_flush_again(facts, now)
        run(facts, now)
    return []


def done_said(facts: Facts, event: Event, now: float) -> Effects:
    """Remembered until the exit status confirms it."""
    facts.done_said = True
    return []


def failure_said(facts: Facts, event: FailureSaid, now: float) -> Effects:
    """Remembered: it says more than an exit status."""
    facts.last_words, facts.failed_step = event.error, event.step
    facts.ran_out, facts.goes_back = event.out_of_memory, event.go_back
    note_failed_step(facts, event.step)
    return []


def hung(facts: Facts, event: Event, now: float) -> Effects:
    """No step for hang_timeout: stacks first, then the kill."""
    policy, patience = facts.policy, facts.patience
    due = hang_due(facts)
    section = due[1] if due is not None else patience.section
    silent = f"no step for {policy.hang_timeout or 0:g} s (hang_timeout)"
    if policy.hang_timeout_min is not None:
        limit_s = patience.limit(section, policy.hang_timeout_min)
        silent = f"no step for {limit_s:g} s in section {section} (hang_timeout = auto)"
        patience.hung(facts.step, section)
    elif section is Section.SAVE and patience.saving_since is not None:
        limit = f"{fixed_save_limit(policy):g} s ({SAFETY:g} times the longer of hang_timeout and flush_timeout)"
        silent = f"a checkpoint is not on the disk within {limit}"
    facts.ending = (Cause.HANG, f"{silent} after step {facts.step}")
    return abort(facts, now)
