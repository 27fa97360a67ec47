"""Finds the file that a command names, and explains why a process could not be started."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from supervisor.host.blocking_calls import is_late, run_within
from supervisor.host.passed_over import PassedOver
from supervisor.protocol import durable

_FIRST_LINE_BYTES = 256  # of which the kernel looks for an interpreter (execve(2))
LOOK_LIMIT_S = 1.0  # a file system answers within a millisecond; all programs wait for it

Result = TypeVar("Result")

_passed_over = PassedOver()

_TRANSIENT = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EIO, errno.ESTALE, errno.EINTR}
    | {errno.ETIMEDOUT}
)
"""Errors that go away by themselves: the next attempt may succeed with nothing changed."""


class SpawnErrorKind(StrEnum):
    """Why a process could not be started, as far as clients distinguish it."""

    NO_FILE = "no-file"
    NOT_EXECUTABLE = "not-executable"
    OTHER = "other"


class SpawnError(Exception):
    """A process could not be started. `permanent`: trying again is useless until somebody changes something.

    `path`: the directory or command that can't be reached, with the error number that the system gave.
    """

    def __init__(
        self,
        text: str,
        *,
        permanent: bool,
        kind: SpawnErrorKind = SpawnErrorKind.OTHER,
        path: Path | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(text)
        self.permanent = permanent
        self.kind = kind
        self.path = path
        self.errno = errno


def look_within_limit(user: int | None, program: str, path: Path | str, look: Callable[[], Result]) -> Result:
    """What a look at a path of a program gives, in the thread of the event loop. `user`: the program's, None: our own.

    The path may lead to a file system that does not answer, as a server that is away, so it takes LOOK_LIMIT_S at most.
    Raises what `look` does, and SpawnError if there is no answer. While a look hangs, no other is begun for the same
    program, or, as root, for the same other user, who may have made many such paths, and for that user for a while.
    """
    other = None if os.geteuid() != 0 else user
    key = "paths", program if other is None else other
    is_waited_for = not is_late(key) and (other is None or not _passed_over.left_s(other, time.monotonic()))
    try:
        if not is_waited_for:
            raise TimeoutError
        return run_within(LOOK_LIMIT_S, key, look)
    except TimeoutError as error:
        if other is not None and is_waited_for:
            _passed_over.add(other, time.monotonic())
        text = f"cannot start {program}: the file system of {path} does not answer; it is tried again"
        raise SpawnError(text, permanent=False, path=Path(path), errno=errno.ETIMEDOUT) from error


def find_command(command: str, environment: Mapping[str, str], directory: Path | None, program: str) -> Path:
    """The executable file that `command` means for a process with this environment and working directory.

    Raises SpawnError if the directory or the command does not exist, or the command can't be executed.
    """
    if not command:
        text = f"cannot start {program}: its command is empty; write the program to run into `command`"
        raise SpawnError(text, permanent=True, kind=SpawnErrorKind.NOT_EXECUTABLE)
    if directory is not None:
        _require_directory(directory, program)
    present: list[Path] = []
    for candidate in _candidates(command, environment.get("PATH", os.defpath), directory or current_folder()):
        if os.path.isfile(candidate):  # noqa: PTH113 - most of a search path is in vain
            if os.access(candidate, os.X_OK):
                return Path(candidate)
            present.append(Path(candidate))
    if present:
        raise SpawnError(
            f"cannot start {program}: {present[0]} is not executable; run chmod +x {present[0]}, or name its "
            f"interpreter in `command`",
            permanent=True,
            kind=SpawnErrorKind.NOT_EXECUTABLE,
        )
    unreachable = directory or Path.cwd()
    unreachable /= command
    number = _errno_of(unreachable) if "/" in command else None
    if number not in (None, errno.ENOENT, errno.ENOTDIR):
        raise SpawnError(
            f"cannot start {program}: cannot look at {unreachable}: {os.strerror(number)}; let its user reach it",
            permanent=number not in _TRANSIENT,
            path=unreachable,
            errno=number,
        )
    where = "" if "/" in command else f" in PATH ({environment.get('PATH', os.defpath)})"
    raise SpawnError(
        f"cannot start {program}: there is no command {command!r}{where}; install it, or give its full path",
        permanent=True,
        kind=SpawnErrorKind.NO_FILE,
        path=unreachable if "/" in command else None,
        errno=number,
    )


def _require_directory(directory: Path, program: str) -> None:
    number = _errno_of(directory)
    if number is None and directory.is_dir():
        return
    if number in (None, errno.ENOENT, errno.ENOTDIR):
        what = "is not a directory" if number is None else "does not exist"
        remedy = "create it, or correct `directory`"
    else:
        what, remedy = f"can't be looked at: {os.strerror(number)}", "let its user enter it, or correct `directory`"
    raise SpawnError(
        f"cannot start {program}: its directory {directory} {what}; {remedy}",
        permanent=number not in _TRANSIENT,
        path=directory,
        errno=errno.ENOTDIR if number is None else number,
    )


def current_folder() -> Path:
    """The current folder; if it was deleted, the root: nothing is found in it either."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


def require_script(script: Path, program: str) -> None:
    """Raises SpawnError if the script that an interpreter is to read can't be looked at."""
    number = _errno_of(script)
    if number is None:
        return
    missing = number in (errno.ENOENT, errno.ENOTDIR)
    what = f"there is no {script}" if missing else f"cannot look at {script}: {os.strerror(number)}"
    raise SpawnError(
        f"cannot start {program}: {what}; correct the path in `command`, or set `directory`",
        permanent=number not in _TRANSIENT,
        path=script,
        errno=number,
    )


def _errno_of(path: Path) -> int | None:
    """The error that looking at a path gives; None if it is there."""
    try:
        os.stat(path)  # noqa: PTH116 - Path.exists() hides most errors
    except OSError as error:
        return error.errno
    return None


def _candidates(command: str, path: str, directory: Path) -> Iterator[str]:
    if "/" in command:
        yield os.path.join(directory, command)  # noqa: PTH118 - as above
    elif command:
        yield from (os.path.join(directory, folder, command) for folder in path.split(os.pathsep))  # noqa: PTH118


def explain(program: str, command: Path, directory: Path | None, error: Exception) -> SpawnError:
    """The SpawnError for what the system answered when `command`, which exists, was to be started."""
    if not isinstance(error, OSError):  # NUL in an argument, '=' in a variable's name
        return SpawnError(f"cannot start {program}: {error}; correct `command` or `environment`", permanent=True)
    if error.errno == errno.ENOENT and (interpreter := _interpreter_of(command)) is not None:
        text = f"there is no {interpreter!r}, which the first line of {command} names; correct that line"
        kind = SpawnErrorKind.NO_FILE
    elif error.errno == errno.ENOEXEC:
        text = f"{command} is neither a binary for this machine nor has a #! line; name its interpreter in `command`"
        kind = SpawnErrorKind.NOT_EXECUTABLE
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = f"{error.strerror}; its user must be able to execute {command} and enter {directory or current_folder()}"
        kind = SpawnErrorKind.NOT_EXECUTABLE
    elif error.errno == errno.ETIMEDOUT:
        places = f"{command}, its interpreter or {directory or current_folder()}"
        text = f"{error.strerror}; what holds {places} does not answer, or somebody has a lease on it"
        kind = SpawnErrorKind.OTHER
    else:
        text, kind = f"{error.strerror or error} ({command}){_remedy(error.errno)}", SpawnErrorKind.OTHER
    return SpawnError(
        f"cannot start {program}: {text}",
        permanent=error.errno not in _TRANSIENT,
        kind=kind,
        path=command,
        errno=error.errno,
    )


def _remedy(number: int | None) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        return "; raise the daemon's limit of open files (ulimit -n)"
    if number in (errno.EAGAIN, errno.ENOMEM):
        return "; free memory, or raise the limit of processes (ulimit -u); it is tried again"
    return ""


def require_interpreter(command: Path, program: str) -> None:
    """Raises SpawnError if the interpreter that the first line of a script names does not exist."""
    interpreter = _interpreter_of(command)
    if interpreter is None or not interpreter.startswith("/"):
        return
    if (number := _errno_of(Path(interpreter))) in (errno.ENOENT, errno.ENOTDIR):
        raise explain(program, command, None, OSError(errno.ENOENT, os.strerror(number)))


def _interpreter_of(command: Path) -> str | None:
    """The interpreter that the first line of a file names, as the kernel reads it (a carriage return belongs to it)."""
    try:
        with durable.open_regular(command) as file:
            line = file.readline(_FIRST_LINE_BYTES)
    except OSError:
        return None
    if not line.startswith(b"#!") or len(line) == _FIRST_LINE_BYTES:
        return None
    name, *_ = line[2:].strip(b" \t\n").replace(b"\t", b" ").split(b" ")
    return os.fsdecode(name) or None
