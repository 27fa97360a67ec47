"""Recognises the processes that a daemon started, even after their parent, session and the daemon itself are gone.

Every process is started with an environment variable, its mark, that names the daemon's state folder, the program and
the attempt. Children inherit it, and /proc/PID/environ shows it for as long as a process lives.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

VARIABLE = "SUPERVISOR_ATTEMPT"
CONFIGURATION = "SUPERVISOR_CONFIGURATION"  # digest of the configuration that the program was started from
_STANDBY = "standby-"


def mark_of_attempt(state_dir: Path, program: str, attempt: int) -> str:
    """The mark of one attempt. The name of a program may have a colon (`GROUP:PROCESS`), but never a slash."""
    return f"{state_dir}:{program.replace(':', '/')}:{attempt}"


def mark_of_standby(state_dir: Path, program: str, token: str) -> str:
    """The mark of a standby, which keeps it when it becomes an attempt. `token`: unique to this standby."""
    return f"{mark_of_attempt(state_dir, program, 0)[:-1]}{_STANDBY}{token}"


def is_standby(value: str) -> bool:
    """Whether a mark belongs to a process that began as a standby."""
    return value.rsplit(":", 1)[-1].startswith(_STANDBY)


def read_mark(pid: int) -> str | None:
    """A process's mark; None if it has none, is gone, or belongs to another user."""
    return _read(pid)


def program_of(value: str) -> str:
    """The program in a mark."""
    return value.rsplit(":", 2)[-2].replace("/", ":")


def attempt_of(value: str) -> int:
    """The attempt in a mark; 0 in that of a standby, and in one that the daemon did not write."""
    text = value.rsplit(":", 1)[-1]
    return int(text) if text.isascii() and text.isdecimal() else 0


def read_configuration_digest(pid: int) -> str | None:
    """The digest of the configuration a process was started from; None if it does not say."""
    return _read(pid, CONFIGURATION)


def processes_of_attempt(value: str) -> list[psutil.Process]:
    """The live processes with this mark. Reads all of /proc: call it from a thread."""
    return [process for _, process in _marked_processes(lambda found: found == value)]


def processes_of_daemon(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """The live processes that daemons with this state folder started, by mark. Reads all of /proc."""
    found: dict[str, list[psutil.Process]] = {}
    start = f"{state_dir}:"
    for value, process in _marked_processes(
        lambda mark: mark.startswith(start) and mark.count(":", len(start) - 1) == 2
    ):
        found.setdefault(value, []).append(process)
    return found


def _marked_processes(is_wanted: Callable[[str], bool]) -> Iterable[tuple[str, psutil.Process]]:
    for pid in psutil.pids():
        value = _read(pid)
        if value is not None and is_wanted(value) and pid != os.getpid():
            with contextlib.suppress(psutil.Error):  # gone meanwhile
                process = psutil.Process(pid)
                if _read(pid) == value:  # else the pid now belongs to another process
                    yield value, process


def _read(pid: int, variable: str = VARIABLE) -> str | None:
    """A variable of the environment that a process was started with; None if it can't be read."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    _, is_there, rest = (b"\0" + variables).partition(f"\0{variable}=".encode())
    return os.fsdecode(rest.partition(b"\0")[0]) if is_there else None
