"""Starts the log keeper of a state folder, and sees dead ones off."""

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import supervisor
from supervisor.host.logs.link import ERRORS
from supervisor.host.logs.logger import EXIT_BUSY

START_S = 20.0  # the interpreter starts in 50 ms; the machine may be busy, its disks slow
DEATH_S = 1.0  # between the end of its connections and of the process

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.host.logs.logger import main; main()"


class LoggerStartError(Exception):
    """The keeper could not be started; the text says why."""


def start(state_dir: Path) -> bool:
    """Starts a keeper, as our own user, in a session of its own; returns once it listens.

    Waits for it: call it from a thread. False if there is one already, which may be about to end. Raises KeeperError.
    It gets an empty environment, above all no mark of an attempt, and no descriptor but a file for its last words.
    """
    errors = state_dir / ERRORS
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, str(_packages()), str(state_dir)]
    try:
        with open(errors, "wb", opener=_private) as file:
            started = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={},
                start_new_session=True,
                timeout=START_S,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise LoggerStartError(f"cannot start the log keeper: {error}; it is tried again") from error
    if started.returncode not in (0, EXIT_BUSY):
        raise LoggerStartError(
            f"cannot start the log keeper: {last_word(state_dir)} (all of it is in {errors}); it is tried again"
        )
    return started.returncode == 0


def last_word(state_dir: Path) -> str:
    """The last line that the latest keeper wrote on standard error: an exception if one ended it, or nothing."""
    try:
        return (state_dir / ERRORS).read_text(errors="replace").strip().rpartition("\n")[2]
    except OSError as error:
        return f"its last words can't be read: {error.strerror}"


def bury(pid: int) -> None:
    """Reaps a keeper that has died, if it was our child: as process 1 of a container we inherit it."""
    with contextlib.suppress(OSError):  # no child of ours
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return
        ended = os.pidfd_open(pid)
        try:
            select.select([ended], [], [], DEATH_S)
        finally:
            os.close(ended)
        os.waitpid(pid, os.WNOHANG)


def _packages() -> Path:
    """The folder that has the package `supervisor`."""
    return Path(supervisor.__file__).parents[1]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
