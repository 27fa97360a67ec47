"""What holds at every event of every program, whatever happens in whatever order; checked in production.

Each invariant is a function of the facts before, the event, the effects and the facts after, named by what it claims.
`Job.handle` asks `broken` after every action. A breach is a defect of the core: it becomes an effect (ReportBreach),
the runner logs it with event and facts and counts it (`stepkeeper_invariants_broken_total`), and the daemon goes on,
since a worker that trains is worth more than a consistent record. The random walk of the tests asserts the same
functions, and the soak fails if one of them was ever broken.

Almost all events are reports of steps that change neither the state nor anything else, so an invariant says when it
has to be looked at: always, only if there are effects, or only if the state or whether there is a deadline has changed.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from supervisor.core.program import events
from supervisor.core.program.effects import (
    Abort,
    Effect,
    Kill,
    RecordEnd,
    RecordWanted,
    RequestFlush,
    SendGo,
    Spawn,
    Terminate,
)
from supervisor.core.program.events import Event
from supervisor.core.program.facts import ALIVE, OVER, ProgramFacts, State

Facts = ProgramFacts
Effects = Sequence[Effect]
Invariant = Callable[[Facts, Event, Effects, Facts], bool]
"""Whether it holds: facts before, event, effects, facts after."""


class When(Enum):
    """What has to have happened for an invariant to be broken."""

    ANYTHING = auto()
    EFFECTS = auto()
    CHANGE = auto()  # of the state, or of whether there is a deadline


_ALWAYS: list[Invariant] = []
_ON_EFFECTS: list[Invariant] = []
_ON_CHANGE: list[Invariant] = []
_LISTS = {When.ANYTHING: _ALWAYS, When.EFFECTS: _ON_EFFECTS, When.CHANGE: _ON_CHANGE}

_NOTICED = (
    events.NoticeReceived | events.NoticeChanged | events.NoticeEnded | events.SavesMeasured | events.UploadsChanged
)
_OF_OPERATORS = events.StartRequested | events.StopRequested
_ENDS = events.WorkerExited | events.AttemptLost  # the process is gone
_WITHOUT_FLUSH = frozenset({State.STARTING, State.RUNNING, State.ADOPTING})


def broken(before: Facts, event: Event, effects: Effects, after: Facts) -> list[str]:
    """The names of the invariants that do not hold; empty if all do."""
    try:
        looked_at = list(_ALWAYS)
        if effects:
            looked_at += _ON_EFFECTS
        if after.state is not before.state or (after.deadline_at is None) is not (before.deadline_at is None):
            looked_at += _ON_CHANGE
        return [holds.__name__ for holds in looked_at if not holds(before, event, effects, after)]
    except Exception as error:  # noqa: BLE001 - a defect of a check must not keep the effects from being executed
        return [f"internal error in a check: {error!r}"]


def all_invariants() -> list[Invariant]:
    """All of them, for tests that look at each one whatever happened."""
    return [*_ALWAYS, *_ON_EFFECTS, *_ON_CHANGE]


def invariant(when: When) -> Callable[[Invariant], Invariant]:
    """Adds a function to those that are checked."""

    def add(holds: Invariant) -> Invariant:
        _LISTS[when].append(holds)
        return holds

    return add


# --- always ---


@invariant(When.ANYTHING)
def attempt_numbers_only_rise(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """A number never comes back, and a new one is that of a process that is started now."""
    if after.attempt == before.attempt:
        return True
    return after.attempt > before.attempt and any(isinstance(effect, Spawn) for effect in effects)


@invariant(When.ANYTHING)
def wanted_changes_only_by_operators_or_completion(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """And what changes is recorded in the same breath."""
    if after.wanted is before.wanted:
        return True
    completed = isinstance(event, _ENDS) and after.state is State.SUCCEEDED and not after.wanted
    return (isinstance(event, _OF_OPERATORS) or completed) and RecordWanted(after.wanted) in effects


@invariant(When.ANYTHING)
def saved_step_is_never_above_the_step(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """What is saved was trained. A script's second run may begin at a lower step, so only a new save is looked at."""
    saved = after.current.saved_step
    if saved is None or saved == before.current.saved_step:
        return True
    return after.current.step is not None and saved <= after.current.step


@invariant(When.ANYTHING)
def closing_is_final(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Nothing takes back that this daemon will not run the program any more."""
    return after.closing or not before.closing


@invariant(When.ANYTHING)
def failures_are_charged_once_and_to_their_own_budget(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """Only the end that is recorded now is charged, by one, and only if its cause is a failure."""
    now, then = after.failures.by_cause, before.failures.by_cause
    if now is then:
        return True
    risen = [(cause, count - then.get(cause, 0)) for cause, count in now.items() if count > then.get(cause, 0)]
    ended = [effect.cause for effect in effects if isinstance(effect, RecordEnd)]
    return all(more == 1 and cause in ended and cause.traits.is_charged for cause, more in risen) and len(risen) <= 1


@invariant(When.ANYTHING)
def the_account_never_falls_without_a_reason(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Only an attempt that has restored an older checkpoint, and says why, lowers the newest that was reported.

    One that ended while no daemon ran shows by what it saved that it had.
    """
    was, now = before.account.newest, after.account.newest
    if now is was or was is None or (now is not None and now.step >= was.step):
        return True
    if isinstance(event, events.AttemptLost):
        return event.committed_step is not None and before.current.older is not None
    return isinstance(event, events.TrainingRestored) and after.current.older is not None


@invariant(When.ANYTHING)
def each_change_of_the_account_has_a_revision(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """By it, the later of two records on the disk is known."""
    if after.account is before.account:
        return True
    return after.account.revision == before.account.revision + 1


# --- effects ---


@invariant(When.EFFECTS)
def never_two_attempts(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """A process is started only where none is left, and only one."""
    spawns = [effect for effect in effects if isinstance(effect, Spawn)]
    if not spawns:
        return True
    is_gone = before.state not in ALIVE or isinstance(event, events.WorkerExited | events.SpawnFailed)
    next_attempt = max(before.attempt, before.attempts_used) + 1
    return len(spawns) == 1 and is_gone and spawns[0].attempt == after.attempt == next_attempt


@invariant(When.EFFECTS)
def only_what_is_wanted_is_started(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """A program that closes, is not wanted or is held back starts no process."""
    if not any(isinstance(effect, Spawn) for effect in effects):
        return True
    return after.wanted and not after.closing and not after.held_back and after.state is State.STARTING


@invariant(When.EFFECTS)
def a_notice_ends_nothing(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Word that the host goes away asks for saves; it neither kills nor decides what is wanted."""
    if not isinstance(event, _NOTICED):
        return True
    return not any(isinstance(effect, Kill | Terminate | Abort | RecordWanted) for effect in effects)


@invariant(When.EFFECTS)
def what_ends_a_process_is_seen_in_the_state(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """SIGKILL means KILLING, the stop signal or SIGABRT STOPPING; each has a deadline that repeats or hardens it."""
    for effect in effects:
        if isinstance(effect, Kill) and after.state is not State.KILLING:
            return False
        if isinstance(effect, Terminate | Abort) and after.state is not State.STOPPING:
            return False
    return True


@invariant(When.EFFECTS)
def a_flush_is_asked_for_only_in_flushing(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """And it is the one that is waited for, with an id that was never used."""
    asked = [effect for effect in effects if isinstance(effect, RequestFlush)]
    if not asked:
        return True
    flush = after.current.flush
    is_waited_for = after.state is State.FLUSHING and flush is not None and flush.id == asked[-1].id
    return len(asked) == 1 and is_waited_for and asked[0].id > before.flushes_requested


@invariant(When.EFFECTS)
def a_worker_begins_only_from_a_selected_checkpoint(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """`go` is sent once it is known what is to be restored, and to a worker that is starting."""
    if not any(isinstance(effect, SendGo) for effect in effects):
        return True
    return isinstance(event, events.CheckpointSelected) and after.state is State.STARTING


@invariant(When.EFFECTS)
def an_attempt_ends_once(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """At most one end is recorded at a time, and it is that of the attempt that there was."""
    ends = [effect for effect in effects if isinstance(effect, RecordEnd)]
    return len(ends) <= 1 and all(end.attempt == before.attempt for end in ends)


@invariant(When.EFFECTS)
def no_start_is_behind_the_account_without_a_reason(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """What is restored is as new as the newest that was reported, or why not is said."""
    newest = before.account.newest
    if newest is None or not any(isinstance(effect, SendGo) for effect in effects):
        return True
    chosen = after.current.checkpoint
    is_behind = chosen is None or chosen.step is None or chosen.step < newest.step
    return not is_behind or after.current.older is not None


@invariant(When.EFFECTS)
def evidence_ends_only_a_job_that_was_silent_meanwhile(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """A look at a silent job says nothing once it made progress, and nothing where looks are off."""
    if not isinstance(event, events.SilenceObserved) or not any(isinstance(effect, Abort) for effect in effects):
        return True
    is_silent = before.current.progressed_at < event.evidence.began_at
    return is_silent and before.policy.hang_evidence is not None and before.state is State.RUNNING


# --- changes of the state ---


@invariant(When.CHANGE)
def states_that_wait_have_a_deadline(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Nothing is waited for without a limit."""
    return after.deadline_at is not None or after.state in (*OVER, State.RUNNING)


@invariant(When.CHANGE)
def states_that_rest_have_none(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Where nothing is waited for, no timer fires."""
    return after.deadline_at is None or after.state not in OVER


@invariant(When.CHANGE)
def failed_has_a_reason(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Whoever has to act is told why."""
    return bool(after.reason) or after.state is not State.FAILED


@invariant(When.CHANGE)
def a_flush_is_pending_only_where_it_can_be_answered(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """FLUSHING waits for one; a worker that starts, trains or is being identified has none pending."""
    pending = after.current.flush is not None
    return pending if after.state is State.FLUSHING else not (pending and after.state in _WITHOUT_FLUSH)


@invariant(When.CHANGE)
def an_end_is_recorded(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """A process that is gone leaves its cause, unless nothing was tried (SpawnFailed with a time to try again)."""
    if before.state not in ALIVE or after.state in ALIVE or not isinstance(event, events.WorkerExited):
        return True
    return any(isinstance(effect, RecordEnd) for effect in effects)


@invariant(When.CHANGE)
def only_a_process_that_is_gone_leaves_the_states_of_one(
    before: Facts, event: Event, effects: Effects, after: Facts
) -> bool:
    """Nothing but its exit, or that it never came to be, ends the supervision of a process."""
    if before.state not in ALIVE or after.state in ALIVE:
        return True
    return isinstance(event, events.WorkerExited | events.SpawnFailed)


@invariant(When.CHANGE)
def nothing_waits_for_a_host_that_stays(before: Facts, event: Event, effects: Effects, after: Facts) -> bool:
    """Without a notice, a back-off is for another reason."""
    return after.notice is not None or not (after.state is State.BACKOFF and after.waits_for_host)
