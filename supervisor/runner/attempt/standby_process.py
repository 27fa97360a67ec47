"""The process of a standby: it has loaded everything, and waits to become an attempt."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from supervisor.config import ProgramConfig
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.processes import marks, priority, tree
from supervisor.host.processes.process import Process
from supervisor.host.processes.process_start import spawn
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.host.processes.spawning import SpawnError, look_within_limit
from supervisor.host.resources.cgroup import Cgroup
from supervisor.protocol import layout
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.launch import Control, DaemonIdentity
from supervisor.runner.attempt.launching import launch_of, owner_ids
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.starting import note_output_begin, open_control_pipes, open_output_pipes, spawn_request

OOM_SCORE = 900  # the kernel is to take what has done nothing yet before anything that has
ASK_AGAIN_S = 0.15  # the kernel takes a change of a session's share from plain users every tenth of a second


@dataclass(slots=True)
class StandbyProcess:
    """A process that waits. `folder_id`: device and inode of its working directory; `error`: its last message.

    `cgroup`: holds it and all that it starts, where the daemon may make some.
    """

    process: Process
    channel: ControlPipes
    mark: str
    folder_id: tuple[int, int] | None
    cgroup: Cgroup | None = None
    error: str | None = None

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        if self.cgroup is not None:
            self.cgroup.kill()
        self.process.kill_tree()

    def kill_leftovers(self) -> None:
        """In a thread: kills what it left behind, in its session and out of it."""
        if self.cgroup is not None:
            self.cgroup.remove()
        self.process.kill_session()
        tree.kill_all(marks.processes_of_attempt(self.mark))

    @property
    def memory_bytes(self) -> int | None:
        """What it holds; None if that can't be read."""
        return resident_bytes(self.process.pid)

    def why_unusable(self, config: ProgramConfig) -> str | None:
        """Why it can't be the next attempt of its program; None: it can."""
        if self.process.has_ended:
            return "it had ended"
        if not self.channel.has_received:
            return "it had only just started"
        is_moved = _folder_id(config) != self.folder_id
        return "its working directory is another folder now" if is_moved else None

    def promote(
        self, config: ProgramConfig, services: Services, attempt: int, microbatches: int, between_failures_s: float
    ) -> None:
        """Makes it this attempt. Raises whatever goes wrong; then it has to be ended."""
        folder = layout.attempt_folder(services.runtime_dir, config.name, attempt)
        self.channel.move_to_attempt(folder, attempt)
        restore_priority(self.process)
        priority.lower_oom_score(self.process.pid, config.oom_score_adjust)
        note_output_begin(config, services.logs, attempt)
        cluster = services.gang.cluster if services.gang is not None else None
        self.channel.send(
            messages.Promote(attempt, str(folder), between_failures_s, microbatches, services.generation, cluster)
        )


def start_standby(
    config: ProgramConfig,
    services: Services,
    command: tuple[str, ...] | None,
    microbatches: int,
    between_failures_s: float,
    on_message: Callable[[messages.FromWorker], None],
    on_malformed_message: Callable[[str], None],
    on_exit: Callable[[str, Exit], None],
    is_urgent: bool,
) -> StandbyProcess:
    """Starts one, at the lowest priority unless it `is_urgent`. `command`: what is run instead of the program's own;
    `on_exit` gets a token of it besides. Raises SpawnError or OSError with everything taken back.
    """
    token = secrets.token_hex(8)
    folder = layout.standby_folder(services.runtime_dir, config.name, token)
    launch = launch_of(
        config,
        Control(messages.STANDBY, folder),
        between_failures_s,
        microbatches,
        DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 1),
        leaves_with=services.daemon,
    )
    mark = marks.mark_of_standby(services.state_dir, config.name, token)
    channel = open_control_pipes(
        config, folder, messages.STANDBY, on_message, on_malformed_message, share=services.listening_share
    )
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
        undo.callback(channel.close)
        stdio = open_output_pipes(config, services.logs, messages.STANDBY, handed_over)
        cgroup = None if services.cgroups is None else services.cgroups.create_for_standby(config.name, token)
        if cgroup is not None:
            undo.callback(cgroup.remove)
        stdio = replace(stdio, cgroup=cgroup)
        folder_id = _folder_id(config)
        request = spawn_request(config, services, launch, mark, stdio, OOM_SCORE, command=command)
        process = spawn(request, partial(on_exit, token))
        undo.pop_all()
    if not is_urgent:
        priority.lower_priority(process.pid)
    return StandbyProcess(process, channel, mark, folder_id, cgroup)


def resident_bytes(pid: int) -> int | None:
    """The memory of a process; None if that can't be read."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def restore_priority(process: Process) -> None:
    """Gives the process the usual priority back, as soon as the kernel allows it."""
    if not process.has_ended and not priority.restore_priority(process.pid):
        asyncio.get_running_loop().call_later(ASK_AGAIN_S, restore_priority, process)


def _folder_id(config: ProgramConfig) -> tuple[int, int] | None:
    """Which folder a program would be started in: a link may lead elsewhere by now. None: it can't be told."""
    try:
        owner, directory = owner_ids(config), config.directory or Path.cwd()
        status = look_within_limit(None if owner is None else owner[0], config.name, directory, directory.stat)
    except (OSError, SpawnError):
        return None
    return status.st_dev, status.st_ino
