"""Executes the effects that the core decided for one program, and turns what comes back into events."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.failures.reliability import Reliability
from supervisor.core.failures.restart import describe_exit
from supervisor.core.failures.start_paths import UnreachablePath
from supervisor.core.fleet.gpus import RECHECK_S
from supervisor.core.program import effects, events
from supervisor.core.standby import StandbyKind
from supervisor.host import mount_points
from supervisor.host.health_checks import HealthChecks
from supervisor.host.ledger.ledger import LastEnd
from supervisor.host.pipes.message_filter import NOTHING_REFUSED
from supervisor.host.pipes.notify import NotifyMessage
from supervisor.host.pipes.stdin import Stdin
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol import layout
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.messages import WorkerExit
from supervisor.runner.attempt.adopting import LeftoverWorker
from supervisor.runner.attempt.attempt import AttemptFactory, LiveAttempt
from supervisor.runner.attempt.last_output import LIMIT_S, LOGGER_START_LIMIT_S, last_error_line, last_error_lines
from supervisor.runner.attempt.launching import command_beside, standby_kind_of
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.attempt.starting import start_obstacle
from supervisor.runner.program.checkpoints import CheckpointSelector
from supervisor.runner.program.gpu_gate import GpuGate
from supervisor.runner.program.messages_in import MessageRecorder, event_of
from supervisor.runner.program.mirror import JobMirror
from supervisor.runner.program.requests import WorkerRequests
from supervisor.runner.records.counters import ProgramCounters
from supervisor.runner.records.goodput import GoodputRecorder
from supervisor.runner.records.job_log import JobLog
from supervisor.runner.records.observers import ObserverList
from supervisor.runner.records.series import SeriesRecorder
from supervisor.runner.records.training import TrainingStatus

NOTED_EVERY_S = 2.0  # what is younger when its worker crashes can escape; a look takes about a millisecond
KILL_AGAIN_S = 5.0  # what survives SIGKILL is in the kernel, and has to come back from there
EXPORT_LIMIT_S = 1800.0  # tracing and writing a large model take minutes; the client may leave before


class EffectExecutor:
    """Executes effects for one program. It owns the live attempt and the standby.

    `post` takes every event, from the event loop's thread, in the order in which they happen. `observers` learn of
    messages and refused checkpoints; the executor adds those that keep records of the program. `log`: bound to it.
    """

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        post: Callable[[events.Event], None],
        observers: ObserverList,
        log: FilteringBoundLogger,
    ) -> None:
        self.training = TrainingStatus()
        self.counters = ProgramCounters()
        self.goodput = GoodputRecorder(config.name, services.ledger, time.monotonic())
        self.requests = WorkerRequests()
        self.status_text: str | None = None
        """What the worker said last of what it is doing (STATUS= of a notification)."""
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.refused = NOTHING_REFUSED
        """What was not passed on of the messages of the present or last worker."""
        self.committed_at = 0.0
        """These three are monotonic: setting the clock changes neither a run time nor the age of a checkpoint."""
        self.started_wall_at: float | None = None
        self.ended_wall_at: float | None = None
        self.last_exit: Exit | None = None
        self.spawn_error: SpawnError | None = None
        self.reliability = Reliability()
        """How the program's attempts ended so far."""
        self.oom_counters: tuple[OomKillCounter, ...] = ()
        """Counts of kills for lack of memory, as of when the worker was last seen to move to another cgroup."""
        self.standby: StandbyHolder | None = None
        """Keeps the process that waits to become the next attempt; None for a program that never has one."""
        if standby_kind_of(config) is not StandbyKind.OFF:
            self.standby = StandbyHolder(config, services, lambda: self.pid, self._between_failures_s, log)
        self.mirror: JobMirror | None = None
        """The job's copy in an object store; None for a program without one."""
        self._refused_before = (0, 0)  # of earlier attempts: refused, and left out
        self._job_log = JobLog(log)
        self._config = config
        self._services = services
        self._post = post
        self._observers = observers
        observers.add([self.standby] if self.standby is not None else [])
        observers.add([self.training, self.counters, self.goodput, self.requests])
        self._selector: CheckpointSelector | None = None
        self.series: SeriesRecorder | None = None
        """The metrics of a job over its steps; None for a plain program."""
        if config.job is not None:
            measured = self.training.checkpoint_measured
            observers.add([MessageRecorder(config, services, self._job_log, lambda: self.started_at, measured)])
            self.series = SeriesRecorder(config.name, services.ledger)
            observers.add([self.series])
            if config.job.mirror is not None and services.is_chief:
                self.mirror = JobMirror(config, services, post, log)
                observers.add([self.mirror])
            self._selector = CheckpointSelector(
                config.name, config.job, services, observers, post, log, config.user, self.mirror
            )
        self._attempt: LiveAttempt | None = None
        self._exiting: tuple[LiveAttempt, events.WorkerExited] | None = None  # it waits for its last line
        self._is_looking = False  # whether its directory and command are there
        self._has_last_message = False  # the worker sent `done` or `failed`
        self._reported_done = False
        self._last_pid: int | None = None  # of the attempt before
        self._gpus = GpuGate(config, services, self.standby)
        self._attempts = AttemptFactory(config, services, self, self._between_failures_s, log)
        self._tasks: list[asyncio.Task[object]] = []
        self._log = log

    # --- for those who look -------------------------------------------------------------------------------------------

    @property
    def waits_for_gpus(self) -> bool:
        """Whether the process is not started yet because its GPUs may not be free."""
        return self._gpus.attempt is not None

    @property
    def pid(self) -> int | None:
        """The worker's pid, until its exit is posted."""
        attempt = self._attempt or (self._exiting[0] if self._exiting is not None else None)
        return attempt.process.pid if attempt is not None else None

    @property
    def standby_pids(self) -> frozenset[int]:
        """Pids of the standby, and of discarded standbys that have not exited yet."""
        return self.standby.pids if self.standby is not None else frozenset()

    @property
    def storage_remarks(self) -> tuple[str, ...]:
        """What checkpoints can't rely on in the file system of the checkpoint directory."""
        return self._selector.remarks if self._selector is not None else ()

    def _between_failures_s(self) -> float:
        return self.reliability.between_failures_s

    @property
    def messages_refused(self) -> int:
        """How many messages of workers were refused since the daemon took the program over."""
        return self._refused_before[0] + self.refused.refused

    @property
    def messages_left_out(self) -> int:
        """How many were left out, as they came too often."""
        return self._refused_before[1] + self.refused.left_out

    def refused_words(self, now: float) -> tuple[str, ...]:
        """What was not taken of the worker's messages, or not written down of them, in words; empty if all was."""
        unwritten = self._services.ledger.records_left_out(self._config.name)
        left_out = [f"{counted(unwritten, 'record')} of it not in the ledger"] if unwritten else []
        return (*self.refused.describe(now), *self._job_log.describe(now), *left_out)

    @property
    def run_time_s(self) -> float | None:
        """For how many seconds the worker has run, or ran; None if this daemon never had one."""
        if self.started_at is None:
            return None
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def stdin(self) -> Stdin | None:
        """The worker's standard input; None without a worker, and for a job, which can't be written to."""
        return self._attempt.io.stdin if self._attempt and self._attempt.io else None

    @property
    def was_ready(self) -> bool:
        """Whether the worker has notified that it is ready, to this daemon or an earlier one."""
        return self._attempt is not None and self._attempt.io is not None and self._attempt.io.was_ready

    # --- for operators, and for an earlier daemon's worker ------------------------------------------------------------

    def send_signal(self, number: int) -> bool:
        """Sends a signal to the worker (not to its group); False if there is none."""
        return self._attempt is not None and self._attempt.process.send_signal(number, group=False)

    def note_descendants(self) -> None:
        """Notes the processes that are to end with the worker, where no control group holds them. Reads some files."""
        attempt = self._attempt
        if attempt is not None and self.has_to_note_descendants:
            attempt.process.note_descendants()

    @property
    def has_to_note_descendants(self) -> bool:
        """Whether nothing but looking tells who is to end with the worker."""
        return self._attempt is not None and self._attempt.cgroup is None and self._config.ends_all_processes

    @property
    def can_outlive(self) -> str | None:
        """Which processes can outlive a program that all it starts is to end with; None: none, or it does not run."""
        if self._attempt is None or self._attempt.cgroup is not None or not self._config.ends_all_processes:
            return None
        detached = f"what left its session and its environment less than {NOTED_EVERY_S:g} s before it crashed"
        if self._config.job is not None:
            return f"{detached}, as there is no control group"
        return f"{detached}, or lost its parent, as there is no control group"

    @property
    def cgroup(self) -> Path | None:
        """The control group of the worker and of all that it starts, whatever becomes of them."""
        return self._attempt.cgroup.path if self._attempt is not None and self._attempt.cgroup is not None else None

    async def export(self) -> messages.Exported | None:
        """Has the worker export its model as it is now, and waits for that; None if there is no worker."""
        if self._attempt is None:
            return None
        return await self.requests.request_export(self._attempt.number, self._send, EXPORT_LIMIT_S)

    def adopt(self, found: LeftoverWorker) -> bool:
        """Supervises a process that an earlier daemon started; False if it is gone, or its pipes are."""
        self._reset_for_attempt()
        self._attempt = self._attempts.adopt(found)
        if self._attempt is None:
            return False
        self._watch_messages_of(self._attempt)
        self.started_wall_at, self.ended_wall_at = time.time() - found.age_s, None
        self.started_at, self.ended_at = self._attempt.began_at, None
        self._log.info("worker.adopted", attempt=found.attempt, pid=found.pid, runs_for_s=round(found.age_s, 1))
        return True

    def recall_end(self, end: LastEnd) -> None:
        """How the last attempt ended, which an earlier daemon saw."""
        self.training.step, self.ended_wall_at = end.to_step, end.ended_at
        self.last_exit = Exit(end.exit_code, None)

    def detach(self) -> None:
        """Leaves the worker running for the next daemon, and ends nothing."""
        if self.standby is not None:
            self.standby.detach()
        if self._attempt is not None:
            self._attempt.detach()
            self._attempts.close_listener(self._attempt)
            self._attempt = None
        if self.mirror is not None:
            self.mirror.close()
        for task in self._tasks:
            task.cancel()

    def _reset_for_attempt(self) -> None:
        self.training.reset_for_attempt()
        self._has_last_message = self._reported_done = False
        self.spawn_error = self.last_exit = self.status_text = None

    # --- effects out --------------------------------------------------------------------------------------------------

    def execute(self, effect: effects.Effect) -> None:
        """Executes one effect; what follows from it comes back as an event."""
        match effect:
            case effects.Spawn():
                self._reset_for_attempt()
                self._spawn_when_gpus_fit(effect) if self._gpus.applies else self._spawn(effect)
            case effects.SelectCheckpoint():
                if self._selector is not None:
                    self._background(self._selector.select(effect))
            case effects.LookAtStorage():
                if self._selector is not None:
                    self._background(self._selector.look(effect))
            case effects.LookAtStartPaths():
                self._background(self._look_at_start_paths(effect))
            case effects.QuarantineCheckpoints():
                if self._selector is not None:
                    self._background(self._selector.quarantine(effect))
            case effects.SendGo():
                if self.mirror is not None:
                    self.mirror.on_selected(effect.restore, effect.gives_up_newer)
                self._send(messages.Go(effect.attempt, effect.restore))
            case effects.RequestIdentity():
                me = self._services.daemon
                self._send(messages.Identify(effect.attempt, *((me.pid, me.start_time) if me is not None else ())))
            case effects.RequestFlush():
                self.note_descendants()
                self._log.info("flush.asked", attempt=effect.attempt, reason=effect.reason, then=str(effect.then))
                self._send(messages.Flush(effect.attempt, effect.id, effect.reason, effect.then, effect.deadline_s))
            case effects.Terminate():
                self._terminate(effect.attempt)
            case effects.Abort():
                self._abort(effect)
            case effects.Kill():
                self._kill(effect.attempt)
            case effects.RecordWanted():
                self._services.ledger.record_wanted(self._config.name, effect.wanted)
            case effects.PersistHangHistory():
                self._services.ledger.record_hang_history(self._config.name, dict(effect.longest))
            case effects.RecordEnd():
                self._record_end(effect)
            case effects.ReportBreach(name, event):
                remedy = "the program is supervised on; please report this record"
                self._log.error(
                    "invariant.broken",
                    invariant=name,
                    on=event,
                    before=effect.before,
                    after=effect.after,
                    remedy=remedy,
                )
            case _:
                assert_never(effect)

    def _spawn_when_gpus_fit(self, effect: effects.Spawn) -> None:
        self._post(events.SpawnDelayed(effect.attempt, self._gpus.hold_back(effect.attempt)))
        self._background(self._wait_for_gpus_then_spawn(effect))

    async def _wait_for_gpus_then_spawn(self, effect: effects.Spawn) -> None:
        try:
            verdict, unsent = await self._gpus.wait_until_fit(effect.attempt, self._last_pid)
            if verdict is None:
                return  # the attempt was ended meanwhile
            if verdict.unusable_because is not None:
                self._log.error("gpu.unfit", attempt=effect.attempt, why=verdict.unusable_because)
                self._post(
                    events.SpawnFailed(effect.attempt, verdict.unusable_because, permanent=False, retry_in_s=RECHECK_S)
                )
                return
            if verdict.waits_because is not None:
                self._log.warning("gpu.not_free", attempt=effect.attempt, why=verdict.waits_because)
            if verdict.without is not None:
                self._log.warning("gpu.left_out", attempt=effect.attempt, why=verdict.without, visible=verdict.visible)
            self.training.gpus_left_out = verdict.without
            self._spawn(effect, verdict.visible)
            for message in unsent:
                self._send(message)
        except Exception as error:
            self._gpus.cancel(effect.attempt)
            if self._attempt is not None:
                raise
            self._report_spawn_failure(effect, self._spawn_error_of(error, was_standby=False))

    def _spawn(self, effect: effects.Spawn, visible_gpus: str | None = None) -> None:
        number, microbatches = effect.attempt, effect.microbatches
        unfit = None if visible_gpus is None else "the attempt gets fewer GPUs than it has"
        standby = self.standby.promote(number, microbatches, unfit) if self.standby is not None else None
        try:
            if standby is not None:
                attempt = self._attempts.promote(number, standby)
            else:
                attempt = self._attempts.spawn(number, microbatches, visible_gpus)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody else would end a promoted standby
            if self.standby is not None and standby is not None:
                self.standby.discard(standby)
            self._report_spawn_failure(effect, self._spawn_error_of(error, was_standby=standby is not None))
            return
        self._attempt, process = attempt, attempt.process
        self._watch_messages_of(attempt)
        self.oom_counters = attempt.memory.cgroup_counters
        self.started_wall_at, self.ended_wall_at = time.time(), None
        self.started_at, self.ended_at = attempt.began_at, None
        self._services.ledger.attempt_started(
            self._config.name, number, process.pid, process.start_time, self.started_wall_at, microbatches
        )
        self._log.info("worker.spawned", attempt=number, pid=process.pid, was_standby=standby is not None)
        self._post(events.SpawnSucceeded(number))

    def _watch_messages_of(self, attempt: LiveAttempt) -> None:
        """Counts the refused messages of another worker from now on."""
        if attempt.channel is not None:
            self._refused_before = self.messages_refused, self.messages_left_out
            self.refused = attempt.channel.refusals

    def _spawn_error_of(self, error: Exception, was_standby: bool) -> SpawnError:
        if isinstance(error, SpawnError):
            return error
        if not isinstance(error, OSError):
            self._log.error("internal.failed", error=repr(error), exc_info=error)
            return SpawnError(f"internal error: {error!r}; please report it with the daemon's log", permanent=False)
        what = "make its standby an attempt" if was_standby else "capture its output"
        return SpawnError(
            f"cannot start {self._config.name}: cannot {what}: {error}; it will be tried again", permanent=False
        )

    def _report_spawn_failure(self, effect: effects.Spawn, error: SpawnError) -> None:
        number = effect.attempt
        self.spawn_error, self.ended_wall_at = error, time.time()
        self.started_at = self.ended_at = time.monotonic()
        self._services.ledger.attempt_started(self._config.name, number, 0, 0, self.ended_wall_at, effect.microbatches)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        missing = None
        if (path := error.path) is not None and error.errno is not None:
            here, lacking = mount_points.mounted_point(path), mount_points.unmounted_point(path)
            missing = UnreachablePath(str(path), error.errno, here, lacking)
        self._post(events.SpawnFailed(number, str(error), error.permanent, missing=missing))

    async def _look_at_start_paths(self, effect: effects.LookAtStartPaths) -> None:
        """Posts whether the program could be started now; nothing while an earlier look has no answer."""
        if self._is_looking:
            return
        self._is_looking = True
        folder = self._config.directory or Path(self._config.command[0]).parent
        try:
            look = partial(start_obstacle, self._config, self._services.environment)
            error = await self._services.log_reads.run_for_folder(folder, look)
        except RuntimeError as failure:  # the host has no thread to spare
            error = f"cannot look at {folder}: {failure}"
        finally:
            self._is_looking = False
        self._post(events.StartPathsSeen(effect.attempt, error))

    def _cancel_waiting_spawn(self, number: int) -> None:
        """Gives up a start that still waits for its GPUs."""
        if self._gpus.cancel(number):
            text = "ended before it was started; its GPUs were not free"
            self._post(events.SpawnFailed(number, text, permanent=False))

    def _terminate(self, number: int) -> None:
        self._cancel_waiting_spawn(number)
        if self._config.stop_command is None or self._attempt is None:  # without a process there is nothing to stop
            self._send_stop_signal(number)
        else:
            self._background(self._run_stop_command(number, self._config.stop_command))

    async def _run_stop_command(self, number: int, command: tuple[str, ...]) -> None:
        """Runs it; if the worker is still alive then, the stop signal follows."""
        self._log.info("worker.told_to_stop", attempt=number, command=command[0])
        check = command_beside(self._config, "stop_command", command, self.pid, self._services.environment)
        why = await asyncio.get_running_loop().run_in_executor(self._services.stops, HealthChecks().failure_of, check)
        if why is not None:
            self._log.warning("stop_command.failed", attempt=number, why=why)
        self._send_stop_signal(number)

    def _send_stop_signal(self, number: int) -> None:
        if self._attempt is not None and self._attempt.number == number:
            self.note_descendants()
            self._log.info("worker.told_to_stop", attempt=number, signal=self._config.stopsignal.name)
            self._attempt.process.send_signal(self._config.stopsignal, group=self._config.stopasgroup)

    def _abort(self, effect: effects.Abort) -> None:
        self._cancel_waiting_spawn(effect.attempt)
        self._log.error("worker.aborted", attempt=effect.attempt, last_step=self.training.step)
        if self._attempt is not None:
            self._background(self._save_stacks_then_abort(self._attempt, effect.timeout_s))

    async def _save_stacks_then_abort(self, attempt: LiveAttempt, limit_s: float) -> None:
        services, name, number = self._services, self._config.name, attempt.number
        pipes, dumps = layout.attempt_folder(services.runtime_dir, name, number), services.state_dir / "stacks" / name
        why = f"{name}, attempt {number}, pid {attempt.process.pid}, last step {self.training.step}"
        try:
            path = await attempt.save_stacks(pipes, dumps, limit_s, why)
            self._log.info("stacks.kept", attempt=number, path=str(path))
            self._post(events.StacksCollected(number, str(path)))  # before the signal, or not at all
        except (OSError, TimeoutError) as error:
            self._log.warning("stacks.not_kept", attempt=number, error=str(error) or "it took too long")
        attempt.process.send_signal(signal.SIGABRT, group=False)
        attempt.process.send_signal(signal.SIGCONT, group=False)  # a stopped process doesn't even die

    def _kill(self, number: int) -> None:
        self._cancel_waiting_spawn(number)
        self._log.warning("worker.killed", attempt=number)
        if self._attempt is not None:
            self._attempt.kill(with_descendants=self._config.ends_all_processes)

    def _record_end(self, effect: effects.RecordEnd) -> None:
        exit_ = self.last_exit or Exit(None, None)
        ran_s = self.run_time_s
        if self.training.step is not None and ran_s is not None:
            self.reliability = self.reliability.with_attempt(ran_s, effect.cause)
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

    def _send(self, message: messages.ToWorker) -> None:
        if not self._gpus.buffer_message(message) and self._attempt is not None:
            self._attempt.send(message)

    # --- what comes back (an AttemptObserver) -------------------------------------------------------------------------

    def on_exit(self, number: int, exit_: Exit) -> None:
        """The process is gone: its unread messages come first, then the core learns of the exit."""
        attempt = self._attempt
        if attempt is None or attempt.number != number:
            raise RuntimeError(f"{self._config.name}: attempt {number} ended, but {attempt} is the one that runs")
        unread = attempt.close_and_read()
        for message in unread if not self._has_last_message else ():
            self.on_message(message)
        self._attempts.close_listener(attempt)
        self._attempt, self._last_pid = None, attempt.process.pid
        self.requests.on_worker_gone(number)
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
        exited = events.WorkerExited(number, exit_.code, exit_.signal, oom)
        if self._is_unexplained(exit_):
            self._exiting = attempt, exited
            self._background(self._quote_then_post_exit(self.started_wall_at or 0.0))
        else:
            self._post(exited)
        if self._config.ends_all_processes:
            self._background(self._kill_leftovers(attempt))
        elif attempt.cgroup is not None:
            attempt.cgroup.remove_if_empty()

    async def _kill_leftovers(self, attempt: LiveAttempt) -> None:
        """Until nothing of it is left. Only what the kernel holds can't be killed at once: a dead disk or driver."""
        is_known = False
        while not await asyncio.to_thread(attempt.kill_leftovers):
            if not is_known and attempt.cgroup is not None:
                is_known, pids = True, attempt.cgroup.pids()
                self._log.warning("worker.left_over", attempt=attempt.number, pids=pids, next="they are killed again")
            await asyncio.sleep(KILL_AGAIN_S)

    def _is_unexplained(self, exit_: Exit) -> bool:
        """Whether the reason of an end gains from the last line of standard error."""
        if self._has_last_message:
            return False  # a worker that failed has sent its error
        is_expected = self._config.job is None and exit_.code in self._config.exitcodes
        return exit_.signal == signal.SIGABRT or (exit_.code not in (None, 0, WorkerExit.STOPPED) and not is_expected)

    async def _quote_then_post_exit(self, since_wall_at: float) -> None:
        line = None
        try:
            line = await last_error_line(self._config, since_wall_at, self._services.log_reads, self._log_limit_s)
        finally:
            self.post_pending_exit(line)

    async def last_error_lines(self) -> list[str]:
        """The last lines of standard error, if the last attempt wrote any."""
        since_wall_at = self.started_wall_at or 0.0
        return await last_error_lines(self._config, since_wall_at, self._services.log_reads, self._log_limit_s)

    @property
    def _log_limit_s(self) -> float:
        return LOGGER_START_LIMIT_S if self._services.logs.logger_pid is None else LIMIT_S

    def post_pending_exit(self, error_line: str | None = None) -> bool:
        """Posts the exit that waits for the last line of standard error; False if none does."""
        exiting, self._exiting = self._exiting, None
        if exiting is None:
            return False
        self._post(replace(exiting[1], error_line=error_line))
        return True

    def on_message(self, message: messages.FromWorker) -> None:
        """The worker sent a message."""
        self._has_last_message = self._has_last_message or isinstance(message, messages.Done | messages.Failed)
        is_done = isinstance(message, messages.WorkerStatus) and message.phase is messages.Phase.DONE
        self._reported_done = self._reported_done or is_done or isinstance(message, messages.Done)
        self._observers.on_message(message, time.monotonic())
        if self._attempt is not None:
            self._attempt.memory.refresh(time.monotonic(), moved=isinstance(message, messages.Hello))
            if isinstance(message, messages.Hello):
                self.oom_counters = self._attempt.memory.cgroup_counters
        if isinstance(message, messages.Committed):
            self.committed_at = time.monotonic() - (message.ago_s or 0.0)
        event = event_of(message, self.requests.flush_answers)
        if event is not None:
            self._post(event)

    def on_malformed_message(self, number: int, error: str) -> None:
        """The worker wrote what is no message."""
        self._job_log.warning("worker.misspoke", attempt=number, error=error)

    def on_notification(self, number: int, notification: NotifyMessage) -> None:
        """A plain program sent a notification."""
        if notification.status is not None:
            self.status_text = notification.status or None
        if notification.ready:
            self._log.info("worker.ready", attempt=number)
            self._post(events.ReadyReported(number))

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal.failed", error=repr(error), exc_info=error)
