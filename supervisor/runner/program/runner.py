"""The loop of one program: events in, effects out, one timer.

All of it happens in the event loop's thread and nothing here waits: slow work (verifying checkpoints, the ledger,
log files) is done elsewhere and comes back as an event.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from supervisor.config import ProgramConfig
from supervisor.core.failures.restart import Cause, allowed_retries
from supervisor.core.job import Job
from supervisor.core.listeners.wire_states import WireState, wire_state
from supervisor.core.program import account, effects, events
from supervisor.core.program.facts import (
    ALIVE,
    PendingFlush,
    ProgramFacts,
    State,
)
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.host.ledger.ledger import LastEnd
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.processes import credentials, marks
from supervisor.host.resources.oom_kills import oom_evidence
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.adopting import LeftoverWorker, reconstruct_end
from supervisor.runner.attempt.launching import config_digest, policy_of
from supervisor.runner.attempt.services import Services
from supervisor.runner.listeners.hub import ListenerStatus
from supervisor.runner.program.executor import EffectExecutor
from supervisor.runner.program.hooks import HookNotifier
from supervisor.runner.program.mirror import JobMirror
from supervisor.runner.program.persisted_state import PersistedStateStore
from supervisor.runner.program.publishing import EventPublisher
from supervisor.runner.records.observers import ObserverList
from supervisor.runner.records.timeline import SHOWN_WITH_ERROR, Timeline, describe_event

Found = TypeVar("Found")

LATE_S = 0.1  # of a timer: after that, the event loop may not have looked at its descriptors (selectors, PEP 475)


class Runner:
    """One program, from its configuration to its processes."""

    def __init__(self, config: ProgramConfig, services: Services) -> None:
        self.config = config
        self.startable = asyncio.Event()
        """Set once nothing of an earlier daemon stands in the way of a start."""
        self.adoption_settled = asyncio.Event()
        """Set once a worker of an earlier daemon, if there is one, is taken over."""
        self.timeline = Timeline()
        self.waits_for: str | None = None
        """What has to be ready before it is started, in words, while it is held back."""
        self.not_applied: str | None = None
        """Why the last update did not apply its section, which has changed."""
        self.is_resuming = False
        """Whether the first start goes on where an earlier daemon stopped; after an operator's it is one anew."""
        self.was_done = False
        """Whether it had ended as it should before this daemon came."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change of state."""
        self._handed_over = False
        self._is_hurried = False  # somebody asked a second time to stop
        self._log = structlog.get_logger().bind(program=config.name)
        self._job = Job(policy_of(config, services.notice_grace, services.generation is not None))
        self._services = services
        self._observers = ObserverList(self._log_internal_error)
        self._observers.add([self.timeline])
        self.executor = EffectExecutor(config, services, self.post, self._observers, self._log)
        if self.executor.standby is not None:
            self.executor.standby.on_change = self._wake_waiters
        if self.executor.mirror is not None:
            self.executor.mirror.on_change = self._on_mirror_change
        self._publisher = EventPublisher(config, services.listeners, lambda: self.wire_state, lambda: self.executor.pid)
        self._persisted_state = PersistedStateStore(
            config, services, self._job, self.executor, self.adoption_settled.is_set
        )
        hooks = HookNotifier(config, self._job, services.hook_commands, services.hooks)
        self._observers.add([self._publisher, self._persisted_state, hooks])
        self._mailbox: deque[events.Event] = deque()
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._has_read_late = False
        self._waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()

    # --- what others may see and ask ---------------------------------------------------------------------------------

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
        return is_down and facts.wanted and not self.startable.is_set()

    @property
    def wire_state(self) -> WireState:
        """Where it stands in Supervisor's words."""
        return wire_state(self.state, is_stopping=self.is_stopping, is_held_back=self.waits_for is not None)

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

    def flush_answer(self, flush_id: int) -> messages.Committed | messages.SaveFailed | None:
        """What became of a flush: a commit or a failure, or None while it is still waited for."""
        if flush_id in self.executor.requests.flush_answers:
            return self.executor.requests.flush_answers[flush_id]
        if self.flush is not None and self.flush.id == flush_id:
            return None
        facts = self._job.facts
        limit = f"within {facts.policy.flush_timeout:g} s (flush_timeout)" if facts.notice is None else "in time"
        why = limit if self.state is State.RUNNING else f"and the program is {self.state} now"
        return messages.SaveFailed(self.attempt, 0, f"no checkpoint came {why}", (flush_id,))

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

    async def save_and_train_on(self, reason: str) -> str | None:
        """Before an end that can wait: has a job that trains save, and train on. Returns why steps would be lost.

        None if nothing would be: it has saved, or nothing of it trains.
        """
        if self.config.job is None:
            return None
        await self.adoption_settled.wait()
        await self.wait_until(lambda: None if self.state is State.ADOPTING else True)
        attempt = self.attempt
        if not self._trains_on(attempt) or self._job.facts.current.done_reported:
            return None
        self.post(events.FlushRequested(reason))
        if self.flush is None:
            return None
        flush_id = self.flush.id
        answer: messages.Committed | messages.SaveFailed
        answer = await self.wait_until(lambda: self.flush_answer(flush_id))
        if isinstance(answer, messages.Committed) or not self._trains_on(attempt):
            return None
        came = flush_id in self.executor.requests.flush_answers
        return f"the save failed: {answer.error}" if came else answer.error

    async def until_gone(self) -> None:
        """Returns when no process of it is left."""
        await self.wait_until(lambda: None if self.state in ALIVE else True)

    def _trains_on(self, attempt: int) -> bool:
        is_training = self.state in (State.RUNNING, State.FLUSHING)
        return is_training and self.attempt == attempt and not self.is_stopping

    async def restore_state(self, last_attempt: int) -> None:
        """Before a start: what was learned of it, and which numbers are taken; `last_attempt` is the ledger's last."""
        if self.was_done or (self.executor.mirror is not None and self.executor.mirror.is_awaited):
            self._resume_mirror()
        self.is_resuming = await self._persisted_state.restore(last_attempt) or self.is_resuming
        if self.config.user is not None:
            await credentials.look_up(self.config.user)

    def start(self) -> None:
        """Nothing stands in the way any more."""
        goes_on, self.is_resuming = self.is_resuming, False
        self.post(events.StartRequested(goes_on))

    def set_wanted(self, wanted: bool) -> None:
        """What an earlier daemon, or the configuration, wants of it; a stop before the start withdraws it."""
        self._job.facts.wanted = wanted

    def recall_completion(self, end: LastEnd) -> None:
        """Before any event: its last attempt had ended as it should, as the ledger says."""
        self.was_done = True
        self._job.recall_completion()
        self.executor.recall_end(end)

    def adopt(self, found: LeftoverWorker) -> bool:
        """Goes on with the worker of an earlier daemon; False if it can't be reached, or another attempt came later."""
        if self.config.listener is not None:
            return False  # its pipes went with the daemon that held them
        if found.attempt != self.attempt or not self.executor.adopt(found):
            return False
        self._resume_mirror()
        self.executor.goodput.on_adopted(found.attempt, found.age_s)
        digest = marks.read_configuration_digest(found.pid)
        outdated = digest is not None and digest != config_digest(self.config)
        self.post(events.AttemptFound(found.attempt, found.age_s, outdated, self.executor.was_ready))
        return True

    async def record_lost_attempt(
        self, attempt: int, host_left: bool, turn: Callable[[], Awaitable[None]], is_held: Callable[[], bool]
    ) -> bool:
        """Books an attempt that ended while no daemon was there, and goes on from there when its `turn` has come.

        False if it isn't the last: nothing is booked. What would go on but `is_held` back by what it depends on is then
        STOPPED and wanted, and goes on with its next start.
        """
        services = self._services
        lost, words, lived_s_ago = await reconstruct_end(
            self.config, attempt, host_left, services.runtime_dir, services.checkpoints
        )
        if lost.error is None and not lost.done and not host_left and attempt == self.attempt:
            lost = replace(lost, oom=await asyncio.to_thread(oom_evidence, self.executor.oom_counters))
        for message in words:
            self.executor.training.on_message(message, self._loop.time())
        self._resume_mirror()
        self.executor.goodput.on_worker_lost(self.wanted, lost.committed_step, lived_s_ago)
        if lost.committed_step is not None:
            services.ledger.attempt_progressed(self.name, attempt, lost.committed_step)
        if attempt != self.attempt:
            return False
        self._log.warning("worker.lost", attempt=attempt, done=lost.done, error=lost.error, step=lost.committed_step)
        await turn()
        held_back = self.wanted and is_held()
        self.is_resuming = self.is_resuming or held_back
        self.post(replace(lost, held_back=held_back))
        return True

    def hand_over(self) -> None:
        """Supervises no more: the worker trains on, and the next daemon takes it over."""
        self.executor.post_pending_exit()  # the next daemon could not know its exit status
        self._handed_over = True
        self.executor.goodput.save()
        if self.executor.series is not None:
            self.executor.series.save()
        if self._timer is not None:
            self._timer.cancel()
        self.executor.detach()

    @property
    def place(self) -> Allocation | None:
        """This node's, in the gang that trains it; None if it is not a rank of one."""
        return self._services.place

    def hold_back(self, words: str) -> None:
        """It is held back for what `words` say; who watches it looks again."""
        self.waits_for = words
        self._job.hold_back(True)
        self._observers.on_decision(None, self.state, [], self._job.facts)
        self._wake_waiters()

    async def retire(self, reason: str, host_leaves: bool = False) -> None:
        """Flushes and stops it for good; what is wanted stays wanted. Returns when no process is left.

        With `durable = remote`, its last checkpoint is in the mirror then.
        """
        await self.startable.wait()
        self.post(events.ProgramClosed(reason, host_leaves))
        await self.wait_until(lambda: True if self._is_gone() else None)
        mirror = self.executor.mirror
        if mirror is not None:
            if mirror.is_awaited and not mirror.is_over:
                await self._wait_for_mirror(mirror)
            mirror.finish()

    async def _wait_for_mirror(self, mirror: JobMirror) -> None:
        """Waits until the store has what a flush waits for; not while it fails, nor once somebody is in a hurry."""
        failures = mirror.failures
        mirror.retry_now()
        await self.wait_until(
            lambda: True if not mirror.waits or mirror.failures > failures or self._is_hurried else None
        )
        if mirror.waits:
            self._log.warning("mirror.left_behind", checkpoint=mirror.status.waits, error=mirror.error)

    def _resume_mirror(self) -> None:
        if self.executor.mirror is not None:
            self.executor.mirror.resume()

    def _on_mirror_change(self) -> None:
        self.on_change()
        self._wake_waiters()

    def _is_gone(self) -> bool:
        return self.state not in ALIVE and self.state is not State.BACKOFF and not self.executor.standby_pids

    def post(self, event: events.Event) -> None:
        """Something happened. Events are handled in the order they came in, each to its end."""
        if self._handed_over:
            return
        self.executor.post_pending_exit()  # an exit that waits for its last line came first
        if isinstance(event, events.StartRequested | events.StopRequested | events.ProgramClosed):
            self.waits_for = None
            self._job.hold_back(False)
        if isinstance(event, events.StartRequested):
            self.was_done = False
        self._is_hurried = self._is_hurried or isinstance(event, events.ShutdownHurried)
        self._mailbox.append(event)
        if not self._is_draining:
            self._drain()

    async def wait_until(self, look: Callable[[], Found | None]) -> Found:
        """Waits until `look` gives something; it is called after every change."""
        while (found := look()) is None:
            change = self._loop.create_future()
            self._waiters.append(change)
            try:
                await change
            finally:
                self._waiters.remove(change)
        return found

    # --- events in ----------------------------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now - self._due_at > LATE_S and not self._has_read_late:
            self._has_read_late = True  # the daemon stood still: what the worker reported meanwhile is read first
            self._timer = self._loop.call_at(now, self._on_timer)
            return
        self._has_read_late = False
        if self.executor.post_pending_exit():
            return  # it came before the deadline, and has set the timer anew
        self._drain(expired=True)

    def _drain(self, expired: bool = False) -> None:
        """Handles the deadline if it `expired`, then the mailbox until it is empty; then sets the timer."""
        before = self.state
        self._is_draining = True
        try:
            if expired:
                self._handle_event(events.DeadlinePassed(), partial(self._job.expire, due_at=self._due_at))
            while self._mailbox:
                event = self._mailbox.popleft()
                self._handle_event(event, partial(self._job.handle, event))
        finally:
            self._is_draining = False
            self._arm_timer()
        self._observers.on_settled(before, self._job.facts, self._loop.time())
        if self.state is not before:
            self._log_state(before)
            self.on_change()
        self._wake_waiters()

    def _handle_event(self, event: events.Event, decide: Callable[[float], list[effects.Effect]]) -> None:
        """Has the core decide, and executes its effects; after an internal error, those of `core.error_recovery`."""
        before, now = self.state, self._loop.time()
        happened: events.Event | str = event
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
                self.executor.execute(effect)
            except Exception as error:  # noqa: BLE001 - an effect that fails must not keep the timer from being set
                self._log_internal_error(describe_event(effect), error)
                if isinstance(effect, effects.Spawn) and self.executor.pid is None:
                    self.post(events.SpawnFailed(effect.attempt, f"internal error: {error!r}", permanent=False))

    def on_output(self, output: ProgramOutput) -> None:
        """The program printed something that event listeners are to get."""
        self._publisher.on_output(output)

    def _log_internal_error(self, on: str, error: BaseException) -> None:
        timeline = [str(each) for each in self.timeline.last_entries(SHOWN_WITH_ERROR)]
        self._log.error("internal.failed", on=on, story=timeline, exc_info=error)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _arm_timer(self) -> None:
        """One timer for the state's one deadline. If that moved later, the timer fires early and is set anew."""
        deadline_at = self._job.deadline()
        if self._timer is not None and (deadline_at is None or deadline_at < self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline_at is not None:
            self._timer = self._loop.call_at(deadline_at, self._on_timer)
            self._due_at = max(deadline_at, self._loop.time())

    def _log_state(self, before: State) -> None:
        state, facts = self.state, self._job.facts
        log = self._log.error if state is State.FAILED else self._log.info
        up = {"startsecs": self.config.startsecs} if (before, state) == (State.STARTING, State.RUNNING) else {}
        log("program.changed", state=str(state), was=str(before), attempt=facts.attempt, reason=facts.reason, **up)
