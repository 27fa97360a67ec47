"""Records the end of an attempt that no daemon saw.

The worker ended while no daemon was running. What it left behind takes the place of what a daemon would have
seen: its last words (`done`, or `failed` with the exit status), its newest checkpoint, the kernel's count of kills for
lack of memory; and after a reload, what it had copied into memory. From these a WorkerExited is made and follows the
same path as any other (`exits.py`), so that budgets and back-off come out as if the daemon had lived on. Without any
trace, the cause is `preemption` after a reboot of the host, else `lost` if the attempt made progress or is a plain
program's; neither counts as a failure. Nor does the end of a worker that this daemon has ended, as it could not adopt
it.
"""

from supervisor.core.actions.exit_causes import classify_exit
from supervisor.core.actions.exits import follow_exit
from supervisor.core.actions.explaining import explain
from supervisor.core.actions.intents import record_stop, start_with_full_budgets
from supervisor.core.actions.launching import launch
from supervisor.core.actions.memory_copies import release_memory, settle_memory
from supervisor.core.actions.training import record_failure
from supervisor.core.actions.transitions import Effects, enter, leads_to
from supervisor.core.failures.restart import Cause
from supervisor.core.program import account
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import AttemptLost, WorkerExited
from supervisor.core.program.facts import ProgramFacts, State


@leads_to(State.STARTING, State.BACKOFF, State.STOPPED, State.SUCCEEDED, State.EXITED, State.FAILED)
def attempt_lost(facts: ProgramFacts, event: AttemptLost, now: float) -> Effects:
    """Records the end that nobody saw, from what the worker left behind, and continues as if it had been seen.

    If a dependency is not ready, the program waits for its next start request, and a back-off still holds then.
    """
    facts.held_back = event.held_back
    effects = _follow_lost(facts, event, now)
    facts.held_back = False
    if event.held_back and facts.state is State.BACKOFF:
        facts.backoff_until = facts.deadline_at
        enter(facts, State.STOPPED)
    return effects


def _follow_lost(facts: ProgramFacts, event: AttemptLost, now: float) -> Effects:
    facts.current.in_memory = event.in_memory
    if event.done or event.committed_step is not None:  # it had begun, whether or not a daemon was there to hear of it
        account.record_restored(facts)
    if event.committed_step is not None:
        before = facts.account
        account.record_start(facts)
        account.record_commit(facts, event.committed_step)
        facts.account = before.changed_to(facts.account.newest)  # one change
    if event.done:
        done = [RecordEnd(facts.attempt, Cause.DONE, "done, while no daemon was running"), *release_memory(facts)]
        if account.is_to_begin_again(facts):
            return [*done, *start_with_full_budgets(facts, now)]
        enter(facts, State.SUCCEEDED)
        return [*done, *record_stop(facts, event, now)]
    told_nothing = event.error is None and event.oom is None
    if told_nothing and (event.host_rebooted or not facts.policy.is_job):
        cause, text = (
            (Cause.PREEMPTION, "the host went away")
            if event.host_rebooted
            else (Cause.LOST, "ended while no daemon was running; exit status unknown")
        )
        record = RecordEnd(facts.attempt, cause, text)
        return [record] if facts.closing or not facts.wanted else [record, *launch(facts, now)]
    _restore_reports(facts, event)
    if told_nothing and event.not_adopted is not None:
        return _follow_own_end(facts, event.not_adopted, now)
    exit_ = explain(facts, WorkerExited(facts.attempt, event.code, None, event.oom))
    cause, text = classify_exit(facts, exit_)
    return follow_exit(facts, exit_, cause, f"{text}, while no daemon was running", now)


def _follow_own_end(facts: ProgramFacts, text: str, now: float) -> Effects:
    """This daemon has ended the worker, as it could not adopt it: nothing failed, and what it left is as good as ever.

    That it could not save is no reason to lose what it has in memory.
    """
    facts.current.decided_end = (Cause.LOST, text)
    facts.ended = account.saved_progress(facts, text)
    memory = settle_memory(facts, WorkerExited(facts.attempt), Cause.LOST)
    effects = [RecordEnd(facts.attempt, Cause.LOST, text), *memory]
    return effects if facts.closing or not facts.wanted else [*effects, *launch(facts, now)]


def _restore_reports(facts: ProgramFacts, event: AttemptLost) -> None:
    """Takes over what a daemon would have seen: the worker's last words and its last checkpoint."""
    if event.error is not None:
        record_failure(facts, event)
    facts.current.made_progress = event.committed_step is not None or (event.step or 0) > (
        facts.current.start_step or 0
    )
    facts.ever_trained = facts.ever_trained or facts.current.made_progress
    if event.committed_step is None:
        return
    facts.current.saved_step = event.committed_step
    facts.current.step = max(event.committed_step, facts.current.step or 0)
    if facts.best_step is None or event.committed_step > facts.best_step:
        facts.best_step = event.committed_step
        facts.failures.refill_budgets()
        facts.suspects.checkpoint_committed()
