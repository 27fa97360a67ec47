"""What a process of a program starts with, as an attempt or as its standby: environment, output and control pipes."""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.failures.start_paths import UnreachablePath
from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.processes import marks
from supervisor.host.processes.credentials import Credentials, cached_credentials, find_credentials
from supervisor.host.processes.limits import RESOURCES
from supervisor.host.processes.process_start import SpawnRequest
from supervisor.host.processes.reach import find_closed
from supervisor.host.processes.spawning import (
    SpawnError,
    find_command,
    look_within_limit,
    require_interpreter,
    require_script,
)
from supervisor.host.resources.cgroup import Cgroup
from supervisor.host.service.loop_share import LoopShare
from supervisor.protocol import allocation, mount_points
from supervisor.protocol.disk_space import DISK_FULL, full_disk_reason
from supervisor.protocol.wire import launch, messages
from supervisor.protocol.wire.launch import Launch
from supervisor.runner.attempt.launching import (
    check_reach,
    config_digest,
    environment_of_program,
    owner_ids,
    script_path,
)
from supervisor.runner.attempt.services import Services

LOOK_TIMEOUT_S = 10.0  # at what a start needs, before a stop that can wait; a file system that is away may never answer


@dataclass(frozen=True, slots=True)
class ChildStdio:
    """What a process starts with: descriptors, the path of its notification socket, its control group."""

    stdout: int
    stderr: int
    stdin: int | None = None
    notify: Path | None = None
    cgroup: Cgroup | None = None


def open_output_pipes(
    config: ProgramConfig, logs: LogCapture, attempt: int, handed_over: contextlib.ExitStack
) -> ChildStdio:
    """Opens pipes to the logs of both outputs; `handed_over` closes the daemon's copies.

    Raises OSError, and SpawnError if there is no such user.
    """
    user = owner_ids(config)
    uid = 0 if user is None else user[0]
    stdout = stderr = _open_output_pipe(config, logs, attempt, "stdout", uid)
    handed_over.callback(os.close, stdout)
    if not config.redirect_stderr:
        stderr = _open_output_pipe(config, logs, attempt, "stderr", uid)
        handed_over.callback(os.close, stderr)
    return ChildStdio(stdout, stderr)


def note_output_begin(config: ProgramConfig, logs: LogCapture, attempt: int) -> None:
    """Has the place recorded where the output of the attempt begins in its logs. It may not have printed yet."""
    channels = ("stdout",) if config.redirect_stderr else ("stdout", "stderr")
    for channel in channels:
        if (path := getattr(config, f"{channel}_logfile")) is not None:
            logs.begin_attempt(config.name, attempt, channel, path)


def _open_output_pipe(config: ProgramConfig, logs: LogCapture, attempt: int, channel: str, uid: int) -> int:
    file, maxbytes, backups, compress = (
        getattr(config, f"{channel}_{key}")
        for key in ("logfile", "logfile_maxbytes", "logfile_backups", "logfile_compress")
    )
    copied = ("syslog", "journal", "events_enabled", "capture_maxbytes", "line_prefix")
    tee = Tee(config.name, attempt, channel, *(getattr(config, f"{channel}_{key}") for key in copied))
    return logs.open_pipe(file, maxbytes, backups, tee, uid, compress)


def spawn_request(
    config: ProgramConfig,
    services: Services,
    worker_launch: Launch | None,
    mark: str,
    stdio: ChildStdio,
    oom_score_adjust: int | None = None,
    visible_gpus: str | None = None,
    command: tuple[str, ...] | None = None,
) -> SpawnRequest:
    """How the process is to be started. `worker_launch`: a job's launch settings; `oom_score_adjust`: instead of the
    program's own; `visible_gpus`: its CUDA_VISIBLE_DEVICES instead of its own; `command`: what is run instead of the
    program's own.

    Raises SpawnError, also if its user does not exist or can't be switched to.
    """
    who = cached_credentials(config.user) if config.user else None
    if command is None and (script := script_path(config)) is not None:
        user = None if who is None else who.uid
        look_within_limit(user, config.name, script, partial(require_script, script, config.name))
    return SpawnRequest(
        program=config.name,
        argv=command or config.command,
        directory=config.directory,
        environment={
            **_environment_of_attempt(config, services, who, mark),
            **({"CUDA_VISIBLE_DEVICES": visible_gpus} if visible_gpus is not None else {}),
            **({"NOTIFY_SOCKET": str(stdio.notify)} if stdio.notify else {}),
            **(worker_launch.to_environment() if worker_launch is not None else {}),
        },
        credentials=who,
        umask=config.umask,
        group_ends_with_it=config.job is not None,
        stdout=stdio.stdout,
        stderr=stdio.stderr,
        stdin=stdio.stdin,
        limits={key: value for key in RESOURCES if (value := getattr(config, key)) is not None},
        oom_score_adjust=config.oom_score_adjust if oom_score_adjust is None else oom_score_adjust,
        cgroup=stdio.cgroup,
        keeps_orphans=config.job is not None and stdio.cgroup is None,
    )


def _environment_of_attempt(
    config: ProgramConfig, services: Services, who: Credentials | None, mark: str
) -> dict[str, str]:
    """What a new process of a program is started with."""
    return {
        **({"PYTHONHASHSEED": launch.HASH_SEED} if config.job is not None else {}),
        marks.VARIABLE: mark,
        marks.CONFIGURATION: config_digest(config),
        **environment_of_program(config, services, who),
        **({allocation.CLUSTER: services.gang.cluster} if services.gang and services.gang.cluster else {}),
    }


async def find_start_obstacle(config: ProgramConfig, services: Services, *, looks_up_user: bool = False) -> str | None:
    """Why the process of a program could not be started now: what of its paths can't be reached; None if all can.

    A file system that does not answer keeps nobody else waiting. `looks_up_user`: whether its user has to be there too.
    """
    folder = config.directory or Path(config.command[0]).parent
    look = partial(_start_obstacle, config, services.environment, looks_up_user)
    try:
        return await services.blocking_calls.run_for_folder(folder, look)
    except RuntimeError as failure:  # the host has no thread to spare
        return f"cannot look at {folder}: {failure}"


async def find_restart_obstacle(config: ProgramConfig, services: Services) -> str | None:
    """Why a program that is stopped in order to start again could not; None if nothing is seen."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await find_start_obstacle(config, services, looks_up_user=True)
    except TimeoutError:
        return f"its command, directory or user was not found within {LOOK_TIMEOUT_S:g} s"


def _start_obstacle(config: ProgramConfig, environment: Mapping[str, str], looks_up_user: bool) -> str | None:
    """Why the process of a program could not be started now: what of its paths can't be reached; None if all can."""
    try:
        command = find_command(config.command[0], {**environment, **config.environment}, config.directory, config.name)
        require_interpreter(command, config.name)
        if looks_up_user and config.user is not None:
            who = find_credentials(config.user).identity
            for path in (command, command.resolve(), *([] if config.directory is None else [config.directory])):
                if (closed := find_closed(path, who)) is not None:
                    text = f"cannot start {config.name}: {config.user} may not enter or execute {closed}"
                    return f"{text}; run chmod o+x {closed}, or correct `command`, `directory` or `user`"
        if (script := script_path(config)) is not None:
            require_script(script, config.name)
    except SpawnError as error:
        return str(error)
    return None


def spawn_error_of(error: Exception, config: ProgramConfig, unable_to: str, log: FilteringBoundLogger) -> SpawnError:
    """What kept a process from being started, as a SpawnError. `unable_to`: what an OSError kept the daemon from."""
    if isinstance(error, SpawnError):
        return error
    if not isinstance(error, OSError):
        log.error("internal.failed", error=repr(error), exc_info=error)
        return SpawnError(f"internal error: {error!r}; please report it with the daemon's log", permanent=False)
    text = f"cannot start {config.name}: cannot {unable_to}: {error}; it will be tried again"
    return SpawnError(text, permanent=False)


def unreachable_path(error: SpawnError) -> UnreachablePath | None:
    """The path that can't be reached, if that is why, and what is mounted there."""
    if (path := error.path) is None or error.errno is None:
        return None
    mounted, unmounted = mount_points.mounted_point(path), mount_points.unmounted_point(path)
    return UnreachablePath(str(path), error.errno, mounted, None if unmounted is None else str(unmounted))


def open_control_pipes(
    config: ProgramConfig,
    folder: Path,
    attempt: int,
    on_message: Callable[[messages.FromWorker], None],
    on_error: Callable[[str], None],
    is_there: bool = False,
    share: LoopShare | None = None,
) -> ControlPipes:
    """The control pipes in `folder`; `is_there`: those that an earlier daemon made; `share`: as in ControlPipes.

    Raises SpawnError.
    """
    owner = None
    if not is_there:  # else they have their owner, and a database of users that is away is no reason to end the worker
        check_reach(config, folder)
        owner = owner_ids(config)
    try:
        return ControlPipes(folder, attempt, owner, on_message, on_error, is_there, share)
    except OSError as error:
        raise SpawnError(
            f"cannot {'open' if is_there else 'create'} the control pipes in {folder}: "
            f"{full_disk_reason(error, folder)}; "
            f"{_pipes_remedy(error, folder.parent.parent)}",
            permanent=False,
        ) from error


def _pipes_remedy(error: OSError, runtime_dir: Path) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the daemon's limit of open files (ulimit -n)"
    if error.errno in DISK_FULL:  # its folders belong to the users of jobs
        return f"free space there: du -s {runtime_dir}/* says which job has taken it"
    return "make runtime_dir writable, or point it elsewhere"
