"""The state machine of one program: `handle(event, now)` gives effects, `deadline()` says when to call `expire(now)`.

How it works
------------
A program is in exactly one state (`facts.State`). Something happens to it: an operator asks for a stop, the process
exits, the worker reports a step, a notice says that the host goes away. The runner turns each of these into an event
(`events.py`) and hands it to `Job.handle`. The state and the event together select one action from TABLE, a plain
function of `(facts, event, now)`. The action changes the facts, in most cases by `enter(facts, state, deadline_at)`,
and returns effects (`effects.py`): what the runner is to do, in this order. Nothing else changes a program's state.

What is wanted is kept apart from what is. `facts.wanted` is the operator's will, and is stored in the ledger;
`facts.state` is where the process stands. A start request while the program stops only sets `wanted`, and the action
for WorkerExited sees it. So there is no state for each combination of the two.

Time is a number that comes in. The core reads no clock and sets no timer: every state has at most one deadline
(`facts.deadline_at`), always set together with the state. The runner sleeps until `deadline()` and calls `expire(now)`,
which makes the deadline a DeadlinePassed event. Where a state waits for several things at once (RUNNING: a hang, a
look at a silent job, the next flush for a notice), the deadline is the earliest, and the action sees which has come.

The path of an attempt: a start spawns the process and selects a checkpoint at the same time (STARTING). Once the
checkpoint is verified, the worker is told to go; its first step makes it RUNNING. A stop first asks for a checkpoint
(FLUSHING), then sends the stop signal (STOPPING), then SIGKILL (KILLING). Whatever state the process leaves from,
WorkerExited decides what follows: another attempt now, one later (BACKOFF), or none (STOPPED, SUCCEEDED, EXITED,
FAILED). ADOPTING is the state of a worker that an earlier daemon started, until it has said where it stands.

An event that belongs to an attempt carries its number, and one of another attempt than the current one is dropped: a
worker that was killed may still have messages under way. A cell that is not in the table means that the event
changes nothing in that state; a test lists all of these, so that none is left out by oversight.

`handle` is transactional: if an action raises, the facts are as before, and `recover` gives the simplest safe effects.
What has to hold at every event, whatever the cells do, is in `invariants.py` and checked after each action.
"""

from collections.abc import Mapping

from supervisor.core import error_recovery, invariants
from supervisor.core.actions import (
    adopting,
    crash_loops,
    exits,
    failed_starts,
    intents,
    launching,
    lost_attempts,
    memory_copies,
    notices,
    silence,
    stopping,
    storage_waits,
    suspend,
    training,
    transitions,
)
from supervisor.core.actions.notices import while_flushing, while_running
from supervisor.core.actions.transitions import Action
from supervisor.core.program import events
from supervisor.core.program.effects import Effect, ReportBreach
from supervisor.core.program.events import Event
from supervisor.core.program.facts import ALIVE, OVER, Policy, ProgramFacts, State
from supervisor.core.program.persisted_facts import PersistedFacts, restore_facts

STOPPED, STARTING, RUNNING, FLUSHING = State.STOPPED, State.STARTING, State.RUNNING, State.FLUSHING
STOPPING, KILLING, BACKOFF, ADOPTING = State.STOPPING, State.KILLING, State.BACKOFF, State.ADOPTING
SUCCEEDED, EXITED, FAILED = State.SUCCEEDED, State.EXITED, State.FAILED

LAUNCHED = (STARTING, RUNNING, FLUSHING, STOPPING, KILLING)  # by this daemon

# fmt: off
ROWS: tuple[tuple[type[Event], tuple[State, ...], Action], ...] = (
    # event                      in these states                          does
    # --- what people want ---
    (events.StartRequested,      (*OVER, BACKOFF),                        intents.start),
    (events.StartRequested,      (STARTING, RUNNING),                     intents.record_start_request),
    (events.StartRequested,      (FLUSHING, STOPPING, KILLING),           intents.restart_when_stopped),
    (events.StartRequested,      (ADOPTING,),                             adopting.start_adopting),

    (events.StopRequested,       (*OVER, STOPPING, KILLING),              intents.record_stop),
    (events.StopRequested,       (STARTING,),                             stopping.stop_starting),
    (events.StopRequested,       (RUNNING,),                              stopping.stop_running),
    (events.StopRequested,       (FLUSHING,),                             stopping.stop_flushing),
    (events.StopRequested,       (BACKOFF,),                              intents.stop_waiting),
    (events.StopRequested,       (ADOPTING,),                             adopting.stop_adopting),

    (events.ProgramClosed,       (*OVER, STOPPING, KILLING),              intents.close),
    (events.ProgramClosed,       (STARTING,),                             stopping.close_starting),
    (events.ProgramClosed,       (RUNNING,),                              stopping.close_running),
    (events.ProgramClosed,       (FLUSHING,),                             stopping.close_flushing),
    (events.ProgramClosed,       (BACKOFF,),                              intents.close_waiting),
    (events.ProgramClosed,       (ADOPTING,),                             adopting.close_adopting),

    (events.ShutdownHurried,     (FLUSHING,),                             stopping.hurry_flushing),
    (events.ShutdownHurried,     (STOPPING, KILLING),                     transitions.kill),
    (events.ShutdownHurried,     (ADOPTING,),                             adopting.hurry_adopting),

    (events.FlushRequested,      (RUNNING,),                              stopping.flush_running),
    (events.BeginAtRequested,    (*OVER, BACKOFF, FLUSHING, STOPPING, KILLING), storage_waits.begin_at_step),

    # --- from the spawn to the first step ---
    (events.SpawnDelayed,        (STARTING,),                             launching.spawn_delayed),
    (events.SpawnSucceeded,      (STARTING,),                             launching.spawned),
    (events.SpawnFailed,         (STARTING, STOPPING, KILLING),           failed_starts.spawn_failed),
    (events.ReadyReported,       (STARTING,),                             launching.ready_reported),
    (events.CheckpointSelected,  (STARTING,),                             launching.checkpoint_selected),
    (events.SelectionFailed,     (STARTING,),                             failed_starts.selection_failed),
    (events.SelectionFailed,     (BACKOFF,),                              failed_starts.selection_failed_late),
    (events.CheckpointsSetAside, (*OVER, BACKOFF, STARTING, STOPPING, KILLING), storage_waits.checkpoints_set_aside),
    (events.StorageSeen,         (BACKOFF,),                              storage_waits.storage_seen),
    (events.StorageSeen,         (RUNNING,),                              training.storage_seen_in_training),
    (events.WorkerMet,           (*LAUNCHED, ADOPTING),                   launching.worker_met),
    (events.RestoreBegun,        (*LAUNCHED, ADOPTING),                   launching.restore_begun),
    (events.StartPathsSeen,      (BACKOFF,),                              storage_waits.start_paths_seen),
    (events.TrainingRestored,    (*LAUNCHED, ADOPTING),                   launching.training_restored),

    # --- training ---
    (events.StepsDone,           (STARTING,),                             launching.first_step),
    (events.StepsDone,           (RUNNING,),                              training.step_done),
    (events.StepsDone,           (FLUSHING, STOPPING, KILLING),           training.record_step),
    (events.StepsDone,           (ADOPTING,),                             adopting.step_while_adopting),

    (events.CheckpointCommitted, (RUNNING,),                              training.committed_in_training),
    (events.CheckpointCommitted, (FLUSHING,),                             training.committed_in_flush),
    (events.CheckpointCommitted, (ADOPTING,),                             adopting.commit_while_adopting),
    (events.CheckpointCommitted, (STARTING, STOPPING, KILLING, BACKOFF, SUCCEEDED, EXITED, FAILED), training.committed),

    (events.CheckpointMirrored,  (*OVER, BACKOFF, *LAUNCHED, ADOPTING),   training.checkpoint_mirrored),
    (events.CopiesHeld,          (*LAUNCHED, ADOPTING),                   memory_copies.copies_held),
    (events.MemorySalvaged,      (*OVER, BACKOFF, *LAUNCHED, ADOPTING),   memory_copies.memory_salvaged),
    (events.CheckpointSaveFailed, (RUNNING,),                             training.save_failed_in_training),
    (events.CheckpointSaveFailed, (FLUSHING,),                            training.save_failed_in_flush),

    (events.DoneReported,        (*LAUNCHED, ADOPTING),                   training.done_reported),
    (events.FailureReported,     (*LAUNCHED, ADOPTING),                   training.failure_reported),
    (events.StacksCollected,     (*LAUNCHED, ADOPTING),                   crash_loops.stacks_collected),
    (events.SpeedChanged,        (RUNNING, FLUSHING),                     training.speed_changed),
    (events.SilenceObserved,     (RUNNING,),                              silence.silence_observed),

    # --- over its memory limit, or unhealthy ---
    (events.RestartRequired,     (STARTING,),                             stopping.restart_starting),
    (events.RestartRequired,     (RUNNING,),                              stopping.restart_running),
    (events.RestartRequired,     (FLUSHING,),                             stopping.restart_flushing),
    (events.RestartRequired,     (ADOPTING,),                             adopting.restart_adopting),

    # --- another rank of the gang is gone ---
    (events.GangBroken,          (STARTING, RUNNING, FLUSHING, STOPPING, ADOPTING), stopping.gang_broken),
    (events.GangBegins,          (STOPPED, BACKOFF),                      intents.begin_with_gang),

    # --- another host goes on with this run ---
    (events.RunTakenOver,        (STARTING, RUNNING, FLUSHING, STOPPING, ADOPTING), stopping.run_taken_over),
    (events.CheckpointOutdated,  (STARTING, RUNNING, FLUSHING, ADOPTING), stopping.checkpoint_outdated),

    # --- the host goes away, or stays ---
    (events.NoticeReceived,      (*OVER, STOPPING, KILLING, ADOPTING),    notices.record_notice),
    (events.NoticeReceived,      (STARTING,),                             notices.notice_starting),
    (events.NoticeReceived,      (RUNNING,),                              notices.notice_running),
    (events.NoticeReceived,      (FLUSHING,),                             notices.notice_flushing),
    (events.NoticeReceived,      (BACKOFF,),                              notices.notice_waiting),

    (events.NoticeChanged,       (*OVER, STOPPING, KILLING, ADOPTING),    notices.record_notice),
    (events.NoticeChanged,       (STARTING,),                             notices.notice_starting),
    (events.NoticeChanged,       (RUNNING,),                              while_running(notices.record_notice)),
    (events.NoticeChanged,       (FLUSHING,),                             notices.notice_flushing),
    (events.NoticeChanged,       (BACKOFF,),                              notices.notice_waiting),

    (events.NoticeEnded,         (*OVER, STOPPING, KILLING, ADOPTING),    notices.notice_ended),
    (events.NoticeEnded,         (STARTING,),                             notices.notice_ended_starting),
    (events.NoticeEnded,         (RUNNING,),                              while_running(notices.notice_ended)),
    (events.NoticeEnded,         (FLUSHING,),                             while_flushing(notices.notice_ended)),
    (events.NoticeEnded,         (BACKOFF,),                              notices.notice_ended_waiting),

    (events.SavesMeasured,       (RUNNING,),                              while_running(notices.saves_measured)),
    (events.SavesMeasured,       (FLUSHING,),                             while_flushing(notices.saves_measured)),
    (events.SavesMeasured,       (*OVER, BACKOFF, STARTING, STOPPING, KILLING, ADOPTING), notices.saves_measured),

    (events.UploadsChanged,      (RUNNING,),                              while_running(notices.uploads_changed)),
    (events.UploadsChanged,      (FLUSHING,),                             while_flushing(notices.uploads_changed)),
    (events.UploadsChanged,      (*OVER, BACKOFF, STARTING, STOPPING, KILLING, ADOPTING), notices.uploads_changed),

    # --- the process is gone ---
    (events.WorkerExited,        (*LAUNCHED, ADOPTING),                   exits.worker_exited),

    # --- an attempt that an earlier daemon started ---
    (events.AttemptFound,        (STOPPED,),                              adopting.attempt_found),
    (events.WorkerIdentified,    (ADOPTING,),                             adopting.worker_identified),
    (events.AttemptLost,         (STOPPED,),                              lost_attempts.attempt_lost),

    # --- time ---
    (events.HostSuspended,       (STARTING,),                             suspend.host_suspended_starting),
    (events.HostSuspended,       (RUNNING,),                              suspend.host_suspended_running),
    (events.HostSuspended,       (FLUSHING,),                             suspend.host_suspended_flushing),
    (events.HostSuspended,       (STOPPING,),                             suspend.host_suspended_stopping),
    (events.HostSuspended,       (ADOPTING,),                             suspend.host_suspended_adopting),

    (events.DeadlinePassed,      (STARTING,),                             failed_starts.starting_too_long),
    (events.DeadlinePassed,      (RUNNING,),                              notices.running_expired),
    (events.DeadlinePassed,      (FLUSHING,),                             notices.flushing_expired),
    (events.DeadlinePassed,      (STOPPING, KILLING),                     transitions.kill),
    (events.DeadlinePassed,      (BACKOFF,),                              intents.backoff_over),
    (events.DeadlinePassed,      (ADOPTING,),                             adopting.identity_timeout),
)
# fmt: on

TABLE: Mapping[tuple[State, type[Event]], Action] = {
    (state, event): action for event, states, action in ROWS for state in states
}
"""The action for a state and an event. What is not in it changes nothing."""


class Job:
    """The state machine of one program."""

    __slots__ = ("facts",)

    def __init__(self, policy: Policy) -> None:
        self.facts = ProgramFacts(policy)

    def skip_attempts(self, highest: int) -> None:
        """Reserves attempt numbers up to `highest`: the next attempt gets a higher one, a live one keeps its own."""
        if self.facts.state not in ALIVE:
            self.facts.attempt = max(self.facts.attempt, highest)

    def skip_saved_attempts(self, highest: int, highest_here: int) -> bool:
        """As `skip_attempts`, for the highest attempt that has saved, as checkpoints and the account say.
        `highest_here`: less what was fetched from a mirror.

        Returns whether a decision about the next start is forgotten because attempts came after it that the ledger does
        not know, as when it is an older copy: carried out now, it would give up what they have trained.
        """
        facts = self.facts
        is_late = facts.state not in ALIVE and highest_here > facts.attempt
        is_decided = facts.begin_at is not None or facts.restore_below_step is not None
        if is_late:
            facts.begin_at = facts.begin_since = facts.set_aside = facts.restore_below_step = None
        self.skip_attempts(highest)
        return is_late and is_decided

    def recall_persisted(self, stored: PersistedFacts, now: float, ago_s: float) -> None:
        """Restores what an earlier daemon stored `ago_s` ago; call it after `skip_attempts` and before any event."""
        restore_facts(self.facts, stored, now, ago_s)

    def recall_completion(self) -> None:
        """Restores that training was complete before this daemon; call it before any event."""
        if self.facts.state is State.STOPPED and not self.facts.wanted:
            self.facts.state = State.SUCCEEDED

    def hold_back(self, is_held: bool) -> None:
        """Records whether a dependency is not ready; meanwhile nothing is launched."""
        self.facts.held_back = is_held

    @property
    def state(self) -> State:
        """The current state."""
        return self.facts.state

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about `event`, which happened at `now` (monotonic seconds). If it raises, nothing has changed."""
        if getattr(event, "attempt", self.facts.attempt) != self.facts.attempt:
            return []
        action = TABLE.get((self.facts.state, type(event)))
        if action is None:
            return []
        before = self.facts.snapshot()
        try:
            effects = action(self.facts, event, now)
        except Exception:
            self.facts = before
            raise
        if names := invariants.broken(before, event, effects, self.facts):
            effects = [*effects, *self._breaches(names, event, before)]
        return effects

    def _breaches(self, names: list[str], event: Event, before: ProgramFacts) -> list[Effect]:
        return [ReportBreach(name, repr(event), repr(before), repr(self.facts)) for name in names]

    def recover(self, event: Event, error: str, now: float) -> list[Effect]:
        """What to do instead of `handle(event)`, which raised; the facts are as before it."""
        before = self.facts.snapshot()
        effects = error_recovery.recover(self.facts, event, error, now)
        return [*effects, *self._breaches(invariants.broken(before, event, effects, self.facts), event, before)]

    def deadline(self) -> float | None:
        """When `expire` is to be called (monotonic seconds); None if nothing is waited for."""
        return self.facts.deadline_at

    def expire(self, now: float, due_at: float | None = None) -> list[Effect]:
        """What to do if the deadline has passed at `now`; nothing if it has not.

        `due_at`: when this was to be called. If that is much earlier than `now`, nothing ran here in between.
        """
        suspended_s = None if due_at is None else suspend.suspended_for_s(due_at, now)
        effects = [] if suspended_s is None else self.handle(events.HostSuspended(suspended_s), now)
        if self.facts.deadline_at is None or now < self.facts.deadline_at:
            return effects
        return effects + self.handle(events.DeadlinePassed(), now)
