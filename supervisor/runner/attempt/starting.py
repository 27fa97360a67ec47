"""Starts a process of a program, for an attempt or as its standby: log capture, control pipes, process."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.processes.process import Process, spawn
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.cgroup import Cgroup
from supervisor.protocol import messages
from supervisor.protocol.launch import Launch
from supervisor.runner.attempt.launching import owner_ids, spawn_request
from supervisor.runner.attempt.services import Services


@dataclass(frozen=True, slots=True)
class ChildStdio:
    """What a process is given: descriptors, the socket where it says that it is ready, the control group it is in."""

    stdout: int
    stderr: int
    stdin: int | None = None
    notify: Path | None = None
    cgroup: Cgroup | None = None


def open_output_pipes(
    config: ProgramConfig, logs: LogCapture, attempt: int, handed_over: contextlib.ExitStack
) -> ChildStdio:
    """Both outputs, led to their logs. `handed_over` closes them here. Raises OSError."""
    limits = config.stdout_logfile_maxbytes, config.stdout_logfile_backups
    stdout = stderr = logs.open_pipe(config.stdout_logfile, *limits, _tee_of(config, attempt, "stdout"))
    handed_over.callback(os.close, stdout)
    if not config.redirect_stderr:
        limits = config.stderr_logfile_maxbytes, config.stderr_logfile_backups
        stderr = logs.open_pipe(config.stderr_logfile, *limits, _tee_of(config, attempt, "stderr"))
        handed_over.callback(os.close, stderr)
    return ChildStdio(stdout, stderr)


def _tee_of(config: ProgramConfig, attempt: int, channel: str) -> Tee:
    asked = ("syslog", "journal", "events_enabled", "capture_maxbytes")
    return Tee(config.name, attempt, channel, *(getattr(config, f"{channel}_{each}") for each in asked))


def start_process(
    config: ProgramConfig,
    services: Services,
    told: Launch | None,
    mark: str,
    ends: ChildStdio,
    on_exit: Callable[[Exit], None],
    oom_score_adjust: int | None = None,
) -> Process:
    """The process. `told`: what a job's worker is told; `oom_score_adjust`: instead of the program's own.

    Raises SpawnError.
    """
    request = spawn_request(
        config,
        told,
        environment=services.environment,
        mark=mark,
        server_url=services.server_url,
        stdout=ends.stdout,
        stderr=ends.stderr,
        stdin=ends.stdin,
        notify=ends.notify,
        oom_score_adjust=oom_score_adjust,
    )
    return spawn(request if ends.cgroup is None else replace(request, cgroup=ends.cgroup), on_exit)


def open_control_pipes(
    config: ProgramConfig,
    folder: Path,
    attempt: int,
    on_message: Callable[[messages.FromWorker], None],
    on_error: Callable[[str], None],
    found: bool = False,
) -> ControlPipes:
    """The control pipes in `folder`; `found`: those that an earlier daemon made. Raises SpawnError."""
    try:
        return ControlPipes(folder, attempt, owner_ids(config), on_message, on_error, found)
    except OSError as error:
        raise SpawnError(
            f"cannot {'open' if found else 'create'} the control pipes in {folder}: {error.strerror}; "
            f"make runtime_dir writable, or point it elsewhere",
            permanent=False,
        ) from error
