"""One program, from its configuration to its processes: what happens to it goes in, what is known of it can be seen.

All of it happens in the event loop's thread and nothing here waits: slow work (verifying checkpoints, the ledger,
log files) is done elsewhere and comes back as an event.
"""

import asyncio
from collections.abc import Callable

import structlog

from supervisor.config import ProgramConfig
from supervisor.core.program import effects, events
from supervisor.core.program.facts import ALIVE, State
from supervisor.core.standby.facts import StandbyKind
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.ledger.attempts import LastEnd
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.processes import credentials
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.launching import standby_kind_of
from supervisor.runner.attempt.services import ProgramServices, Services
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.attempt.starting import find_restart_obstacle
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.listeners.hub import ListenerStatus
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror
from supervisor.runner.program.attempt_starter import AttemptStarter
from supervisor.runner.program.current_attempt import CurrentAttempt
from supervisor.runner.program.executor import EffectExecutor
from supervisor.runner.program.hooks import HookNotifier
from supervisor.runner.program.mailbox import Decide, Mailbox
from supervisor.runner.program.persisted_state import PersistedStateStore
from supervisor.runner.program.publishing import EventPublisher
from supervisor.runner.program.requests import WorkerRequests
from supervisor.runner.program.view import ProgramView
from supervisor.runner.records.observers import ObserverList, ProgramObserver
from supervisor.runner.records.timeline import SHOWN_WITH_ERROR, describe_event


class Runner(ProgramView):
    """One program, from its configuration to its processes."""

    def __init__(self, config: ProgramConfig, services: Services, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called after every change of state."""
        log = structlog.get_logger().bind(program=config.name)
        super().__init__(config, services, log)
        self._on_change = on_change
        tasks = BackgroundTasks(log)
        share, together = services.loop_share, services.ledger.together
        self._mailbox = Mailbox(self._job, self._handle, self._settle, tasks, share, together)
        self.post = self._mailbox.post
        """Takes what happens to it. Events are handled in the order they came in, each to its end."""
        self.requests = WorkerRequests()
        self.standby: StandbyHolder | None = None
        """Keeps the process that waits to become the next attempt; None for a program that never has one."""
        if standby_kind_of(config) is not StandbyKind.OFF:
            self.standby = StandbyHolder(config, services, self.records, self._changes.wake, log)
        self.mirror: JobMirror | None = None
        """The job's copy in an object store; None for a program without one."""
        self.node_mirror: NodeMirror | None = None
        """The same on the other nodes of a gang, if each has a folder of its own."""
        if config.job is not None and config.job.mirror is not None:
            if services.is_chief:
                self.mirror = JobMirror(config, services, self.post, self._on_mirror_change, log, self._answer_worker)
            elif services.gang is not None and not config.job.checkpoint_dir_shared:
                self.node_mirror = NodeMirror(config, services.environment, services.gang, self.post)
        self._publisher = EventPublisher(config, services.listeners, lambda: self.wire_state, self.records)
        self._persisted_state = PersistedStateStore(
            config, services, self._job, self.records, self.mirror, lambda: self.takeover.is_adoption_settled
        )
        observers: list[ProgramObserver | None] = [
            self.standby,
            *self.records.observers(),
            self.requests,
            self.mirror,
            self._publisher,
            self._persisted_state,
            HookNotifier(config, self._job, services.hook_commands, services.hooks),
        ]
        self._observers = ObserverList(self._log_internal_error, [*filter(None, observers)])
        program = ProgramServices(config, services, self.records, self._observers, self.post, tasks, log)
        self.memory: MemoryHolder | None = None
        """What the job's workers keep in memory; None for a program that is no job."""
        selector = None
        if config.job is not None:
            self.memory = MemoryHolder(program, config.job, self._changes.wake)
            selector = CheckpointSelector(program, config.job, self.memory, self.mirror, self.node_mirror)
        self.current = CurrentAttempt(program, self._mailbox, self.requests, self.memory)
        """The live side of the present attempt."""
        self.starter = AttemptStarter(program, self.current, self.standby)
        """Begins attempts."""
        self._executor = EffectExecutor(program, self.current, self.starter, selector, self.mirror, self.memory)

    @property
    def standby_pids(self) -> frozenset[int]:
        """Pids of the standby, and of discarded standbys that have not exited yet."""
        return frozenset() if self.standby is None else self.standby.pids

    @property
    def listener_status(self) -> ListenerStatus | None:
        """How it does as an event listener; None if it is none."""
        return self._publisher.listener_status

    async def recall_divergence(self) -> SeenDivergence | None:
        """The same as an earlier daemon knew it, before the program is taken up."""
        return await self._persisted_state.recall_divergence()

    async def restore_state(self, last_attempt: int, seen: int = 0) -> None:
        """Before a start: what was learned of it, and which numbers are taken: `last_attempt` is the ledger's last,
        `seen` the highest of which anything else is left."""
        if self.mirror is not None and (self.takeover.was_done or self.mirror.is_awaited):
            self.mirror.resume()
        if await self._persisted_state.restore(last_attempt, seen):
            self.takeover.is_resuming = True
        if self.config.user is not None:
            await credentials.look_up(self.config.user)

    async def find_restart_obstacle(self) -> str | None:
        """Why it could not be started again if it were stopped now; None if nothing is seen, or nothing of it runs."""
        if self.state not in ALIVE or self.is_stopping:
            return None
        return await find_restart_obstacle(self.config, self._services)

    def set_wanted(self, wanted: bool) -> None:
        """What an earlier daemon, or the configuration, wants of it; a stop before the start withdraws it."""
        self._job.facts.wanted = wanted

    def recall_completion(self, end: LastEnd) -> None:
        """Before any event: its last attempt had ended as it should, as the ledger says."""
        self.takeover.was_done = True
        self._job.recall_completion()
        self.records.recall_end(end)
        self.records.training.step = end.to_step

    def release_exit(self) -> None:
        """Decides about the end of its process, if that waits for what is found of it."""
        self._mailbox.release_exit()

    def hand_over(self) -> None:
        """Supervises no more: the worker trains on, and the next daemon takes it over."""
        self._mailbox.close()
        self.records.save()
        if self.standby is not None:
            self.standby.detach()
        self.current.detach()
        if self.mirror is not None:
            self.mirror.close()
        if self.node_mirror is not None:
            self.node_mirror.close()

    def hold_back(self, words: str) -> None:
        """It is held back for what `words` say; who watches it looks again."""
        self.waits_for = words
        self._job.hold_back(True)
        self._observers.on_decision(None, self.state, [], self._job.facts)
        self._changes.wake()

    def _answer_worker(self, message: messages.Mirrored) -> None:
        self.current.send(message)

    def _on_mirror_change(self) -> None:
        self._on_change()
        self._changes.wake()

    # --- what the mailbox calls ---------------------------------------------------------------------------------------

    def _handle(self, event: events.Event, decide: Decide) -> None:
        """Has the core decide, and executes its effects; after an internal error, those of `core.error_recovery`."""
        before, now = self.state, asyncio.get_running_loop().time()
        happened: events.Event | str = event
        self._note_event(event)
        try:
            decided = decide(now)
        except Exception as error:  # noqa: BLE001 - a defect in a cell must not end the supervision of all programs
            happened = f"internal error on {describe_event(event)}: {error!r}"
            self._log_internal_error(happened, error)
            decided = self._job.recover(event, f"{happened}; please report it with the daemon's log", now)
        self._observers.on_decision(happened, before, decided, self._job.facts)
        for effect in decided:
            self._observers.on_effect(effect, now)
            try:
                self._executor.execute(effect)
            except Exception as error:  # noqa: BLE001 - an effect that fails must not keep the timer from being set
                self._log_internal_error(describe_event(effect), error)
                if isinstance(effect, effects.Spawn) and self.records.process.pid is None:
                    self.post(events.SpawnFailed(effect.attempt, f"internal error: {error!r}", permanent=False))

    def _note_event(self, event: events.Event) -> None:
        """What is no longer so once the event has happened, whatever follows from it."""
        match event:
            case events.WorkerExited():
                self.records.process.pid = None
            case events.StartRequested() | events.StopRequested() | events.ProgramClosed():
                self.waits_for = None
                self._job.hold_back(False)
                if isinstance(event, events.StartRequested):
                    self.takeover.note_start()
            case events.ShutdownHurried():
                self.is_hurried = True

    def _settle(self, before: State) -> None:
        """Everything that came at once is handled."""
        self._observers.on_settled(before, self._job.facts, asyncio.get_running_loop().time())
        if self.state is not before:
            self._log_state(before)
            self._on_change()
        self._changes.wake()

    def on_output(self, output: ProgramOutput) -> None:
        """The program printed something that event listeners are to get."""
        self._publisher.on_output(output)

    def _log_internal_error(self, on: str, error: BaseException) -> None:
        timeline = [str(entry) for entry in self.records.timeline.last_entries(SHOWN_WITH_ERROR)]
        self._log.error("internal.failed", on=on, timeline=timeline, exc_info=error)

    def _log_state(self, before: State) -> None:
        state, facts = self.state, self._job.facts
        log = self._log.error if state is State.FAILED else self._log.info
        up = {"startsecs": self.config.startsecs} if (before, state) == (State.STARTING, State.RUNNING) else {}
        log("program.changed", state=str(state), was=str(before), attempt=facts.attempt, reason=facts.reason, **up)
