"""Carries out the core's orders for one program, and hears and sees what comes back."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from functools import singledispatchmethod
from typing import Any

from structlog.typing import FilteringBoundLogger

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.failures.cadence import Reliability
from supervisor.core.failures.restart import describe_exit
from supervisor.core.fleet.gpus import SICK_WAIT_S
from supervisor.core.program import effects as order
from supervisor.core.program import events as fact
from supervisor.core.program.standby import Kind
from supervisor.host.health_checks import HealthChecks
from supervisor.host.pipes.notify import NotifyMessage
from supervisor.host.pipes.stdin import Stdin
from supervisor.host.processes.process import Process
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol import layout, messages
from supervisor.runner.attempt.adopting import LeftoverWorker
from supervisor.runner.attempt.attempt import AttemptFactory, LiveAttempt
from supervisor.runner.attempt.launching import command_beside, standby_kind_of
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.program.exports import ExportRequests
from supervisor.runner.program.gpu_gate import GpuGate
from supervisor.runner.program.messages_in import event_of, record_message
from supervisor.runner.program.selecting import quarantine_checkpoints, select_checkpoint
from supervisor.runner.program.stack_dumps import dump_stacks_then_abort
from supervisor.runner.records.counters import ProgramCounters
from supervisor.runner.records.goodput import GoodputRecorder
from supervisor.runner.records.training import TrainingStatus

EXPORT_PATIENCE_S = 1800.0  # tracing and writing a large model take minutes; who asked may leave before
ANSWERS_KEPT = 64  # more than there are people who wait for a checkpoint of one job at the same moment


class EffectExecutor:
    """The hands of one program. `post` takes every event, from the event loop's thread, in the order they happen.

    `log`: the program's own, shared by all that acts for it.
    """

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        post: Callable[[fact.Event], None],
        log: FilteringBoundLogger,
    ) -> None:
        self.training = TrainingStatus()
        self.counters = ProgramCounters()
        self.goodput = GoodputRecorder(config.name, services.ledger)
        self.on_checkpoint_refused: Callable[[str, str], None] = lambda checkpoint, reason: None
        """Called with every checkpoint that is found damaged, and why."""
        self.exports = ExportRequests()
        self.flush_answers: dict[int, messages.Committed | messages.SaveFailed] = {}
        """What became of the last flush requests, by their ids."""
        self.status_text: str | None = None
        """What the worker says that it is at (STATUS= of a notification)."""
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.committed_at = 0.0
        """Monotonic: how long it ran, and how old its checkpoint is, does not depend on what the clock is set to."""
        self.started_wall_at: float | None = None
        self.ended_wall_at: float | None = None
        self.last_exit: Exit | None = None
        self.spawn_error: SpawnError | None = None
        self.reliability = Reliability()
        """What was seen of this program's attempts so far."""
        self.standby: StandbyHolder | None = None
        """The process that waits to become its next attempt; None for a program that never has one."""
        if standby_kind_of(config) is not Kind.OFF:
            self.standby = StandbyHolder(config, services, self._live_pid, self._between_failures_s, log)
        self._config = config
        self._services = services
        self._post = post
        self._attempt: LiveAttempt | None = None
        self.oom_counters: tuple[OomKillCounter, ...] = ()
        """Of kills for lack of memory, as they stood when the worker was last seen to move to another cgroup."""
        self._has_last_message = False  # it said `done` or `failed`
        self._reported_done = False
        self._last_pid: int | None = None  # of the attempt before
        self._gpus = GpuGate(config, services, self.standby)
        self._attempts = AttemptFactory(config, services, self, self._between_failures_s, log)
        self._tasks: list[asyncio.Task[object]] = []
        self._log = log

    @property
    def waits_for_gpus(self) -> bool:
        """Whether its process is not there yet because the GPUs may not be free."""
        return self._gpus.attempt is not None

    @property
    def pid(self) -> int | None:
        """The worker's pid while there is one."""
        return self._attempt.process.pid if self._attempt else None

    @property
    def standby_pids(self) -> frozenset[int]:
        """Of the process that waits, and of those that could not become an attempt and are not gone yet."""
        return self.standby.pids if self.standby is not None else frozenset()

    def _live_pid(self) -> int | None:
        return self.pid

    def _between_failures_s(self) -> float:
        return self.reliability.between_failures_s

    @property
    def run_time_s(self) -> float | None:
        """For how many seconds the worker has run, or ran; None if this daemon never had one."""
        if self.started_at is None:
            return None
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    def send_signal(self, number: int) -> bool:
        """Sends a signal to the worker (not to its group); False if there is none."""
        return self._attempt is not None and self._attempt.process.send_signal(number, group=False)

    async def export(self) -> messages.Exported | None:
        """Has the worker export its model as it is now, and waits for that; None if there is no worker."""
        if self._attempt is None:
            return None
        return await self.exports.request(self._attempt.number, self._send, EXPORT_PATIENCE_S)

    @property
    def stdin(self) -> Stdin | None:
        """The worker's standard input; None where there is no worker, or none that can be written to (a job's)."""
        return self._attempt.io.stdin if self._attempt and self._attempt.io else None

    @property
    def was_ready(self) -> bool:
        """Whether the worker has said that it is ready (notify), also to an earlier daemon."""
        return self._attempt is not None and self._attempt.io is not None and self._attempt.io.was_ready

    def adopt(self, found: LeftoverWorker) -> bool:
        """Supervises a process that an earlier daemon started; False if it is gone, or its pipes are."""
        self._reset_for_attempt()
        self._attempt = self._attempts.adopt(found)
        if self._attempt is None:
            return False
        self.started_wall_at, self.ended_wall_at = time.time() - found.age_s, None
        self.started_at, self.ended_at = self._attempt.began_at, None
        self._log.info("worker.adopted", attempt=found.attempt, pid=found.pid, runs_for_s=round(found.age_s, 1))
        return True

    def detach(self) -> None:
        """Leaves the worker, as it is, to the next daemon."""
        if self.standby is not None:
            self.standby.detach()
        if self._attempt is not None:
            self._attempt.detach()
            self._attempts.close_listener(self._attempt)
            self._attempt = None
        for task in self._tasks:
            task.cancel()

    def _reset_for_attempt(self) -> None:
        self.training.reset_for_attempt()
        self._has_last_message = self._reported_done = False
        self.spawn_error = self.last_exit = self.status_text = None

    # --- effects out --------------------------------------------------------------------------------------------------

    @singledispatchmethod
    def execute(self, effect: order.Effect) -> None:
        """Carries out one order; what follows from it comes back as an event."""
        raise NotImplementedError(f"no act for {effect!r}")

    @execute.register
    def _(self, effect: order.Spawn) -> None:
        self._reset_for_attempt()
        if self._gpus.applies:
            self._post(fact.SpawnDelayed(effect.attempt, self._gpus.hold_back(effect.attempt)))
            self._background(self._spawn_on_gpus(effect))
        else:
            self._spawn(effect)

    async def _spawn_on_gpus(self, effect: order.Spawn) -> None:
        try:
            await self._spawn_once_fit(effect)
        except Exception as error:
            self._gpus.cancel(effect.attempt)
            if self._attempt is not None:
                raise
            self._report_spawn_failure(effect, self._spawn_error_of(error, was_standby=False))

    async def _spawn_once_fit(self, effect: order.Spawn) -> None:
        """The same once the GPUs are free of the last attempt and in order, unless it is to end before that."""
        verdict, unsaid = await self._gpus.wait_until_fit(effect.attempt, self._last_pid)
        if verdict is None:
            return
        if verdict.sick is not None:
            self._log.error("gpu.unfit", attempt=effect.attempt, why=verdict.sick)
            self._post(fact.SpawnFailed(effect.attempt, verdict.sick, permanent=False, waits_s=SICK_WAIT_S))
            return
        if verdict.waits is not None:
            self._log.warning("gpu.not_free", attempt=effect.attempt, why=verdict.waits)
        self._spawn(effect)
        for message in unsaid:
            self._send(message)

    def _cancel_waiting_spawn(self, number: int) -> None:
        """Told to end what was not started yet."""
        if self._gpus.cancel(number):
            self._post(fact.SpawnFailed(number, "ended before it was started; its GPUs were not free", permanent=False))

    def _spawn(self, effect: order.Spawn) -> None:
        number, microbatches = effect.attempt, effect.microbatches
        spare = self.standby.promote(number, microbatches) if self.standby is not None else None
        try:
            made = (
                self._attempts.spawn(number, microbatches) if spare is None else self._attempts.promote(number, spare)
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody else would end a standby that was taken
            if self.standby is not None and spare is not None:
                self.standby.discard(spare)
            self._report_spawn_failure(effect, self._spawn_error_of(error, was_standby=spare is not None))
            return
        self._attempt, process = made, made.process
        self.oom_counters = made.memory.cgroup_counters
        self.started_wall_at, self.ended_wall_at = time.time(), None
        self.started_at, self.ended_at = made.began_at, None
        self._services.ledger.attempt_started(
            self._config.name, number, process.pid, process.start_time, self.started_wall_at, microbatches
        )
        self._log.info("worker.spawned", attempt=number, pid=process.pid, was_standby=spare is not None)
        self._post(fact.SpawnSucceeded(number))

    def _spawn_error_of(self, error: Exception, was_standby: bool) -> SpawnError:
        if isinstance(error, SpawnError):
            return error
        if not isinstance(error, OSError):
            self._log.error("internal.failed", error=repr(error), exc_info=error)
            return SpawnError(f"internal error: {error!r}; please report it with the daemon's log", permanent=False)
        what = "make its standby an attempt" if was_standby else "capture its output"
        return SpawnError(
            f"cannot start {self._config.name}: cannot {what}: {error}; it is tried again", permanent=False
        )

    def _report_spawn_failure(self, effect: order.Spawn, error: SpawnError) -> None:
        number = effect.attempt
        self.spawn_error, self.ended_wall_at = error, time.time()
        self.started_at = self.ended_at = time.monotonic()
        self._services.ledger.attempt_started(self._config.name, number, 0, 0, self.ended_wall_at, effect.microbatches)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        self._post(fact.SpawnFailed(number, str(error), error.permanent))

    def on_notification(self, number: int, said: NotifyMessage) -> None:
        """A plain program said how it stands."""
        if said.status is not None:
            self.status_text = said.status or None
        if said.ready:
            self._log.info("worker.ready", attempt=number)
            self._post(fact.ReadySaid(number))

    @execute.register
    def _(self, effect: order.SelectCheckpoint) -> None:
        if self._config.job is not None:
            self._background(self._select(effect, self._config.job))

    @execute.register
    def _(self, effect: order.SetAside) -> None:
        services, job = self._services, self._config.job
        if job is not None:
            name, about = (
                self._config.name,
                (services.checkpoints, services.ledger, self._on_checkpoint_refused, self._log),
            )
            self._background(quarantine_checkpoints(name, effect, job, *about))

    @execute.register
    def _(self, effect: order.SendGo) -> None:
        self._send(messages.Go(effect.attempt, effect.restore))

    @execute.register
    def _(self, effect: order.Identify) -> None:
        self._send(messages.Identify(effect.attempt))

    @execute.register
    def _(self, effect: order.RequestFlush) -> None:
        self._log.info("flush.asked", attempt=effect.attempt, reason=effect.reason, then=str(effect.then))
        self._send(messages.Flush(effect.attempt, effect.id, effect.reason, effect.then, effect.deadline_s))

    @execute.register
    def _(self, effect: order.Terminate) -> None:
        self._cancel_waiting_spawn(effect.attempt)
        if self._config.stop_command is None or self._attempt is None:  # there is nobody the command could stop
            self._signal_stop(effect.attempt)
        else:
            self._background(self._stop_by_command(effect.attempt, self._config.stop_command))

    async def _stop_by_command(self, number: int, command: tuple[str, ...]) -> None:
        """Runs it; then the signal follows if the worker still lives."""
        self._log.info("worker.told_to_stop", attempt=number, command=command[0])
        check = command_beside(self._config, "stop_command", command, self.pid, self._services.environment)
        why = await asyncio.get_running_loop().run_in_executor(self._services.stops, HealthChecks().failure_of, check)
        if why is not None:
            self._log.warning("stop_command.failed", attempt=number, why=why)
        self._signal_stop(number)

    def _signal_stop(self, number: int) -> None:
        if self._attempt is not None and self._attempt.number == number:
            self._log.info("worker.told_to_stop", attempt=number, signal=self._config.stopsignal.name)
            self._attempt.process.send_signal(self._config.stopsignal, group=self._config.stopasgroup)

    @execute.register
    def _(self, effect: order.Abort) -> None:
        self._cancel_waiting_spawn(effect.attempt)
        self._log.error("worker.aborted", attempt=effect.attempt, last_step=self.training.step)
        if self._attempt is not None:
            self._background(self._keep_stacks(self._attempt.process, effect))

    @execute.register
    def _(self, effect: order.Kill) -> None:
        self._cancel_waiting_spawn(effect.attempt)
        self._log.warning("worker.killed", attempt=effect.attempt)
        if self._attempt is not None:
            self._attempt.kill()

    @execute.register
    def _(self, effect: order.RememberWanted) -> None:
        self._services.ledger.record_wanted(self._config.name, effect.wanted)

    @execute.register
    def _(self, effect: order.RememberSilences) -> None:
        self._services.ledger.record_hang_history(self._config.name, dict(effect.longest))

    @execute.register
    def _(self, effect: order.RecordEnd) -> None:
        exit_ = self.last_exit or Exit(None, None)
        ran_s = self.run_time_s
        if self.training.step is not None and ran_s is not None:
            self.reliability = self.reliability.after(ran_s, effect.cause)
        self._services.ledger.attempt_ended(
            self._config.name,
            effect.attempt,
            effect.cause,
            effect.text,
            exit_.code,
            exit_.signal,
            self.training.step,
            self.ended_wall_at or time.time(),
            ran_s,
        )

    # --- what comes back ----------------------------------------------------------------------------------------------

    async def _select(self, order_: order.SelectCheckpoint, job: JobConfig) -> None:
        services, name = self._services, self._config.name
        found: fact.CheckpointSelected | fact.SelectionFailed
        try:
            found = await select_checkpoint(
                name, order_, job, services.checkpoints, services.ledger, self._on_checkpoint_refused, self._log
            )
        except Exception as error:  # noqa: BLE001 - the worker would wait for its word to go until it times out
            self._log.exception("internal.failed", on="select")
            found = fact.SelectionFailed(order_.attempt, f"cannot look for checkpoints: {error!r}", permanent=False)
        self._post(found)

    def _on_checkpoint_refused(self, checkpoint: str, reason: str) -> None:
        self.counters.refused_checkpoints += 1
        self.on_checkpoint_refused(checkpoint, reason)

    async def _keep_stacks(self, process: Process, effect: order.Abort) -> None:
        services, name = self._services, self._config.name
        pipes = layout.attempt_folder(services.runtime_dir, name, effect.attempt)
        why = f"{name}, attempt {effect.attempt}, pid {process.pid}, last step {self.training.step}"
        folders = pipes, services.state_dir / "stacks" / name
        await dump_stacks_then_abort(process, effect.attempt, folders, effect.patience_s, why, self._post, self._log)

    def on_exit(self, number: int, exit_: Exit) -> None:
        """The process is gone: hear its last words, then tell the core."""
        attempt = self._attempt
        if attempt is None or attempt.number != number:
            raise RuntimeError(f"{self._config.name}: attempt {number} ended, but {attempt} is the one that runs")
        words = attempt.close_and_read()
        for message in words if not self._has_last_message else ():
            self.on_message(message)
        self._attempts.close_listener(attempt)
        self._attempt, self._last_pid = None, attempt.process.pid
        self.exports.on_worker_gone(number)
        self.last_exit, self.ended_wall_at, self.ended_at = exit_, time.time(), time.monotonic()
        is_done = self._reported_done and exit_.signal is None and exit_.code in (0, None)
        self._log.warning(
            "worker.exited",
            attempt=number,
            how=describe_exit(exit_.code, exit_.signal),
            expected=is_done if self._config.job is not None else exit_.code in self._config.exitcodes,
            ran_for_s=round(self.run_time_s or 0.0, 1),
            last_step=self.training.step,
        )
        oom = attempt.memory.evidence() if exit_.signal == signal.SIGKILL else None
        self._post(fact.WorkerExited(number, exit_.code, exit_.signal, oom))
        if self._config.job is not None or self._config.killasgroup:
            self._background(asyncio.to_thread(attempt.kill_leftovers))
        elif attempt.cgroup is not None:
            attempt.cgroup.remove_if_empty()

    def _send(self, message: messages.ToWorker) -> None:
        if not self._gpus.buffer_message(message) and self._attempt is not None:
            self._attempt.send(message)

    def on_malformed_message(self, number: int, error: str) -> None:
        """The worker said what is no message."""
        self._log.warning("worker.misspoke", attempt=number, error=error)

    def on_message(self, message: messages.FromWorker) -> None:
        """The worker said something."""
        self.training.on_message(message)
        self._has_last_message = self._has_last_message or isinstance(message, messages.Done | messages.Failed)
        is_done = isinstance(message, messages.WorkerStatus) and message.phase is messages.Phase.DONE
        self._reported_done = self._reported_done or is_done or isinstance(message, messages.Done)
        self.counters.on_message(message, time.monotonic())
        self.goodput.on_message(message, time.monotonic())
        if self._attempt is not None:
            self._attempt.memory.refresh(time.monotonic(), moved=isinstance(message, messages.Hello))
            if isinstance(message, messages.Hello):
                self.oom_counters = self._attempt.memory.cgroup_counters
        if isinstance(message, messages.Exported):
            self.exports.on_exported(message)
        if isinstance(message, messages.Committed | messages.SaveFailed):
            self._store_flush_answer(message)
        if isinstance(message, messages.Committed):
            self.committed_at = time.monotonic() - (message.ago_s or 0.0)
        if isinstance(message, messages.Committed) and self._config.job is not None:
            now = asyncio.get_running_loop().time()
            saves, job = self._services.save_durations, self._config.job
            saves.record_save(self._config.name, message.attempt, job.checkpoint_dir, message.save_s, now)
        record_message(message, self._config.name, self._services.ledger, self._log)
        event = event_of(message, self.flush_answers)
        if event is not None:
            self._post(event)

    def _store_flush_answer(self, message: messages.Committed | messages.SaveFailed) -> None:
        for flush_id in message.flushes:
            self.flush_answers[flush_id] = message
        while len(self.flush_answers) > ANSWERS_KEPT:
            del self.flush_answers[min(self.flush_answers)]

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal.failed", error=repr(error), exc_info=error)
