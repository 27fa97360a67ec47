"""An attempt that an earlier daemon began: taken over where it stands, or booked where it ended unseen."""

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.crash_loops import record_failed_step
from supervisor.core.actions.exits import classify_exit, follow_exit
from supervisor.core.actions.intents import close, record_start_request, record_stop
from supervisor.core.actions.notices import flush_for_notice
from supervisor.core.actions.stopping import restart_flushing, stop_now
from supervisor.core.actions.training import committed, record_step
from supervisor.core.actions.transitions import (
    abort,
    enter,
    enter_running,
    flushing_deadline,
    launch,
    select_checkpoint,
    starting_deadline,
    terminate,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordEnd, RequestIdentity
from supervisor.core.program.events import (
    AttemptFound,
    AttemptLost,
    CheckpointCommitted,
    Event,
    ProgramClosed,
    RestartRequired,
    StepsDone,
    WorkerExited,
    WorkerIdentified,
)
from supervisor.core.program.facts import PendingFlush, ProgramFacts, State
from supervisor.core.program.notice_plan import is_host_going, stop_cause
from supervisor.protocol.messages import Phase, Then

ANSWER_S = 10.0  # a worker that does steps has a control thread that answers at once; one without a thread, between two


@leads_to(State.ADOPTING, State.STARTING, State.RUNNING, State.STOPPING)
def attempt_found(facts: ProgramFacts, event: AttemptFound, now: float) -> Effects:
    """A job's worker is asked where it stands; a plain program's age says it, or what it said.

    The worker may still be importing what its control thread needs, so it has what is left of its start-up.
    """
    facts.current.started_at, facts.current.progressed_at = now - event.age_s, now
    facts.hang_detector.start_attempt(now)
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
    """It goes on where it stands; one that nobody needs (so) any more flushes and stops."""
    facts.flushes_requested = max(facts.flushes_requested, event.last_flush)
    facts.current.from_checkpoint = event.restored
    facts.current.step = event.step if event.step is not None else facts.current.step
    facts.current.progressed_at = now
    facts.current.done_reported = facts.current.done_reported or event.phase is Phase.DONE
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
    """No answer: one that does steps is supervised like any other, one that does nothing is ended."""
    if facts.current.made_progress or facts.current.done_reported:
        enter_running(facts, now)
        return _go_on_training(facts, now)
    if _is_unneeded(facts):
        facts.current.decided_end = (Cause.STOPPED, f"stopped ({_why_not(facts)}) before it reported its status")
        return terminate(facts, event, now)
    if facts.current.decided_end is not None:
        return terminate(facts, event, now)
    limit = f"{facts.policy.startup_timeout:g} s (startup_timeout) of its start"
    text = f"did not train within {limit}, nor report its status to the daemon that adopted it"
    facts.current.decided_end = (Cause.STARTUP_TIMEOUT, text)
    return abort(facts, now)


def step_while_adopting(facts: ProgramFacts, event: StepsDone, now: float) -> Effects:
    """It trains, so its answer can't be far."""
    record_step(facts, event, now)
    _answer_by(facts, now + ANSWER_S)
    return []


def commit_while_adopting(facts: ProgramFacts, event: CheckpointCommitted, now: float) -> Effects:
    """A checkpoint is proof of steps, whether or not anybody heard of them."""
    facts.current.made_progress = facts.ever_trained = True
    return committed(facts, event, now)


def stop_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """Whether there is something to flush is known once it answers; it has as long as a flush."""
    _answer_by(facts, now + facts.policy.flush_timeout)
    return record_stop(facts, event, now)


def start_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """The stop that waits for its answer is taken back: it trains on, and has as long to answer as one just found."""
    if not facts.wanted and not facts.closing:
        facts.deadline_at = _answer_due(facts, now)
    return record_start_request(facts, event, now)


def close_adopting(facts: ProgramFacts, event: ProgramClosed, now: float) -> Effects:
    """As above, and it stays wanted."""
    close(facts, event, now)
    _answer_by(facts, now + facts.policy.flush_timeout)
    return []


def restart_adopting(facts: ProgramFacts, event: RestartRequired, now: float) -> Effects:
    """It makes room once it has answered, as there may be something to flush; it has as long for that as a flush."""
    facts.current.decided_end = (event.cause, event.text)
    _answer_by(facts, now + facts.policy.flush_timeout)
    return []


@leads_to(State.STOPPING)
def hurry_adopting(facts: ProgramFacts, event: Event, now: float) -> Effects:
    """No time to ask it for a flush."""
    if facts.current.decided_end is None or _is_unneeded(facts):
        facts.current.decided_end = (stop_cause(facts), "stopped at once, before it reported its status")
    return terminate(facts, event, now)


@leads_to(State.STARTING, State.BACKOFF, State.STOPPED, State.SUCCEEDED, State.EXITED, State.FAILED)
def attempt_lost(facts: ProgramFacts, event: AttemptLost, now: float) -> Effects:
    """Books the end that nobody saw, from what it left behind, and goes on as if it had been seen.

    What is held back goes on so with its next start, and a pause before that holds all the same.
    """
    facts.held_back = event.held_back
    effects = _follow_lost(facts, event, now)
    facts.held_back = False
    if event.held_back and facts.state is State.BACKOFF:
        facts.backoff_until = facts.deadline_at
        enter(facts, State.STOPPED)
    return effects


def _follow_lost(facts: ProgramFacts, event: AttemptLost, now: float) -> Effects:
    if event.done:
        enter(facts, State.SUCCEEDED)
        return [
            RecordEnd(facts.attempt, Cause.DONE, "done, while no daemon was running"),
            *record_stop(facts, event, now),
        ]
    told_nothing = event.error is None and event.oom is None
    if told_nothing and (event.host_rebooted or not facts.policy.is_job):
        cause, text = (
            (Cause.PREEMPTION, "the host went away")
            if event.host_rebooted
            else (Cause.LOST, "ended while no daemon was running; exit status unknown")
        )
        record = RecordEnd(facts.attempt, cause, text)
        return [record] if facts.closing or not facts.wanted else [record, *launch(facts, now)]
    _learn_from_what_it_left(facts, event)
    exit_ = WorkerExited(facts.attempt, event.code, None, event.oom)
    cause, text = classify_exit(facts, exit_)
    return follow_exit(facts, exit_, cause, f"{text}, while no daemon was running", now)


def _learn_from_what_it_left(facts: ProgramFacts, event: AttemptLost) -> None:
    """What would have been heard of it: its last words, its last checkpoint."""
    facts.current.out_of_memory, facts.current.rolls_back = event.out_of_memory, event.rolls_back
    if event.error is not None:
        facts.current.reported_error, facts.current.failed_step = event.error, event.step
        record_failed_step(facts, event.step)
    began_at = facts.current.start_step if facts.current.start_step is not None else 0
    facts.current.made_progress = event.committed_step is not None or (event.step or 0) > began_at
    facts.ever_trained = facts.ever_trained or facts.current.made_progress
    if event.committed_step is None:
        return
    facts.current.saved_step = event.committed_step
    if facts.best_step is None or event.committed_step > facts.best_step:
        facts.best_step = event.committed_step
        facts.failures.refill_budgets()
        facts.suspects.checkpoint_committed()


def _go_on_training(facts: ProgramFacts, now: float) -> Effects:
    """A notice that came before the answer is heard now, unless a checkpoint is on its way already."""
    if _is_unneeded(facts):
        return stop_now(facts, _why_not(facts), now)
    if facts.current.decided_end is not None:
        return restart_flushing(facts, RestartRequired(facts.attempt, *facts.current.decided_end), now)
    return flush_for_notice(facts, now) if facts.state is State.RUNNING else []


def _go_on_starting(facts: ProgramFacts, event: WorkerIdentified, now: float) -> Effects:
    """It has not trained. One that waits for its checkpoint, maybe since long before this daemon came, has as long for
    it as a new one; else what is left of its start-up."""
    if _is_unneeded(facts) or event.then is Then.STOP:
        facts.current.decided_end = (Cause.STOPPED, f"stopped while starting ({_why_not(facts)})")
        return terminate(facts, event, now)
    if facts.current.decided_end is not None:
        return terminate(facts, event, now)
    if event.phase is Phase.WAITING:
        facts.current.startup_deadline_at = now + facts.policy.startup_timeout
    facts.hang_detector.start_attempt(now)
    enter(facts, State.STARTING, starting_deadline(facts))
    return [select_checkpoint(facts)] if event.phase is Phase.WAITING else []


def _let_it_leave(facts: ProgramFacts, event: WorkerIdentified, now: float) -> Effects:
    """An earlier daemon, or a signal, told it to save and leave: it has as long as if it were told now."""
    cause = Cause.PREEMPTION if is_host_going(facts) and not _is_unneeded(facts) else Cause.STOPPED
    facts.current.decided_end = (cause, "stopped (requested before this daemon started)")
    if event.flush is None:
        enter(facts, State.STOPPING, now + facts.policy.flush_timeout)
        return []
    facts.current.flush = PendingFlush(event.flush, Then.STOP, requested_at=now)
    enter(facts, State.FLUSHING, now + facts.policy.flush_timeout)
    return []


def _answer_due(facts: ProgramFacts, now: float) -> float:
    """Between two steps, as it flushes, or within its start-up; who trains and does not answer is supervised anyway."""
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
