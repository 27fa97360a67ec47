"""The state machine of one program: `handle(event, now)` gives effects, `deadline()` says when to call `expire(now)`.

TABLE has a cell for every state and event; a test says so. Nothing changes a program's state but this table.
"""

from collections.abc import Mapping

from supervisor.core import error_recovery
from supervisor.core.actions.adopting import (
    close_unidentified,
    committed_unseen,
    found,
    hurry_unidentified,
    identified,
    lost,
    silent_too_long,
    stirred,
    stop_unidentified,
    unfit_unidentified,
    want_unidentified,
)
from supervisor.core.actions.base import Action, ignore
from supervisor.core.actions.beginning import (
    delayed,
    first_step,
    ready,
    restored,
    selected,
    selection_failed,
    selection_failed_late,
    spawn_failed,
    spawned,
    starting_too_long,
)
from supervisor.core.actions.ending import exited
from supervisor.core.actions.frozen import (
    stood_adopting,
    stood_flushing,
    stood_running,
    stood_starting,
    stood_stopping,
)
from supervisor.core.actions.looping import stacks_kept
from supervisor.core.actions.moves import kill
from supervisor.core.actions.noticed import (
    changed_running,
    ended,
    ended_flushing,
    ended_running,
    ended_starting,
    ended_waiting,
    flushing_expired,
    measured,
    measured_flushing,
    measured_running,
    note,
    noticed_flushing,
    noticed_starting,
    noticed_waiting,
    received_running,
    running_expired,
)
from supervisor.core.actions.stopping import (
    close_flushing,
    close_running,
    close_starting,
    flush,
    hurry_flushing,
    stop_flushing,
    stop_running,
    stop_starting,
)
from supervisor.core.actions.training import (
    committed,
    committed_in_flush,
    committed_in_training,
    done_said,
    failure_said,
    note_step,
    save_failed_in_flush,
    save_failed_in_training,
    step_done,
)
from supervisor.core.actions.unfit import unfit_flushing, unfit_running, unfit_starting
from supervisor.core.actions.wishes import close, close_waiting, relaunch, rest, start, unwant, want, want_again
from supervisor.core.program import events
from supervisor.core.program.effects import Effect
from supervisor.core.program.events import Event
from supervisor.core.program.facts import (
    ALIVE,
    Policy,
    ProgramFacts,
    State,
)
from supervisor.core.program.memory import Memory, recall
from supervisor.core.program.stillness import stood_s

_ = ignore

# fmt: off
COLUMNS = (
    State.STOPPED, State.STARTING, State.RUNNING, State.FLUSHING, State.STOPPING,
    State.KILLING, State.BACKOFF, State.SUCCEEDED, State.EXITED, State.FAILED,
    State.ADOPTING,
)

_ROWS: Mapping[type[Event], tuple[Action, ...]] = {
    # what people want
    events.StartRequested: (
        start,               want,                want,                want_again,          want_again,
        want_again,          start,               start,               start,               start,
        want_unidentified,
    ),
    events.StopRequested: (
        unwant,              stop_starting,       stop_running,        stop_flushing,       unwant,
        unwant,              rest,                unwant,              unwant,              unwant,
        stop_unidentified,
    ),
    events.Closed: (
        close,               close_starting,      close_running,       close_flushing,      close,
        close,               close_waiting,       close,               close,               close,
        close_unidentified,
    ),
    events.Hurried: (
        _,                   _,                   _,                   hurry_flushing,      kill,
        kill,                _,                   _,                   _,                   _,
        hurry_unidentified,
    ),
    events.FlushRequested: (
        _,                   _,                   flush,               _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    # the way up
    events.SpawnDelayed: (
        _,                   delayed,             _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.SpawnSucceeded: (
        _,                   spawned,             _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.SpawnFailed: (
        _,                   spawn_failed,        _,                   _,                   spawn_failed,
        spawn_failed,        _,                   _,                   _,                   _,
        _,
    ),
    events.ReadySaid: (
        _,                   ready,               _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.CheckpointSelected: (
        _,                   selected,            _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.SelectionFailed: (
        _,                   selection_failed,    _,                   _,                   _,
        _,                   selection_failed_late,    _,                   _,                   _,
        _,
    ),
    events.TrainingRestored: (
        _,                   restored,            restored,            restored,            _,
        _,                   _,                   _,                   _,                   _,
        restored,
    ),
    # training
    events.StepsDone: (
        _,                   first_step,          step_done,           note_step,           note_step,
        note_step,           _,                   _,                   _,                   _,
        stirred,
    ),
    events.CheckpointCommitted: (
        _,                   committed,           committed_in_training, committed_in_flush,    committed,
        committed,           committed,           committed,           committed,           committed,
        committed_unseen,
    ),
    events.SaveFailed: (
        _,                   _,                   save_failed_in_training, save_failed_in_flush,    _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.DoneSaid: (
        _,                   done_said,           done_said,           done_said,           done_said,
        done_said,           _,                   _,                   _,                   _,
        done_said,
    ),
    events.FailureSaid: (
        _,                   failure_said,        failure_said,        failure_said,        failure_said,
        failure_said,        _,                   _,                   _,                   _,
        failure_said,
    ),
    events.StacksKept: (
        _,                   stacks_kept,         stacks_kept,         stacks_kept,         stacks_kept,
        stacks_kept,         _,                   _,                   _,                   _,
        stacks_kept,
    ),
    # what is seen of it from outside
    events.WorkerUnfit: (
        _,                   unfit_starting,      unfit_running,       unfit_flushing,      _,
        _,                   _,                   _,                   _,                   _,
        unfit_unidentified,
    ),
    # the host's fate
    events.NoticeReceived: (
        note,                noticed_starting,    received_running,    noticed_flushing,    note,
        note,                noticed_waiting,     note,                note,                note,
        note,
    ),
    events.NoticeChanged: (
        note,                noticed_starting,    changed_running,     noticed_flushing,    note,
        note,                noticed_waiting,     note,                note,                note,
        note,
    ),
    events.NoticeEnded: (
        ended,               ended_starting,      ended_running,       ended_flushing,      ended,
        ended,               ended_waiting,       ended,               ended,               ended,
        ended,
    ),
    events.SavesMeasured: (
        measured,            measured,            measured_running,    measured_flushing,   measured,
        measured,            measured,            measured,            measured,            measured,
        measured,
    ),
    # the end
    events.WorkerExited: (
        _,                   exited,              exited,              exited,              exited,
        exited,              _,                   _,                   _,                   _,
        exited,
    ),
    # an attempt that an earlier daemon began
    events.AttemptFound: (
        found,               _,                   _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    events.WorkerIdentified: (
        _,                   _,                   _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        identified,
    ),
    events.AttemptLost: (
        lost,                _,                   _,                   _,                   _,
        _,                   _,                   _,                   _,                   _,
        _,
    ),
    # time
    events.HostStood: (
        _,                   stood_starting,      stood_running,       stood_flushing,      stood_stopping,
        _,                   _,                   _,                   _,                   _,
        stood_adopting,
    ),
    events.DeadlinePassed: (
        _,                   starting_too_long,    running_expired,     flushing_expired,    kill,
        kill,                relaunch,            _,                   _,                   _,
        silent_too_long,
    ),
}
# fmt: on

TABLE: Mapping[tuple[State, type[Event]], Action] = {
    (state, event): action for event, row in _ROWS.items() for state, action in zip(COLUMNS, row, strict=True)
}


class Job:
    """One program's machine. Time is a number that comes in; nothing here waits, sleeps or touches anything."""

    __slots__ = ("facts",)

    def __init__(self, policy: Policy) -> None:
        self.facts = ProgramFacts(policy)

    def skip_attempts(self, highest: int) -> None:
        """Attempts up to `highest` are known to have been: the next one gets a higher number, a live one keeps its."""
        if self.facts.state not in ALIVE:
            self.facts.attempt = max(self.facts.attempt, highest)

    def recall(self, memory: Memory, now: float, ago_s: float) -> None:
        """What an earlier daemon knew `ago_s` ago; before any event, and after `skip_attempts`."""
        recall(self.facts, memory, now, ago_s)

    def hold_back(self, is_held: bool) -> None:
        """Whether what it depends on is not ready: meanwhile nothing is launched, whatever ends or passes."""
        self.facts.held_back = is_held

    @property
    def state(self) -> State:
        """Where it stands now."""
        return self.facts.state

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about `event`, which happened at `now` (monotonic seconds). If it raises, nothing has changed."""
        if getattr(event, "attempt", self.facts.attempt) != self.facts.attempt:
            return []
        before = self.facts.snapshot()
        try:
            return TABLE[self.facts.state, type(event)](self.facts, event, now)
        except Exception:
            self.facts = before
            raise

    def recover(self, event: Event, error: str, now: float) -> list[Effect]:
        """What to do instead of `handle(event)`, which failed by an error of our own; the facts are as before it."""
        return error_recovery.recover(self.facts, event, error, now)

    def deadline(self) -> float | None:
        """When `expire` is to be called (monotonic seconds), or None: nothing is waited for."""
        return self.facts.deadline_at

    def expire(self, now: float, due_at: float | None = None) -> list[Effect]:
        """What to do if the deadline has passed at `now`; nothing if it has not.

        `due_at`: when this was to be called; much earlier than `now`, and nothing ran here in between.
        """
        still_s = None if due_at is None else stood_s(due_at, now)
        effects = [] if still_s is None else self.handle(events.HostStood(still_s), now)
        if self.facts.deadline_at is None or now < self.facts.deadline_at:
            return effects
        return effects + self.handle(events.DeadlinePassed(), now)
