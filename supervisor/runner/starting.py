"""Starts a process of a program, for an attempt or as its standby: pipes, log capture, process."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.host.channel import Channel
from supervisor.host.process import Exit, Process, SpawnError, spawn
from supervisor.protocol import messages
from supervisor.protocol.launch import Launch
from supervisor.runner.launching import owner_of, spawn_request
from supervisor.runner.services import Services


def start(
    config: ProgramConfig,
    services: Services,
    told: Launch | None,
    mark: str,
    on_exit: Callable[[Exit], None],
    oom_score_adjust: int | None = None,
) -> Process:
    """The process, its output captured. `told`: what a job's worker is told.

    `oom_score_adjust`: instead of the program's own. Raises SpawnError or OSError with everything taken back.
    """
    logs = services.logs
    with contextlib.ExitStack() as handed_over:
        stdout = logs.capture(config.stdout_logfile, config.stdout_logfile_maxbytes, config.stdout_logfile_backups)
        handed_over.callback(os.close, stdout)
        stderr = stdout
        if not config.redirect_stderr:
            stderr = logs.capture(config.stderr_logfile, config.stderr_logfile_maxbytes, config.stderr_logfile_backups)
            handed_over.callback(os.close, stderr)
        request = spawn_request(
            config,
            told,
            environment=services.environment,
            mark=mark,
            server_url=services.server_url,
            stdout=stdout,
            stderr=stderr,
            oom_score_adjust=oom_score_adjust,
        )
        return spawn(request, on_exit)


def open_channel(
    config: ProgramConfig,
    folder: Path,
    attempt: int,
    on_message: Callable[[messages.FromWorker], None],
    on_error: Callable[[str], None],
    found: bool = False,
) -> Channel:
    """The control pipes in `folder`; `found`: those that an earlier daemon made. Raises SpawnError."""
    try:
        return Channel(folder, attempt, owner_of(config), on_message, on_error, found)
    except OSError as error:
        raise SpawnError(
            f"cannot {'open' if found else 'create'} the control pipes in {folder}: {error.strerror}; "
            f"make runtime_dir writable, or point it elsewhere",
            permanent=False,
        ) from error
