"""Begins a program's attempts: a new process, the standby, or one that an earlier daemon started."""

import contextlib
import errno
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from supervisor.core.gpus.verdict import RECHECK_S
from supervisor.core.program import effects, events
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.pipes.listener_pipes import ListenerPipes
from supervisor.host.processes import marks
from supervisor.host.processes.process import adopt
from supervisor.host.processes.process_start import spawn
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.cgroup import Cgroup
from supervisor.host.resources.oom_kills import OomWatch
from supervisor.protocol import layout
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.launch import Control
from supervisor.runner.attempt.adopting import LeftoverWorker
from supervisor.runner.attempt.attempt import LiveAttempt
from supervisor.runner.attempt.launching import launch_of
from supervisor.runner.attempt.program_io import ProgramIO
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.attempt.standby_process import StandbyProcess
from supervisor.runner.attempt.starting import (
    note_output_begin,
    open_control_pipes,
    open_output_pipes,
    spawn_error_of,
    spawn_request,
    unreachable_path,
)
from supervisor.runner.program.current_attempt import CurrentAttempt
from supervisor.runner.program.gpu_gate import GpuGate

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class AttemptStarter:
    """Gives `current` its processes; a job's once its GPUs are free."""

    def __init__(self, program: ProgramServices, current: CurrentAttempt, standby: StandbyHolder | None) -> None:
        self._config = program.config
        self._services = program.services
        self._current = current
        self._records = program.records
        self._standby = standby
        self._post = program.post
        self._tasks = program.tasks
        self._log = program.log
        self._gpus = GpuGate(program.config, program.services, standby, program.log)
        self._delayed: effects.Spawn | None = None  # whose GPUs may not be free yet

    def start(self, effect: effects.Spawn) -> None:
        """Starts the process of an attempt, or promotes the standby; a job's once its GPUs are free."""
        if self._gpus.applies:
            self._delayed = effect
            self._current.expect_start()
            self._post(events.SpawnDelayed(effect.attempt, self._gpus.longest_wait_s))
            self._tasks.start(self._spawn_when_gpus_fit(effect))
        else:
            self._begin(effect)

    async def _spawn_when_gpus_fit(self, effect: effects.Spawn) -> None:
        try:
            if (refusal := self._gpus.take_refusal(effect.attempt)) is not None:
                self._end_wait()
                self._post(events.SpawnFailed(effect.attempt, refusal, permanent=True))
                return
            verdict = await self._gpus.wait_until_fit(self._current.last_pid)
            if self._delayed is not effect:
                return  # the attempt was ended meanwhile
            unsent = self._end_wait()
            self._gpus.log_verdict(effect.attempt, verdict)
            if verdict.unusable_because is not None:
                why = verdict.unusable_because
                self._post(events.SpawnFailed(effect.attempt, why, permanent=False, retry_in_s=RECHECK_S))
                return
            self._begin(effect, verdict.visible, verdict.without)
            for message in unsent:
                self._current.send(message)
        except Exception as error:
            if self._delayed is effect:
                self._end_wait()
            if self._current.attempt is not None:
                raise
            self._report_spawn_failure(effect, spawn_error_of(error, self._config, "capture its output", self._log))

    def _end_wait(self) -> list[messages.ToWorker]:
        """Nothing waits for its GPUs any more; gives what was said to that attempt meanwhile."""
        self._delayed = None
        return self._current.take_unsent()

    def _begin(self, effect: effects.Spawn, visible_gpus: str | None = None, gpus_left_out: str | None = None) -> None:
        number, microbatches = effect.attempt, effect.microbatches
        unfit = None if visible_gpus is None else "the attempt gets fewer GPUs than it has"
        standby = self._standby.promote(number, microbatches, unfit) if self._standby is not None else None
        try:
            if standby is not None:
                attempt = self._promote(number, standby)
            else:
                attempt = self._spawn(number, microbatches, visible_gpus)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody else would end a promoted standby
            if self._standby is not None and standby is not None:
                self._standby.discard(standby)
            what = "make its standby an attempt" if standby is not None else "capture its output"
            self._report_spawn_failure(effect, spawn_error_of(error, self._config, what, self._log))
            return
        self._current.begin(attempt, visible_gpus)
        process, record = attempt.process, self._records.process
        record.oom_counters = attempt.memory.cgroup_counters
        self._record_start(effect, record.started_wall_at, process.pid, process.start_time)
        self._log.info("worker.spawned", attempt=number, pid=process.pid, was_standby=standby is not None)
        self._post(events.SpawnSucceeded(number, gpus_left_out))

    def _report_spawn_failure(self, effect: effects.Spawn, error: SpawnError) -> None:
        number, record = effect.attempt, self._records.process
        record.not_started(error)
        self._record_start(effect, record.ended_wall_at)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        self._post(events.SpawnFailed(number, str(error), error.permanent, missing=unreachable_path(error)))

    def _record_start(self, effect: effects.Spawn, at: float | None, pid: int = 0, start_time: int = 0) -> None:
        """In the ledger, also of one that never became a process."""
        attempts, name = self._services.ledger.attempts, self._config.name
        attempts.attempt_started(name, effect.attempt, pid, start_time, at or 0.0, effect.microbatches)

    def cancel(self, number: int) -> None:
        """Gives up a start that still waits for its GPUs."""
        if self._delayed is not None and self._delayed.attempt == number:
            self._end_wait()
            text = "ended before it was started; its GPUs were not free"
            self._post(events.SpawnFailed(number, text, permanent=False))

    def adopt(self, left: LeftoverWorker) -> bool:
        """Supervises a process that an earlier daemon started; False if it is gone, or its pipes are."""
        self._records.reset_for_attempt()
        attempt = self._adopt(left)
        if attempt is None:
            return False
        self._current.begin(attempt)
        self._log.info("worker.adopted", attempt=left.attempt, pid=left.pid, runs_for_s=round(left.age_s, 1))
        return True

    # --- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self, number: int, microbatches: int, visible_gpus: str | None = None) -> LiveAttempt:
        """A new process. `visible_gpus`: its CUDA_VISIBLE_DEVICES, if not all that it has.

        Raises SpawnError or OSError with everything taken back.
        """
        config, services, mark = self._config, self._services, self._mark(number)
        control = Control(number, self._folder(number))
        launch = launch_of(
            config,
            control,
            self._records.reliability.between_failures_s,
            microbatches,
            generation=services.generation,
            leaves_with=services.daemon,
        )
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
            channel = program_io = listener = None
            stdio = open_output_pipes(config, services.logs, number, handed_over)
            note_output_begin(config, services.logs, number)
            if config.job is not None:
                channel = self._open_control_pipes(number)
                undo.callback(channel.close)
            elif config.listener is not None:
                listener = self._listener_pipes(stdio.stdout)
                undo.callback(listener.close)
                handed_over.callback(listener.close_listener_ends)
                stdio = replace(stdio, stdin=listener.stdin, stdout=listener.stdout)
            else:
                program_io = self._program_io(number, mark)
                stdin = program_io.create()
                handed_over.callback(os.close, stdin)
                undo.callback(program_io.close_and_remove)
                stdio = replace(stdio, stdin=stdin, notify=program_io.notify_path)
            cgroup = self._cgroup(number)
            if cgroup is not None:
                undo.callback(cgroup.remove)
            stdio = replace(stdio, cgroup=cgroup)
            request = spawn_request(config, services, launch, mark, stdio, visible_gpus=visible_gpus)
            process = spawn(request, partial(self._current.on_exit, number))
            undo.pop_all()
        if program_io is not None:
            program_io.set_pid(process.pid)
        if listener is not None:
            services.listeners.add_listener(config.group, config.name, listener.write)
        memory, now = OomWatch(process.pid), time.monotonic()
        return LiveAttempt(number, process, channel, memory, mark, now, listener=listener, io=program_io, cgroup=cgroup)

    def _promote(self, number: int, spare: StandbyProcess) -> LiveAttempt:
        """The standby, which has been told so. If it raises, the caller has it still, to end it."""
        config, cgroups, cgroup = self._config, self._services.cgroups, spare.cgroup
        memory = OomWatch(spare.process.pid)
        if cgroups is not None and cgroup is not None:
            cgroups.limit(config.name, cgroup, config.memory_limit, config.cpu_limit)
        spare.process.reassign(partial(self._current.on_exit, number))
        spare.channel.set_receiver(self._current.on_message, partial(self._current.on_malformed_message, number))
        now = time.monotonic()
        return LiveAttempt(number, spare.process, spare.channel, memory, spare.mark, now, cgroup=cgroup)

    def _adopt(self, worker: LeftoverWorker) -> LiveAttempt | None:
        """A process that an earlier daemon started; None if it is gone, or its pipes are.

        Raises OSError if there are no descriptors to tell: it must not be ended for that.
        """
        number, channel, program_io, is_job = worker.attempt, None, None, self._config.job is not None
        try:
            if is_job:
                channel = self._open_control_pipes(number, is_there=True)
        except SpawnError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_DESCRIPTORS:
                raise error.__cause__ from error
            self._log.warning("worker.out_of_reach", attempt=number, pid=worker.pid, error=str(error))
            return None
        with contextlib.ExitStack() as unless_adopted:
            if channel is not None:
                unless_adopted.callback(channel.detach)
            process = adopt(worker.pid, worker.start_time, is_job, partial(self._current.on_exit, number))
            if process is None:
                return None
            unless_adopted.pop_all()
        mark, began_at = worker.mark or self._mark(number), time.monotonic() - worker.age_s
        if not is_job:
            program_io = self._program_io(number, mark)
            program_io.reopen(worker.pid)
        memory, cgroups = OomWatch(worker.pid), self._services.cgroups
        cgroup = None if cgroups is None else cgroups.group_of_process(self._config.name, worker.pid)
        return LiveAttempt(number, process, channel, memory, mark, began_at, io=program_io, cgroup=cgroup)

    def _mark(self, number: int) -> str:
        return marks.mark_of_attempt(self._services.state_dir, self._config.name, number)

    def _folder(self, number: int) -> Path:
        """The attempt's own, for its pipes."""
        return layout.attempt_folder(self._services.runtime_dir, self._config.name, number)

    def _open_control_pipes(self, number: int, is_there: bool = False) -> ControlPipes:
        current = self._current
        return open_control_pipes(
            self._config,
            self._folder(number),
            number,
            current.on_message,
            partial(current.on_malformed_message, number),
            is_there,
            self._services.listening_share,
        )

    def _program_io(self, number: int, mark: str) -> ProgramIO:
        return ProgramIO(
            self._services.runtime_dir, self._config, number, mark, self._current.on_notification, self._log
        )

    def _listener_pipes(self, log: int) -> ListenerPipes:
        listening, pool, name = self._services.listeners, self._config.group, self._config.name
        copy = os.dup(log)
        try:
            return ListenerPipes(
                partial(listening.on_output, pool, name), partial(listening.on_stdin_closed, pool, name), copy
            )
        except OSError:
            os.close(copy)
            raise

    def _cgroup(self, number: int) -> Cgroup | None:
        """A group of its own, where the daemon may make some; else its limits are watched from outside."""
        config, cgroups = self._config, self._services.cgroups
        if config.cpu_limit is not None and (cgroups is None or "cpu" not in cgroups.controllers):
            self._log.warning("cpu_limit.not_held", attempt=number, remedy="give the daemon a cgroup with Delegate=cpu")
        if cgroups is None:
            return None
        cgroups.remove_empty_groups(config.name, number)
        return cgroups.create(config.name, number, config.memory_limit, config.cpu_limit)
