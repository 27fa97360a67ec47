"""The three ways to get an attempt: a new process, a standby, one of an earlier daemon's."""

import contextlib
import errno
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.pipes.listener_pipes import ListenerPipes
from supervisor.host.pipes.notify import NotifyMessage
from supervisor.host.processes import marks
from supervisor.host.processes.process import adopt
from supervisor.host.processes.process_start import spawn
from supervisor.host.processes.process_status import Exit
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
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.standby_process import StandbyProcess
from supervisor.runner.attempt.starting import note_output_begin, open_control_pipes, open_output_pipes, spawn_request
from supervisor.runner.records.program import ProgramRecords

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class AttemptObserver(Protocol):
    """Who hears of an attempt; all but messages come with its number."""

    def on_exit(self, number: int, exit_: Exit) -> None:
        """The process is gone."""

    def on_message(self, message: messages.FromWorker) -> None:
        """The worker said something."""

    def on_malformed_message(self, number: int, error: str) -> None:
        """The worker said what is no message."""

    def on_notification(self, number: int, said: NotifyMessage) -> None:
        """A plain program said how it stands."""


class AttemptFactory:
    """Makes those of one program. `records`: a worker is told how often it fails."""

    __slots__ = ("_config", "_log", "_observer", "_records", "_services")

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        observer: AttemptObserver,
        records: ProgramRecords,
        log: FilteringBoundLogger,
    ) -> None:
        self._config = config
        self._services = services
        self._observer = observer
        self._records = records
        self._log = log

    def spawn(self, number: int, microbatches: int, visible_gpus: str | None = None) -> LiveAttempt:
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
            process = spawn(request, partial(self._observer.on_exit, number))
            undo.pop_all()
        if program_io is not None:
            program_io.set_pid(process.pid)
        if listener is not None:
            services.listeners.add_listener(config.group, config.name, listener.write)
        memory, now = OomWatch(process.pid), time.monotonic()
        return LiveAttempt(number, process, channel, memory, mark, now, listener=listener, io=program_io, cgroup=cgroup)

    def promote(self, number: int, spare: StandbyProcess) -> LiveAttempt:
        """The standby, which has been told so. If it raises, the caller has it still, to end it."""
        config, cgroups, cgroup = self._config, self._services.cgroups, spare.cgroup
        memory = OomWatch(spare.process.pid)
        if cgroups is not None and cgroup is not None:
            cgroups.limit(config.name, cgroup, config.memory_limit, config.cpu_limit)
        spare.process.reassign(partial(self._observer.on_exit, number))
        spare.channel.set_receiver(self._observer.on_message, partial(self._observer.on_malformed_message, number))
        now = time.monotonic()
        return LiveAttempt(number, spare.process, spare.channel, memory, spare.mark, now, cgroup=cgroup)

    def adopt(self, worker: LeftoverWorker) -> LiveAttempt | None:
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
            process = adopt(worker.pid, worker.start_time, is_job, partial(self._observer.on_exit, number))
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
        observer = self._observer
        return open_control_pipes(
            self._config,
            self._folder(number),
            number,
            observer.on_message,
            partial(observer.on_malformed_message, number),
            is_there,
        )

    def _program_io(self, number: int, mark: str) -> ProgramIO:
        return ProgramIO(
            self._services.runtime_dir, self._config, number, mark, self._observer.on_notification, self._log
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
