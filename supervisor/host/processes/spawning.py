"""What has to be settled before a process can start: which file, which user; and why it could not."""

import errno
import os
import pwd
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

_PASSING = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY, errno.EIO, errno.ESTALE, errno.EINTR}
)
"""Errors that go away by themselves: the next attempt may succeed with nothing changed."""


class SpawnErrorKind(StrEnum):
    """What stood in the way, as far as clients can tell it apart."""

    NO_FILE = "no-file"
    NOT_EXECUTABLE = "not-executable"
    OTHER = "other"


class SpawnError(Exception):
    """A process could not be started. `permanent`: it can't be until somebody changes something."""

    def __init__(self, text: str, *, permanent: bool, kind: SpawnErrorKind = SpawnErrorKind.OTHER) -> None:
        super().__init__(text)
        self.permanent = permanent
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user, primary group and supplementary groups a process runs with."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def credentials(user: str) -> Credentials:
    """What a process of `user` (a name or a number) runs with.

    Raises SpawnError if there is no such user, or if this process is not root and not that user.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isascii() and user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError) as error:
        raise SpawnError(
            f"cannot run as {user}: this host has no such user; create it, or correct `user`", permanent=True
        ) from error
    if os.geteuid() not in (0, entry.pw_uid):
        raise SpawnError(
            f"cannot run as {user}: only root can start processes of another user and this daemon runs as uid "
            f"{os.geteuid()}; start it as root, or remove `user`",
            permanent=True,
        )
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Credentials(entry.pw_uid, entry.pw_gid, groups)


def find_command(command: str, environment: Mapping[str, str], directory: Path | None, program: str) -> Path:
    """The executable file that `command` means for a process with this environment and working directory.

    Raises SpawnError if the directory or the command does not exist, or the command can't be executed.
    """
    if directory is not None and not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise SpawnError(
            f"cannot start {program}: its directory {directory} {what}; create it, or correct `directory`",
            permanent=True,
        )
    present: list[Path] = []
    for candidate in _candidates(command, environment.get("PATH", os.defpath), directory or Path.cwd()):
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
    where = "" if "/" in command else f" in PATH ({environment.get('PATH', os.defpath)})"
    raise SpawnError(
        f"cannot start {program}: there is no command {command!r}{where}; install it, or give its full path",
        permanent=True,
        kind=SpawnErrorKind.NO_FILE,
    )


def _candidates(command: str, path: str, directory: Path) -> Iterator[str]:
    if "/" in command:
        yield os.path.join(directory, command)  # noqa: PTH118 - as above
    elif command:
        yield from (os.path.join(directory, folder, command) for folder in path.split(os.pathsep))  # noqa: PTH118


def place_for_words() -> IO[bytes]:
    """A file without a name for what a command says; where none can be made, as on a full disk, its words are lost.

    Raises OSError.
    """
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return Path(os.devnull).open("w+b")


def explain(program: str, command: Path, directory: Path | None, error: Exception) -> SpawnError:
    """The SpawnError for what the system answered when `command`, which exists, was to be started."""
    if not isinstance(error, OSError):  # NUL in an argument, '=' in a variable's name
        return SpawnError(f"cannot start {program}: {error}; correct `command` or `environment`", permanent=True)
    if error.errno == errno.ENOENT and _has_interpreter_line(command):
        text = f"the interpreter in the first line of {command} does not exist; correct that line"
        kind = SpawnErrorKind.NO_FILE
    elif error.errno == errno.ENOEXEC:
        text = f"{command} is neither a binary for this machine nor has a #! line; name its interpreter in `command`"
        kind = SpawnErrorKind.NOT_EXECUTABLE
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = f"{error.strerror}; its user must be able to execute {command} and enter {directory or Path.cwd()}"
        kind = SpawnErrorKind.NOT_EXECUTABLE
    else:
        text, kind = f"{error.strerror or error} ({command}){_remedy(error.errno)}", SpawnErrorKind.OTHER
    return SpawnError(f"cannot start {program}: {text}", permanent=error.errno not in _PASSING, kind=kind)


def _remedy(number: int | None) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        return "; raise the daemon's limit of open files (ulimit -n)"
    if number in (errno.EAGAIN, errno.ENOMEM):
        return "; free memory, or raise the limit of processes (ulimit -u); it is tried again"
    return ""


def _has_interpreter_line(command: Path) -> bool:
    try:
        with command.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
