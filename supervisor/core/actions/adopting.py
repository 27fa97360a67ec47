"""Adopts the worker of an attempt that an earlier daemon started.

How adoption works
------------------
Workers train on when their daemon dies or executes itself (`reload`). The next daemon looks in the ledger for attempts
without an end. The runner finds out whether the worker still lives (`runner/attempt/adopting.py`) and posts one of two
events, while the program is still STOPPED: AttemptFound or AttemptLost.

*Found.* The daemon has the worker's pipes but knows nothing of its state. A job's worker is therefore asked (effect
RequestIdentity) and the program is ADOPTING until it answers. Its control thread answers at once, unless it is still
importing or a training loop without such a thread is in the middle of a step; hence the deadline is the longer of a
flush and what is left of its start-up. Steps and commits that arrive before the answer count as usual. So do requests:
a stop, a restart or a shutdown is remembered, and shortens the deadline to the time of a flush, since only the answer
tells whether there is anything to flush.

The answer (WorkerIdentified) says which phase the worker is in, and the program continues in the state for it:

    waits for its checkpoint     STARTING, and a checkpoint is selected for it
    restores                     STARTING
    trains                       RUNNING, or FLUSHING if a flush is not answered yet
    is on its way out            FLUSHING or STOPPING

A worker that is not wanted any more, or whose configuration has changed, flushes and stops from there. Without an
answer, one that does steps is supervised as any other and one that shows no progress is ended. A plain program has no
control pipe; its age, or whether it reported READY=1, tells which state it is in.

An attempt whose worker is gone by then is the subject of `lost_attempts.py`.
"""

from supervisor.core.actions.intents import close, record_start_request, record_stop
from supervisor.core.actions.launching import select_checkpoint
from supervisor.core.actions.notices import flush_for_notice
from supervisor.core.actions.stopping import restart_flushing, stop_now
from supervisor.core.actions.training import committed, record_step
from supervisor.core.actions.transitions import (
    Effects,
    abort,
    enter,
    enter_running,
    flushing_deadline,
    kill,
    leads_to,
    starting_deadline,
    terminate,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.program import account
from supervisor.core.program.effects import RequestIdentity
from supervisor.core.program.events import (
    AttemptFound,
    CheckpointCommitted,
    Event,
    ProgramClosed,
    RestartRequired,
    StepsDone,
    WorkerIdentified,
)
from supervisor.core.program.facts import PendingFlush, ProgramFacts, State
from supervisor.core.program.notice_plan import is_host_going, stop_cause
from supervisor.protocol.wire.messages import Phase, Then

ANSWER_S = 10.0  # a training worker answers from its control thread at once, or without one between two steps

UNIDENTIFIED = "it did not report its status to the daemon that adopted it"


@leads_to(State.ADOPTING, State.STARTING, State.RUNNING, State.STOPPING)
def attempt_found(facts: ProgramFacts, event: AttemptFound, now: float) -> Effects:
    """Asks a job's worker for its status; a plain program's state follows from its age, or from its READY=1."""
    facts.current.started_at, facts.current.progressed_at = now - event.age_s, now
    facts.hang_detector.start_attempt(now)
    facts.current.has_spoken = True  # perhaps to the daemon before
    facts.current.outdated = event.outdated
    if facts.policy.is_job:
        facts.current.startup_deadline_at = facts.current.started_at + (
            facts.current.start_limit_s or facts.policy.startup_timeout
        )
        enter(facts, State.ADOPTING, _answer_due(facts, now))
        return [RequestIdentity(facts.attempt)]
    young_until = facts.current.started_at + facts.policy.startsecs
    if facts.policy.notify_timeout is not None and not event.ready:
        facts.current.readiness_unknown = True
        enter(facts, State.STARTING, now + facts.policy.notify_timeout)
    elif facts.policy.notify_timeout is None and now < young_until:
        enter(facts, State.STARTING, young_until)
    else:
        enter_running(facts, now)
    return stop_now(facts, _why_not(facts), now) if _is_unneeded(facts) else []


@leads_to(State.STARTING, State.RUNNING, State.FLUSHING, State.STOPPING)
def worker_identified(facts: ProgramFacts, event: WorkerIdentified, now: float) -> Effects:
    """Continues in the state that the worker reports; one that is no longer needed flushes and stops."""
    facts.flushes_requested = max(facts.flushes_requested, event.last_flush)
    facts.current.from_checkpoint = event.restored
    facts.current.restore_begun = facts.current.restore_begun or event.phase in (Phase.TRAINING, Phase.DONE)
    facts.current.step = event.step if event.step is not None else facts.current.step
    facts.current.progressed_at = now
    facts.current.done_reported = facts.current.done_reported or event.phase is Phase.DONE
    if event.phase in (Phase.TRAINING, Phase.DONE):
        account.record_restored(facts)
    if event.phase in (Phase.WAITING, Phase.RESTORING) or not (
        facts.current.made_progress or facts.current.done_reported
    ):
        return _go_on_starting(facts, event, now)
    if event.then is Then.STOP:
        return _let_it_leave(facts, event, now)
    enter_running(facts, now)
    if event.flush is not None:
        facts.current.flush = PendingFlush(event.flush, Then.GO_ON, requested_at=now)
        enter(facts, State.FLUSHING, flushing_deadline(facts, now))
    return _go_on_training(facts, now)


@leads_to(State.RUNNING, State.FLUSHING, State.STOPPING)
def identity_timeout(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Without an answer, a worker that does steps is supervised like any other, and one that does nothing is ended."""
    if facts.current.made_progress or facts.current.done_reported:
        _skip_flush_ids(facts, now)
        enter_running(facts, now)
        return _go_on_training(facts, now)
    if _is_unneeded(facts):
        facts.current.decided_end = (Cause.STOPPED, f"stopped ({_why_not(facts)}) before it reported its status")
        facts.current.flush_failure = UNIDENTIFIED
        return terminate(facts, event, now)
    if facts.current.decided_end is not None:
        return terminate(facts, event, now)
    limit = f"{facts.policy.startup_timeout:g} s (startup_timeout) of its start"
    text = f"did not train within {limit}, nor report its status to the daemon that adopted it"
    facts.current.decided_end = (Cause.STARTUP_TIMEOUT, text)
    return abort(facts, now)


def step_while_adopting(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """Records the steps. The worker trains, so it has to answer soon."""
    record_step(facts, event, now)
    _answer_by(facts, now + ANSWER_S)
    return []


def commit_while_adopting(facts: ProgramFacts, event: CheckpointCommitted, now: float) -> Effects:
    """Records the checkpoint, which proves that steps were done, whether or not they were reported."""
    facts.current.made_progress = facts.ever_trained = True
    return committed(facts, event, now)


def stop_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Records the stop. Only the answer tells whether there is something to flush; it may take as long as a flush."""
    _answer_by(facts, now + facts.policy.flush_timeout)
    return record_stop(facts, event, now)


def start_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Takes back a stop that waits for the answer; the worker has as long to answer as one that was just found."""
    if not facts.wanted and not facts.closing:
        facts.deadline_at = _answer_due(facts, now)
    return record_start_request(facts, event, now)


def close_adopting(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """Like `stop_adopting`, but the program stays wanted."""
    close(facts, event, now)
    _answer_by(facts, now + facts.policy.flush_timeout)
    return []


@leads_to(State.KILLING)
def restart_adopting(facts: ProgramFacts, event: RestartRequired, now: float) -> Effects:
    """Replaces the worker once it has answered, since there may be something to flush; at once if it can't save."""
    facts.current.decided_end = (event.cause, event.text)
    if not event.can_save:
        return kill(facts, event, now)
    _answer_by(facts, now + facts.policy.flush_timeout)
    return []


@leads_to(State.STOPPING)
def hurry_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Sends the stop signal; there is no time for a flush."""
    if facts.current.decided_end is None or _is_unneeded(facts):
        facts.current.decided_end = (stop_cause(facts), "stopped at once, before it reported its status")
        facts.current.flush_failure = UNIDENTIFIED
    return terminate(facts, event, now)


def _skip_flush_ids(facts: ProgramFacts, now: float) -> None:
    """Counts flushes on from a number that no earlier daemon has reached, as the worker has not said how far they came.

    Once it answers it repeats its newest commit, with the flushes that this answered: with the same number again, a
    flush of this daemon would count as done that has not begun. The clock grows from daemon to daemon while a worker
    lives, and no daemon asks for a flush a millisecond.
    """
    facts.flushes_requested = max(facts.flushes_requested, int(now * 1000))


def _go_on_training(facts: ProgramFacts, now: float) -> Effects:
    """Acts on what came before the answer: a stop, a required restart, or a notice if no flush is under way."""
    if _is_unneeded(facts):
        return stop_now(facts, _why_not(facts), now)
    if facts.current.decided_end is not None:
        return restart_flushing(facts, RestartRequired(facts.attempt, *facts.current.decided_end), now)
    return flush_for_notice(facts, now) if facts.state is State.RUNNING else []


def _go_on_starting(facts: ProgramFacts, event: WorkerIdentified, now: float) -> Effects:
    """Continues a worker that has not trained. One that waits for its checkpoint has a whole start-up's time, since it
    may have waited since long before this daemon started; otherwise the rest of its start-up."""
    if _is_unneeded(facts) or event.then is Then.STOP:
        facts.current.decided_end = (Cause.STOPPED, f"stopped while starting ({_why_not(facts)})")
        return terminate(facts, event, now)
    if facts.current.decided_end is not None:
        return terminate(facts, event, now)
    if event.phase is Phase.WAITING:
        facts.current.startup_deadline_at = now + facts.policy.startup_timeout
    facts.hang_detector.start_attempt(now)
    enter(facts, State.STARTING, starting_deadline(facts))
    return [select_checkpoint(facts, now)] if event.phase is Phase.WAITING else []


def _let_it_leave(facts: ProgramFacts, event: WorkerIdentified, now: float) -> Effects:
    """Lets a worker finish that an earlier daemon, or a signal, told to stop; it has as long as if it were told now."""
    cause = Cause.PREEMPTION if is_host_going(facts) and not _is_unneeded(facts) else Cause.STOPPED
    facts.current.decided_end = (cause, "stopped (requested before this daemon started)")
    if event.flush is None:
        enter(facts, State.STOPPING, now + facts.policy.flush_timeout)
        return []
    facts.current.flush = PendingFlush(event.flush, Then.STOP, requested_at=now)
    enter(facts, State.FLUSHING, now + facts.policy.flush_timeout)
    return []


def _answer_due(facts: ProgramFacts, now: float) -> float:
    """When the answer is due: after flush_timeout, or at the end of its start-up if it does not train yet."""
    between_steps = now + min(facts.policy.startup_timeout, facts.policy.flush_timeout)
    return between_steps if facts.current.made_progress else max(between_steps, facts.current.startup_deadline_at)


def _answer_by(facts: ProgramFacts, limit: float) -> None:
    if facts.deadline_at is None or limit < facts.deadline_at:
        facts.deadline_at = limit


def _is_unneeded(facts: ProgramFacts) -> bool:
    return facts.closing or not facts.wanted or facts.current.outdated


def _why_not(facts: ProgramFacts) -> str:
    if facts.closing:
        return "shutdown"
    return "update" if facts.wanted else "stop"
