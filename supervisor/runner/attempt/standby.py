"""The standby of one job: keeps its process until that becomes an attempt; `core/standby/machine.py` decides."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.failures.restart import describe_exit
from supervisor.core.program.effects import Effect
from supervisor.core.program.events import Event
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.core.standby.events import (
    AttemptStarting,
    DropStandby,
    JobChanged,
    MemoryMeasured,
    PrepareStandby,
    PromoteStandby,
    StandbyEffect,
    StandbyEvent,
    StandbyExited,
    StandbyLoaded,
    StandbyUseless,
    StartExpected,
)
from supervisor.core.standby.facts import HOT_BYTES, WARM_BYTES, MemoryHeadroom, StandbyKind, StandbyStage, need_of
from supervisor.core.standby.machine import Standby
from supervisor.host.processes import priority
from supervisor.host.processes.process import Process
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.exits import PERMANENT_EXITS
from supervisor.runner.attempt.launching import preload_command, standby_kind_of
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby_process import (
    StandbyProcess,
    resident_bytes,
    restore_priority,
    start_standby,
)
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords

_NO_WORKER = "the interpreter of its command finds no stepkeeper that can preload"  # or else it says why itself
IDLE_LOAD_S = 60.0  # it loads in what is left over; a minute is several times what that takes where there is idle time


class StandbyHolder(ProgramObserver):
    """Keeps one job's standby. `records`: of the worker beside it. `on_gone`: called when a process of it is gone."""

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        records: ProgramRecords,
        on_gone: Callable[[], None],
        log: FilteringBoundLogger,
    ) -> None:
        limit_s = config.job.startup_timeout if config.job is not None else 0.0
        self._config = config
        self._services = services
        self._records = records
        self._on_gone = on_gone
        kind = standby_kind_of(config)
        impossible = None
        if kind is StandbyKind.AUTO:
            command = preload_command(config, is_gang=services.generation is not None)
            impossible = command if isinstance(command, str) else None
            self._command = None if isinstance(command, str) else command
        else:
            self._command = config.command
        self._machine = Standby(kind, limit_s, impossible)
        self._process: StandbyProcess | None = None
        self._facts: ProgramFacts | None = None  # of the job, as far as it was heard of
        self._measured_bytes = WARM_BYTES
        self._timer: asyncio.TimerHandle | None = None
        self._measure_at: float | None = None
        self._discarded: list[StandbyProcess] = []
        self._sweeps: list[asyncio.Task[object]] = []
        self._loop = asyncio.get_running_loop()
        self._log = log

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return self._process.process.pid if self._process is not None else None

    @property
    def pids(self) -> frozenset[int]:
        """Its process, and those that could not become an attempt and are not gone yet."""
        mine = self._discarded if self._process is None else [self._process, *self._discarded]
        return frozenset(spare.process.pid for spare in mine)

    def status(self) -> dict[str, Any]:
        """The standby's status, as `status` has it."""
        now_is, pid = self._machine.status, self.pid
        return {
            "wanted": str(self._machine.wanted),
            "stage": str(now_is.stage),
            "kind": None if now_is.kind is None else str(now_is.kind),
            "pid": pid,
            "memory_bytes": None if pid is None else resident_bytes(pid),
            "reason": now_is.reason,
        }

    def on_decision(self, event: Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts) -> None:
        """A standby that the job no longer needs is killed when this returns."""
        self._facts = facts
        self._look_at_job(facts)

    def _look_at_job(self, facts: ProgramFacts) -> None:
        self._handle_event(JobChanged(need_of(facts, self._loop.time()), facts.closing))

    def expect_start(self) -> None:
        """The other ranks of the gang are being met, so the worker starts soon: it loads what it can already."""
        if self._process is None:
            self._handle_event(StartExpected())

    def promote(self, attempt: int, microbatches: int, unfit: str | None = None) -> StandbyProcess | None:
        """Promotes the standby to this attempt and returns it; None if there is none. The caller owns it then.

        `unfit`: why it can't become this attempt, as far as the caller knows.
        """
        spare = self._process
        unfit = unfit or self._why_no_rank()
        unfit = unfit or (None if spare is None else spare.why_unusable(self._config))
        effects = self._decide(AttemptStarting(unfit, microbatches))
        if spare is None or not any(isinstance(effect, PromoteStandby) for effect in effects):
            self._execute(effects)
            return None
        self._process = None
        self._release_loading_slot()
        try:
            between_failures_s = self._records.reliability.between_failures_s
            spare.promote(self._config, self._services, attempt, microbatches, between_failures_s)
        except Exception as error:  # noqa: BLE001 - whatever it was, the process would be nobody's
            self._log.warning("standby.not_promoted", error=str(error))
            self.discard(spare)
            return None
        return spare

    def _why_no_rank(self) -> str | None:
        cluster = self._services.gang.cluster if self._services.gang is not None else None
        is_long = cluster is not None and len(cluster) > messages.MAX_CLUSTER
        return "the addresses of all ranks are longer than a message" if is_long else None

    def discard(self, spare: StandbyProcess) -> None:
        """Kills a promoted standby that can't become the attempt; its pid stays in `pids` until it has exited."""
        self._discarded.append(spare)
        spare.process.reassign(partial(self._on_discarded_exit, spare))
        spare.kill()

    def _on_discarded_exit(self, spare: StandbyProcess, exit_: Exit) -> None:
        self._discarded.remove(spare)
        spare.channel.close()
        self._kill_leftovers(spare)
        self._on_gone()

    def detach(self) -> None:
        """Leaves it to the next daemon, which ends it."""
        if self._timer is not None:
            self._timer.cancel()
        self._release_loading_slot()
        if self._process is not None:
            self._process.process.detach()
            self._process.channel.detach()
            self._process = None
        for spare in self._discarded:
            spare.process.detach()

    # --- the machine --------------------------------------------------------------------------------------------------

    def _handle_event(self, event: StandbyEvent) -> None:
        self._execute(self._decide(event))

    def _decide(self, event: StandbyEvent) -> list[StandbyEffect]:
        effects = self._machine.handle(event, self._loop.time())
        look_at = self._machine.deadline()
        if look_at != self._measure_at or (look_at is not None and self._timer is None):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if look_at is None else self._loop.call_at(look_at, self._measure_memory)
            self._measure_at = look_at
        return effects

    def _measure_memory(self) -> None:
        self._timer = None
        if self._facts is not None:
            self._look_at_job(self._facts)  # a notice may be near by now
        available, total = self._services.available_memory()
        turn = self._services.standby_loading.holder in (None, self._config.name)
        live = self._records.process.pid
        worker = (live and resident_bytes(live)) or 0
        is_hot = self._machine.wanted is StandbyKind.HOT
        expected = max(self._measured_bytes, worker or HOT_BYTES) if is_hot else self._measured_bytes
        self._handle_event(MemoryMeasured(MemoryHeadroom(available, total), expected, turn, worker))

    def _execute(self, effects: list[StandbyEffect]) -> None:
        for effect in effects:
            match effect:
                case PrepareStandby():
                    self._prepare(effect)
                case DropStandby():
                    self._drop(effect)

    # --- its process --------------------------------------------------------------------------------------------------

    def _prepare(self, effect: PrepareStandby) -> None:
        self._services.standby_loading.holder = self._config.name
        try:
            spare = self._process = start_standby(
                self._config,
                self._services,
                self._command,
                effect.microbatches,
                self._records.reliability.between_failures_s,
                self._on_message,
                lambda error: self._log.warning("standby.message_refused", error=error),
                self._on_exit,
                effect.is_urgent,
            )
        except (SpawnError, OSError) as error:
            self._log.warning("standby.not_spawned", error=str(error))
            self._release_loading_slot()
            self._handle_event(StandbyExited(f"it could not be started: {error}"))
            return
        self._loop.call_later(IDLE_LOAD_S, self._hurry, spare.process)
        self._log.info("standby.spawned", pid=spare.process.pid, kind=str(effect.kind))

    def _hurry(self, process: Process) -> None:
        """Gives it some time if it still loads."""
        is_ours = self._process is not None and self._process.process is process
        if is_ours and not process.has_ended and self._machine.status.stage is StandbyStage.LOADING:
            priority.raise_priority(process.pid)

    def _drop(self, effect: DropStandby) -> None:
        self._release_loading_slot()
        if self._process is not None:
            self._log.info("standby.dropped", pid=self._process.process.pid, why=effect.reason)
            self._process.kill()

    # --- what comes back ----------------------------------------------------------------------------------------------

    def _on_message(self, message: messages.FromWorker) -> None:
        match message:
            case messages.Ready(problem=str(problem)):
                self._log.info("standby.useless", why=problem)
                self._handle_event(StandbyUseless(f"{problem:.500}"))
            case messages.Ready() if self._process is not None and message.kind in tuple(StandbyKind):
                restore_priority(self._process.process)  # it waits, and has to be quick when it is needed
                self._measured_bytes = self._process.memory_bytes or self._measured_bytes
                self._release_loading_slot()
                self._log.info(
                    "standby.ready",
                    pid=self._process.process.pid,
                    kind=message.kind,
                    load_s=round(message.load_s, 3),
                    memory_bytes=self._measured_bytes,
                )
                self._handle_event(StandbyLoaded(StandbyKind(message.kind)))
            case messages.Failed():
                if self._process is not None:
                    self._process.error = message.error
                self._log.warning("standby.failed", error=message.error, traceback=message.traceback)

    def _on_exit(self, token: str, exit_: Exit) -> None:
        spare, self._process = self._process, None
        if spare is None:
            raise RuntimeError(f"{self._config.name}: standby {token} ended, and there is none")
        spare.channel.close()
        self._release_loading_slot()
        how = describe_exit(exit_.code, exit_.signal)
        permanent = exit_.code in PERMANENT_EXITS
        text = f"{spare.error} ({how})" if spare.error else how
        if permanent:
            text = spare.error or _NO_WORKER
        self._log.info("standby.exited", pid=spare.process.pid, how=how)
        self._kill_leftovers(spare)
        self._handle_event(StandbyExited(text, permanent))
        self._on_gone()

    def _release_loading_slot(self) -> None:
        """Lets other programs load their standbys."""
        if self._services.standby_loading.holder == self._config.name:
            self._services.standby_loading.holder = None

    def _kill_leftovers(self, spare: StandbyProcess) -> None:
        task = self._loop.create_task(asyncio.to_thread(spare.kill_leftovers))
        self._sweeps.append(task)
        task.add_done_callback(self._sweeps.remove)
