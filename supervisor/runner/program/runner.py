"""One program, from its configuration to its processes: what happens to it goes in, what is known of it can be seen.

All of it happens in the event loop's thread and nothing here waits: slow work (verifying checkpoints, the ledger,
log files) is done elsewhere and comes back as an event.
"""

import asyncio
from collections.abc import Callable

import structlog

from supervisor.config import ProgramConfig
from supervisor.core.failures.restart import Cause, allowed_retries
from supervisor.core.job import Job
from supervisor.core.listeners.wire_states import WireState, wire_state
from supervisor.core.program import account, effects, events
from supervisor.core.program.facts import ALIVE, PendingFlush, ProgramFacts, State
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.core.standby.facts import StandbyKind
from supervisor.host.ledger.attempts import LastEnd
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.processes import credentials
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.background import BackgroundTasks
from supervisor.runner.attempt.launching import policy_of, standby_kind_of
from supervisor.runner.attempt.program_services import ProgramServices
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.listeners.hub import ListenerStatus
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror
from supervisor.runner.program.changes import ChangeWaiters
from supervisor.runner.program.current_attempt import CurrentAttempt
from supervisor.runner.program.executor import EffectExecutor
from supervisor.runner.program.hooks import HookNotifier
from supervisor.runner.program.mailbox import Decide, Mailbox
from supervisor.runner.program.persisted_state import PersistedStateStore
from supervisor.runner.program.publishing import EventPublisher
from supervisor.runner.program.requests import WorkerRequests
from supervisor.runner.program.takeover_progress import TakeoverProgress
from supervisor.runner.records.observers import ObserverList
from supervisor.runner.records.program import ProgramRecords
from supervisor.runner.records.timeline import SHOWN_WITH_ERROR, describe_event


class Runner:
    """One program, from its configuration to its processes."""

    def __init__(self, config: ProgramConfig, services: Services, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called after every change of state."""
        log = structlog.get_logger().bind(program=config.name)
        self.config = config
        self._services = services
        self._changes = ChangeWaiters()
        self.wait_until = self._changes.wait_until
        """Waits until what it is given gives something; that is called after every change."""
        self.takeover = TakeoverProgress(self._changes)
        """How far it is taken over from an earlier daemon; nothing starts before."""
        self.waits_for: str | None = None
        """What has to be ready before it is started, in words, while it is held back."""
        self.not_applied: str | None = None
        """Why the last update did not apply its section, which has changed."""
        self.is_hurried = False
        """Whether somebody asked a second time to stop."""
        self._on_change = on_change
        self._log = log
        tasks = BackgroundTasks(log)
        self._job = Job(policy_of(config, services.notice_grace, services.generation is not None))
        self._mailbox = Mailbox(self._job, self._handle, self._settle, tasks)
        self.post = self._mailbox.post
        """Takes what happens to it. Events are handled in the order they came in, each to its end."""

        self.records = ProgramRecords(config, services.ledger, services.save_durations, log)
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
        self._observers = ObserverList(
            self._log_internal_error,
            [
                *([self.standby] if self.standby is not None else []),
                *self.records.observers(),
                self.requests,
                *([self.mirror] if self.mirror is not None else []),
                self._publisher,
                self._persisted_state,
                HookNotifier(config, self._job, services.hook_commands, services.hooks),
            ],
        )
        program = ProgramServices(config, services, self.records, self._observers, self.post, tasks, log)
        self.memory: MemoryHolder | None = None
        """What the job's workers keep in memory; None for a program that is no job."""
        selector = None
        if config.job is not None:
            self.memory = MemoryHolder(program, config.job, self._changes.wake)
            selector = CheckpointSelector(program, config.job, self.memory, self.mirror, self.node_mirror)
        self.current = CurrentAttempt(program, self._mailbox, self.requests, self.standby, self.memory)
        """The live side of the present attempt."""
        self._executor = EffectExecutor(program, self.current, selector, self.mirror, self.memory)

    # --- what others may see and ask ---------------------------------------------------------------------------------

    @property
    def place(self) -> Allocation | None:
        """This node's, in the gang that trains it; None if it is not a rank of one."""
        return self._services.place

    @property
    def left_nodes(self) -> tuple[str, ...]:
        """On the chief's node: those that have left the gang because their hosts go away."""
        return self._services.gang.left if self._services.gang is not None else ()

    @property
    def spare_of(self) -> tuple[str, ...] | None:
        """The nodes that train the job while this one is a spare node; None if it has a rank, or no gang."""
        return self._services.gang.spare_of if self._services.gang is not None else None

    @property
    def name(self) -> str:
        """The program's name."""
        return self.config.name

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._job.state

    @property
    def wanted(self) -> bool:
        """Whether it is to run."""
        return self._job.facts.wanted

    @property
    def facts(self) -> ProgramFacts:
        """All that is known of it; for reading only."""
        return self._job.facts

    @property
    def reason(self) -> str | None:
        """Why it waits, ended or failed."""
        return self._job.facts.reason

    @property
    def attempt(self) -> int:
        """Number of the present or last attempt; 0 before the first."""
        return self._job.facts.attempt

    @property
    def flush(self) -> PendingFlush | None:
        """The flush that is being waited for."""
        return self._job.facts.current.flush if self.state is State.FLUSHING else None

    @property
    def is_stopping(self) -> bool:
        """Whether its process is on its way out, though it may flush first, or has not said yet where it stands."""
        facts = self._job.facts
        stops = self.flush is not None and self.flush.then is messages.Then.STOP
        is_to = facts.closing or not facts.wanted or facts.current.decided_end is not None
        waits = self.state is State.ADOPTING and is_to  # for the answer
        return stops or waits or self.state in (State.STOPPING, State.KILLING)

    @property
    def is_due(self) -> bool:
        """Whether it starts by itself, once what an earlier daemon left of it is gone."""
        facts = self._job.facts
        is_down = self.state is State.STOPPED and not facts.closing
        return is_down and facts.wanted and not self.takeover.is_startable

    @property
    def wire_state(self) -> WireState:
        """Where it stands in Supervisor's words."""
        return wire_state(self.state, is_stopping=self.is_stopping, is_held_back=self.waits_for is not None)

    @property
    def pid(self) -> int | None:
        """The pid of its process, until its exit is handled."""
        return self.records.process.pid

    @property
    def standby_pids(self) -> frozenset[int]:
        """Pids of the standby, and of discarded standbys that have not exited yet."""
        return frozenset() if self.standby is None else self.standby.pids

    @property
    def listener_status(self) -> ListenerStatus | None:
        """How it does as an event listener; None if it is none."""
        return self._publisher.listener_status

    @property
    def stop_limit_s(self) -> float:
        """How long its worker may take to flush and leave."""
        policy = self._job.facts.policy
        return policy.stopwaitsecs + (policy.flush_timeout if policy.is_job else 0.0)

    def restarts_left(self, cause: Cause) -> int:
        """How many more failures of this cause, without progress between them, are followed by another attempt."""
        facts = self._job.facts
        return max(0, allowed_retries(cause, facts.policy.startretries) - facts.failures.by_cause.get(cause, 0))

    @property
    def progress(self) -> SavedProgress | None:
        """How far the present attempt, or the last one, has come, and what of that is saved; None: no job."""
        return account.saved_progress(self._job.facts)

    def progress_of(self, attempt: int) -> SavedProgress | None:
        """How far an attempt that has ended had come; None for a plain program, or if it is long past."""
        ended = self._job.facts.ended
        if ended is not None and ended.attempt == attempt:
            return ended
        return self.progress if self.attempt == attempt else None

    @property
    def divergence(self) -> SeenDivergence | None:
        """What this rank of a gang has seen, and the next start has to begin before; None once one has restored."""
        return self._job.facts.divergence

    async def recall_divergence(self) -> SeenDivergence | None:
        """The same as an earlier daemon knew it, before the program is taken up."""
        return await self._persisted_state.recall_divergence()

    async def until_gone(self) -> None:
        """Returns when no process of it is left."""
        await self.wait_until(lambda: None if self.state in ALIVE else True)

    async def restore_state(self, last_attempt: int) -> None:
        """Before a start: what was learned of it, and which numbers are taken; `last_attempt` is the ledger's last."""
        if self.mirror is not None and (self.takeover.was_done or self.mirror.is_awaited):
            self.mirror.resume()
        if await self._persisted_state.restore(last_attempt):
            self.takeover.is_resuming = True
        if self.config.user is not None:
            await credentials.look_up(self.config.user)

    def set_wanted(self, wanted: bool) -> None:
        """What an earlier daemon, or the configuration, wants of it; a stop before the start withdraws it."""
        self._job.facts.wanted = wanted

    def recall_completion(self, end: LastEnd) -> None:
        """Before any event: its last attempt had ended as it should, as the ledger says."""
        self.takeover.was_done = True
        self._job.recall_completion()
        self.records.recall_end(end)

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
