"""Starts the logger of a state folder, and reaps a dead one."""

import contextlib
import os
import select
import subprocess
from pathlib import Path

from supervisor.host.children import own_command, start_own
from supervisor.host.logs.link import ERRORS
from supervisor.host.logs.logger import EXIT_BUSY

START_TIMEOUT_S = 20.0  # the interpreter starts in 50 ms; the host may be busy, its disks slow
EXIT_TIMEOUT_S = 1.0  # from the end of its connection to the end of the process


class LoggerStartError(Exception):
    """The logger can't be started; the text says why."""


def start_logger(state_dir: Path) -> bool:
    """Starts a logger, as the daemon's user, in a session of its own; returns once it listens.

    Blocks: call it from a thread. False if there is one already, which may be about to exit. It gets an empty
    environment, above all no mark of an attempt, and no descriptors but a file for errors. Raises LoggerStartError.
    """
    errors = state_dir / ERRORS
    command = own_command("supervisor.host.logs.logger", str(state_dir), flags=("-S",))
    try:
        with open(errors, "wb", opener=_open_private) as file:
            status = _status_of(start_own(command, {}, stderr=file.fileno()))
    except (OSError, subprocess.SubprocessError) as error:
        raise LoggerStartError(f"cannot start the logger: {error}; retrying") from error
    if status not in (0, EXIT_BUSY):
        raise LoggerStartError(f"cannot start the logger: {last_error_line(state_dir)} (more in {errors}); retrying")
    return status == 0


def last_error_line(state_dir: Path) -> str:
    """The last line that the latest logger wrote to standard error: the exception that ended it, or nothing."""
    try:
        return (state_dir / ERRORS).read_text(errors="replace").strip().rpartition("\n")[2]
    except OSError as error:
        return f"its standard error can't be read: {error.strerror}"


def reap_logger(pid: int) -> None:
    """Reaps a logger that has exited, if it is our child, as it is when the daemon is process 1 of a container."""
    with contextlib.suppress(OSError):  # not a child of ours
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return
        ended = os.pidfd_open(pid)
        try:
            waiting = select.poll()  # select(2) takes no descriptor from 1024 on
            waiting.register(ended, select.POLLIN)
            waiting.poll(1000 * EXIT_TIMEOUT_S)
        finally:
            os.close(ended)
        os.waitpid(pid, os.WNOHANG)


def _status_of(process: subprocess.Popen[bytes]) -> int:
    """The exit status, once it listens. Raises subprocess.TimeoutExpired, and then has killed it."""
    with process:
        try:
            return process.wait(START_TIMEOUT_S)
        finally:
            process.kill()  # the logger itself is a fork of it


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
