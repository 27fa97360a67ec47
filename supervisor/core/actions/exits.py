"""The process is gone: records its end, and decides what follows from the cause (`exit_causes.py`)."""

from collections.abc import Callable, Mapping

from supervisor.core.actions.crash_loops import own_checkpoint, persist_hang_history, record_death
from supervisor.core.actions.exit_causes import classify_exit
from supervisor.core.actions.explaining import DONE, explain, is_left_unsaved, with_consequence
from supervisor.core.actions.intents import record_stop, start_with_full_budgets
from supervisor.core.actions.launching import launch, retry, short_life_pause_s
from supervisor.core.actions.memory_copies import copies_are_blamed, settle_memory
from supervisor.core.actions.storage_waits import wait_for_storage
from supervisor.core.actions.transitions import Effects, enter, give_up, leads_to, plain_program_started
from supervisor.core.failures import restart
from supervisor.core.failures.restart import Cause
from supervisor.core.program import account
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import WorkerExited
from supervisor.core.program.facts import AutoRestart, OnOom, ProgramFacts, State
from supervisor.protocol.wire.exits import WorkerExit

MAX_WHY = 500  # characters of why a checkpoint does not fit, kept with its name
SUCCESS_HINT = "if it has gone into the background, keep it in front (pidproxy); if it was done, set startsecs = 0"
CHECK_HINT = "check the data and the learning rate"


@leads_to(State.STARTING, State.BACKOFF, State.STOPPED, State.SUCCEEDED, State.EXITED, State.FAILED)
def worker_exited(facts: ProgramFacts, event: WorkerExited, now: float) -> Effects:
    """Records the end of the attempt and decides what follows.

    A plain program may have outlived startsecs before its deadline was handled; then it counts as having run.
    """
    if _has_outlived(facts, now):
        plain_program_started(facts, now)
    event = explain(facts, event)
    cause, text = classify_exit(facts, event)
    return follow_exit(facts, event, cause, text, now)


def follow_exit(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    """Does what follows from an end, and records it with why and with what follows."""
    memory = settle_memory(facts, event, cause)
    record, *others = _follow_exit(facts, event, cause, text, now)
    effects = [record, *memory, *others]  # a next attempt selects its checkpoint after that
    is_expected = cause is Cause.EXITED and event.code in facts.policy.exitcodes
    return effects if is_expected else with_consequence(facts, effects, event.diagnosis, now)


def _follow_exit(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    """Records why the attempt ended and how far it had come, and does what follows from that."""
    how = restart.describe_exit(event.code, event.signal)
    facts.ended = account.saved_progress(facts, f"the worker ended first ({how})")
    left_unsaved = is_left_unsaved(facts) or facts.current.flush_failure is not None
    unsaved = facts.ended if left_unsaved and facts.ended is not None and not facts.ended.is_safe else None
    if unsaved is not None:
        text = f"{text}; {unsaved.consequence()}"
    if blames_copies := copies_are_blamed(facts, event, cause):
        facts.no_copies = True
        text = f"{text}; from now on its state is not copied into memory"
    record = RecordEnd(facts.attempt, cause, text, unsaved)
    if cause is Cause.DONE and account.is_to_begin_again(facts):
        return [record, *start_with_full_budgets(facts, now)]
    if cause is Cause.DONE:
        facts.reason = text if text != DONE else None
        enter(facts, State.SUCCEEDED)
        return [record, *record_stop(facts, event, now)]
    if cause is Cause.DIVERGENCE:
        _record_divergence(facts)
    if facts.closing or not facts.wanted:
        facts.reason = text if left_unsaved or cause is Cause.DIVERGENCE else None
        enter(facts, State.STOPPED)
        return [record]
    if facts.current.start_afresh:
        return [record, *persist_hang_history(facts), *start_with_full_budgets(facts, now)]
    if cause is Cause.PREEMPTION and facts.current.decided_end is None:
        return [record, *_launch_after_outside_stop(facts, text, now)]
    if cause in (Cause.STOPPED, Cause.PREEMPTION):  # started again while it stopped, or the host may stay
        return [record, *launch(facts, now)]
    if cause is Cause.SETUP:
        return [record, *give_up(facts, text)]
    if cause is Cause.STORAGE:
        return [record, *wait_for_storage(facts, text, now)]
    if not facts.policy.is_job:
        return [record, *_follow_plain(facts, event, cause, text, now)]
    if (blamed := record_death(facts, cause)) is not None:
        text = f"{text}; {blamed}"
        record = RecordEnd(facts.attempt, cause, text, unsaved)
    if blames_copies and facts.policy.autorestart is not AutoRestart.NEVER:  # counts against no budget
        return [record, *persist_hang_history(facts), *launch(facts, now)]
    return [record, *persist_hang_history(facts), *_follow_job(facts, event, cause, text, now)]


def _launch_after_outside_stop(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Starts again, as the host is still there: at once after a checkpoint or the first time, then later each time.

    A notice may hold for days, and who stops the worker need not be the host. It counts against no budget.
    """
    failures = facts.failures
    if facts.current.saved_step is not None:
        return launch(facts, now)
    failures.deaths_without_progress += 1
    pause = restart.backoff_s(failures.deaths_without_progress - 1, f"{facts.policy.name}:{facts.attempt}")
    if pause <= 0:
        return launch(facts, now)
    facts.reason = text
    enter(facts, State.BACKOFF, now + pause)
    return []


def _has_outlived(facts: ProgramFacts, now: float) -> bool:
    policy, deadline_at = facts.policy, facts.deadline_at
    counts_seconds = not policy.is_job and policy.notify_timeout is None
    return facts.state is State.STARTING and counts_seconds and deadline_at is not None and deadline_at <= now


def _follow_plain(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    if cause is Cause.LOST:  # the gang is broken: nobody can say that it failed
        return launch(facts, now)
    if cause is Cause.CRASH:  # before it was up
        counts_seconds = facts.policy.notify_timeout is None
        text = f"exited {'too quickly' if counts_seconds else 'before it sent READY=1'}: {text}"
        if counts_seconds and event.code == 0:
            text = f"{text}; {SUCCESS_HINT}"
    if cause is not Cause.EXITED:
        return retry(facts, cause, text, now)
    expected = event.code in facts.policy.exitcodes
    autorestart = facts.policy.autorestart
    if expected and autorestart is not AutoRestart.ALWAYS:
        enter(facts, State.SUCCEEDED)
        return []
    if autorestart is AutoRestart.NEVER:
        facts.reason = text
        enter(facts, State.EXITED)
        return []
    return _launch_again(facts, text, 0.0 if expected else short_life_pause_s(facts, now), now)


def _launch_again(facts: ProgramFacts, text: str, pause: float, now: float) -> Effects:
    """Starts the program at once, or after a pause if it lived so shortly that restarts would keep the daemon busy."""
    earliest = max(facts.current.started_at + restart.BACKOFF_FIRST_S, now + pause)
    if now >= earliest:
        return launch(facts, now)
    facts.reason = text
    if pause > 0:
        facts.reason = (
            f"{text}, {facts.failures.short_lives} times in a row soon after its start; each restart waits longer"
        )
    enter(facts, State.BACKOFF, earliest)
    return []


def _follow_job(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    if facts.policy.autorestart is AutoRestart.NEVER:
        facts.reason = text
        enter(facts, State.EXITED)
        return []
    if cause is Cause.LOST:  # nobody knows that it failed
        return launch(facts, now)
    if (follow := OTHER_STARTS.get(cause)) is not None:
        return follow(facts, text, now)
    if cause is Cause.CRASH and _has_lost_a_port(facts) and facts.failures.forgive_lost_port():
        facts.reason = f"{text}; another start gets another port"
        enter(facts, State.BACKOFF, now + restart.backoff_s(facts.failures.ports_lost, facts.policy.name))
        return []
    is_its_own = event.code == WorkerExit.USER_ERROR and cause is not Cause.GPU
    raised = facts.current.reported_error if is_its_own else None
    is_new = not (facts.current.from_checkpoint or facts.ever_trained)
    if raised is not None and is_new and not restart.has_lost_a_port(raised):
        return give_up(facts, f"failed before its first step: {text}")
    if raised is not None and _is_repeated_mistake(facts, raised):
        facts.failures.count_failure(cause, made_progress=False)
        times = facts.failures.deaths_without_progress
        return give_up(facts, f"failed before its first step, {times} times in a row: {text}")
    return retry(facts, cause, text, now)


def _has_lost_a_port(facts: ProgramFacts) -> bool:
    """Whether the attempt failed before it trained, as another program had its port. That is nobody's failure."""
    error = facts.current.reported_error
    return error is not None and not facts.current.made_progress and restart.has_lost_a_port(error)


def _is_repeated_mistake(facts: ProgramFacts, error: str) -> bool:
    """Whether the script made a mistake before anything was restored, and the attempts before failed too."""
    is_before_restore = facts.current.start_step is None and not facts.current.made_progress
    used = facts.failures.deaths_without_progress
    return is_before_restore and restart.is_mistake(error) and used >= restart.MISTAKE_RETRIES


# --- after a failure that the same start would repeat, the next attempt is a different one ---


def _record_divergence(facts: ProgramFacts) -> None:
    """Has the next attempt begin before the batches that may have caused it, each time in a row further back, unless
    an operator has chosen where.

    A bad update shows in the loss of the step after it, so what was saved after the step before is not trusted.
    """
    if not facts.current.go_back or facts.current.failed_step is None or facts.begin_at is not None:
        return
    facts.diverged_attempt = facts.current.gang_attempt or facts.attempt
    facts.restore_below_step = max(0, facts.current.failed_step - 1)
    if facts.failures.by_cause.get(Cause.DIVERGENCE, 0) and facts.current.start_step is not None:
        facts.restore_below_step = min(facts.restore_below_step, facts.current.start_step)


def follow_divergence(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Starts again from before it, if the job's section says so."""
    if not facts.current.go_back:
        return give_up(facts, f"diverged: {text}; {CHECK_HINT}, or set on_nan = rollback or skip; then start it again")
    return retry(facts, Cause.DIVERGENCE, f"{text}; {CHECK_HINT}", now)


def follow_bad_checkpoint(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Begins from the next older checkpoint. If one is restored, the newer checkpoints were wrong and go to quarantine.
    If none fits, the program is wrong, and they stay where they are, for a program that they do fit.
    """
    name = own_checkpoint(facts)
    unfit = dict(facts.suspects.unfit)
    if name is None or name in unfit:
        return give_up(facts, text)
    facts.suspects.unfit = ((name, (facts.current.reported_error or text)[:MAX_WHY]), *facts.suspects.unfit)
    return retry(facts, Cause.BAD_CHECKPOINT, text, now)


def follow_out_of_memory(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Starts again, as others may have taken the memory, or with each batch divided into twice as many parts."""
    if facts.policy.on_oom is OnOom.MICROBATCH:
        facts.microbatches = min(2 * facts.microbatches, restart.MAX_MICROBATCHES)
        parts = facts.microbatches
        uses = "the script uses worker.Training or run.microbatches"
        remedy = f"from now on each batch is divided into {parts} parts, if {uses}"
    else:
        remedy = "give it more memory, or set on_oom = microbatch"
    return retry(facts, Cause.OUT_OF_MEMORY, f"{text}; {remedy}", now)


OTHER_STARTS: Mapping[Cause, Callable[[ProgramFacts, str, float], Effects]] = {
    Cause.DIVERGENCE: follow_divergence,
    Cause.BAD_CHECKPOINT: follow_bad_checkpoint,
    Cause.OUT_OF_MEMORY: follow_out_of_memory,
}
