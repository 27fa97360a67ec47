"""Starts the logger of a state folder, and reaps a dead one."""

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import supervisor
from supervisor.host.logs.link import ERRORS
from supervisor.host.logs.logger import EXIT_BUSY

START_TIMEOUT_S = 20.0  # the interpreter starts in 50 ms; the host may be busy, its disks slow
EXIT_TIMEOUT_S = 1.0  # from the end of its connection to the end of the process

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.host.logs.logger import main; main()"


class LoggerStartError(Exception):
    """The logger can't be started; the text says why."""


def start_logger(state_dir: Path) -> bool:
    """Starts a logger, as the daemon's user, in a session of its own; returns once it listens.

    Blocks: call it from a thread. False if there is one already, which may be about to exit. It gets an empty
    environment, above all no mark of an attempt, and no descriptors but a file for errors. Raises LoggerStartError.
    """
    errors = state_dir / ERRORS
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, str(_import_folder()), str(state_dir)]
    try:
        with open(errors, "wb", opener=_open_private) as file:
            started = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={},
                start_new_session=True,
                timeout=START_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise LoggerStartError(f"cannot start the logger: {error}; retrying") from error
    if started.returncode not in (0, EXIT_BUSY):
        raise LoggerStartError(f"cannot start the logger: {last_error_line(state_dir)} (more in {errors}); retrying")
    return started.returncode == 0


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
            select.select([ended], [], [], EXIT_TIMEOUT_S)
        finally:
            os.close(ended)
        os.waitpid(pid, os.WNOHANG)


def _import_folder() -> Path:
    """The folder that contains the package `supervisor`."""
    return Path(supervisor.__file__).parents[1]


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
