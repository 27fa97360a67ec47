"""A job waits for its checkpoint directory, a program for what it is started from; a job begins anew on request.

`core/failures/storage.py` and `start_paths.py` say what is waited for.
"""

from dataclasses import replace

from supervisor.core.actions.launching import launch
from supervisor.core.actions.transitions import Effects, enter, leads_to
from supervisor.core.failures.storage import NO_ANSWER_S, UNREADABLE_WAIT_S, StorageWait
from supervisor.core.program.account import loss_at
from supervisor.core.program.effects import LookAtStartPaths, LookAtStorage, WithdrawOrder
from supervisor.core.program.events import BeginAtRequested, CheckpointsSetAside, StartPathsSeen, StorageSeen
from supervisor.core.program.facts import ProgramFacts, State


def wait_for_storage(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Enters BACKOFF, without a process, until the checkpoint directory can be used and holds what it held."""
    is_unusable = facts.current.failed_errno is not None
    before = facts.storage or StorageWait(now, looks=-1)
    facts.storage = StorageWait(before.since, before.looks + 1, facts.current.older_readable, is_unusable)
    facts.waits_for_storage, facts.waits_for_host, facts.reason = True, False, text
    facts.start_paths_missing = False
    facts.current.flush = None
    enter(facts, State.BACKOFF, now + facts.storage.pause_s)
    return []


def wait_for_start_paths(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Enters BACKOFF, without a process, until the program's directory and command can be reached."""
    effects = wait_for_storage(facts, text, now)
    facts.start_paths_missing = True
    return effects


def look_at_storage(facts: ProgramFacts, now: float) -> Effects:
    """Looks whether the directory is back; where it does not answer, the next look is asked for after a while."""
    facts.deadline_at = now + NO_ANSWER_S
    if facts.start_paths_missing:
        return [LookAtStartPaths(facts.attempt)]
    writes = facts.storage is not None and facts.storage.writing
    return [LookAtStorage(facts.attempt, writes, facts.account.newest)]


@leads_to(State.STARTING, State.STOPPED)
def storage_seen(facts: ProgramFacts, event: StorageSeen, now: float) -> Effects:
    """Starts an attempt if the directory can be used and holds what it held; otherwise looks again, ever less often."""
    waited = facts.storage
    if not facts.waits_for_storage or facts.start_paths_missing or waited is None:
        return []
    why = event.error
    if why is None and facts.begin_at is None:
        loss = loss_at(facts, event)
        why = loss.text if loss is not None and loss.waits else None
    if why is None or (waited.unreadable and now - waited.since >= UNREADABLE_WAIT_S):
        return launch(facts, now)
    facts.reason = why
    facts.storage = replace(waited, looks=waited.looks + 1)
    enter(facts, State.BACKOFF, now + facts.storage.pause_s)
    return []


@leads_to(State.STARTING, State.STOPPED)
def start_paths_seen(facts: ProgramFacts, event: StartPathsSeen, now: float) -> Effects:
    """Starts an attempt if directory and command are there; otherwise looks again, ever less often."""
    waited = facts.storage
    if not facts.start_paths_missing or waited is None:
        return []
    if event.error is None:
        return launch(facts, now)
    facts.storage = replace(waited, looks=waited.looks + 1)
    enter(facts, State.BACKOFF, now + facts.storage.pause_s)
    return []


def begin_at_step(facts: ProgramFacts, event: BeginAtRequested, now: float) -> Effects:
    """Records where the next start begins. It holds until one does, or until a stop is requested."""
    withdraw: Effects = [] if facts.begin_at in (None, event.step) else [WithdrawOrder()]
    facts.begin_at = event.step if facts.policy.is_job else None
    facts.begin_since = None  # the present attempt was launched before
    return withdraw


def checkpoints_set_aside(facts: ProgramFacts, event: CheckpointsSetAside, now: float) -> Effects:
    """Records that an order is carried out on the disk: no stop withdraws it from now on, nor did one just before."""
    facts.set_aside = event.step
    if facts.begin_at is None:
        facts.begin_at = event.step
    return []
