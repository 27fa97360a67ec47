"""Recognises the processes that a daemon started, even after their parent, session and the daemon itself are gone.

Every process is started with an environment variable, its mark: `STATE_DIR:PROGRAM:ATTEMPT:DEVICE-INODE-SIGNATURE`.
Children inherit it, and /proc/PID/environ shows it for as long as a process lives.

Anybody can start a process with any environment, so a mark counts only if its signature is right: a keyed hash of
the rest, with a random key that is made once and kept in the state folder, readable by the daemon's user
alone. The key is also what tells this daemon's processes from those of one in another container, whose state folder has
the same path. Device and inode are those of the state folder: a copy of the folder has its key and may even have its
path, but is another folder, whereas one that was renamed is the same. A mark of an earlier version lacks them and
counts by its path.
"""

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import structlog

from supervisor.host.processes.environments import (
    ENVIRONMENT_LIMIT_S,
    LOOP_LIMIT_S,
    InExecve,
    look_at_all,
    read_environment,
)

VARIABLE = "SUPERVISOR_ATTEMPT"
CONFIGURATION = "SUPERVISOR_CONFIGURATION"  # digest of the configuration that the program was started from
KEY_FILE = "identity"  # in the state folder
MAX_DIGITS = 10  # of an attempt; a longer text is none of ours
_KEY_BYTES = 32
_STANDBY = "standby-"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """Which folder it is, whatever its path: a copy has another one. As text: `DEVICE-INODE`, in hexadecimal digits."""

    device: int
    inode: int

    def __str__(self) -> str:
        return f"{self.device:x}-{self.inode:x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The identity in a text that `str` gave. Raises ValueError."""
        device, inode = text.split("-")
        return cls(int(device, 16), int(inode, 16))


def identity_of_folder(state_dir: Path) -> FolderIdentity | None:
    """The state folder's; None if it can't be looked at."""
    try:
        status = state_dir.stat()
    except OSError:
        return None
    return FolderIdentity(status.st_dev, status.st_ino)


def mark_of_attempt(state_dir: Path, program: str, attempt: int) -> str:
    """The mark of one attempt. The name of a program may have a colon (`GROUP:PROCESS`), but never a slash."""
    return _sign(_key_of(state_dir), str(state_dir), program, str(attempt), _own_identity(state_dir))


def mark_of_standby(state_dir: Path, program: str, token: str) -> str:
    """The mark of a standby, which keeps it when it becomes an attempt. `token`: unique to this standby."""
    return _sign(_key_of(state_dir), str(state_dir), program, f"{_STANDBY}{token}", _own_identity(state_dir))


def is_standby(value: str) -> bool:
    """Whether a mark belongs to a process that began as a standby."""
    return _attempt_text(value).startswith(_STANDBY)


def is_of_program(value: str | None, state_dir: Path, program: str) -> bool:
    """Whether this daemon signed a mark for an attempt or a standby of the program."""
    return value is not None and program_of(value) == program and is_of_daemon(value, state_dir)


def is_of_daemon(value: str, state_dir: Path) -> bool:
    """Whether daemons with this state folder signed a mark."""
    return _is_signed(value, _key_of(state_dir), state_dir, identity_of_folder(state_dir))


def read_mark(pid: int, limit_s: float = ENVIRONMENT_LIMIT_S) -> str | None:
    """A process's mark; None if it has none, is gone, belongs to another user, is in the middle of execve(2), or does
    not answer within `limit_s`."""
    return _read_now(pid, limit_s=limit_s)


def await_mark(pid: int) -> str | None:
    """A process's mark, also of one that is in the middle of execve(2). May wait: call it from a thread."""
    return next(look_at_all([pid], _read), None)


def state_dir_of(value: str) -> str | None:
    """The path that the state folder of a mark's daemon had; None if the text is no mark."""
    return value.rsplit(":", 3)[0] if value.count(":") > 2 else None


def folder_of(value: str) -> FolderIdentity | None:
    """The state folder that a mark names; None in the mark of an earlier version, which names none."""
    try:
        return FolderIdentity.parse(value.rpartition(":")[2].rpartition("-")[0])
    except ValueError:
        return None


def program_of(value: str) -> str:
    """The program in a mark."""
    return value.rsplit(":", 3)[-3].replace("/", ":") if value.count(":") > 2 else ""


def attempt_of(value: str) -> int:
    """The attempt in a mark; 0 in that of a standby."""
    text = _attempt_text(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else 0


def read_configuration_digest(pid: int) -> str | None:
    """The digest of the configuration a process was started from; None if it does not say. For the event loop too."""
    return _read_now(pid, CONFIGURATION, LOOP_LIMIT_S)


def processes_of_attempt(value: str) -> list[psutil.Process]:
    """The live processes with this mark. Reads all of /proc, and may wait: call it from a thread."""
    return [process for _, process in _marked_processes(lambda mark: mark == value)]


def processes_of_daemon(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """The live processes that daemons with this state folder started, by mark. Reads all of /proc."""
    processes: dict[str, list[psutil.Process]] = {}
    key = _read_key(state_dir)
    if key is None:
        return processes
    identity = identity_of_folder(state_dir)
    for value, process in _marked_processes(lambda mark: _is_signed(mark, key, state_dir, identity)):
        processes.setdefault(value, []).append(process)
    return processes


def processes_at_path(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """The live processes whose mark has the path of this state folder and names another folder, by mark.

    That was there before this one: it was deleted or replaced, as by a backup. Anybody can have such a mark.
    """
    identity = identity_of_folder(state_dir)
    processes: dict[str, list[psutil.Process]] = {}
    for value, process in _marked_processes(lambda mark: state_dir_of(mark) == str(state_dir)):
        if folder_of(value) not in (None, identity):
            processes.setdefault(value, []).append(process)
    return processes


def is_signed_here(value: str, state_dir: Path) -> bool:
    """Whether a mark has a signature by the key in this state folder, whichever folder it names."""
    key = _read_key(state_dir)
    return key is not None and _is_signed(value, key, state_dir, folder_of(value))


def _marked_processes(is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, psutil.Process]]:
    def look(pid: int) -> tuple[str, psutil.Process] | None:
        value = _read(pid)
        if value is None or not is_wanted(value) or pid == os.getpid():
            return None
        try:
            process = psutil.Process(pid)
        except psutil.Error:  # gone meanwhile
            return None
        return (value, process) if _read(pid) == value else None  # else the pid now belongs to another process

    return (marked for marked in look_at_all(psutil.pids(), look) if marked is not None)


def _read(pid: int, variable: str = VARIABLE, limit_s: float = ENVIRONMENT_LIMIT_S) -> str | None:
    """A variable of the environment that a process was started with; None if it can't be read. Raises InExecve."""
    try:
        variables = read_environment(pid, limit_s)
    except OSError:
        return None
    _, is_there, rest = (b"\0" + variables).partition(f"\0{variable}=".encode())
    return os.fsdecode(rest.partition(b"\0")[0]) if is_there else None


def _read_now(pid: int, variable: str = VARIABLE, limit_s: float = ENVIRONMENT_LIMIT_S) -> str | None:
    with contextlib.suppress(InExecve):
        return _read(pid, variable, limit_s)
    return None


def _attempt_text(value: str) -> str:
    return value.rsplit(":", 2)[-2] if value.count(":") > 1 else ""


def _sign(key: bytes, state_dir: str, program: str, attempt: str, identity: FolderIdentity | None) -> str:
    """`identity`: None as an earlier version did, whose marks name no folder."""
    text = f"{state_dir}:{program.replace(':', '/')}:{attempt}:" + (f"{identity}-" if identity is not None else "")
    signed = text if identity is not None else text[:-1]
    return f"{text}{hmac.digest(key, os.fsencode(signed), hashlib.sha256)[:16].hex()}"


def _is_signed(value: str, key: bytes, state_dir: Path, identity: FolderIdentity | None) -> bool:
    """Whether the mark is of this folder: by its identity, or, in a mark of an earlier version, by its path."""
    path, named = state_dir_of(value), folder_of(value)
    if path is None or (path != str(state_dir) if named is None else named != identity):
        return False
    expected = _sign(key, path, program_of(value), _attempt_text(value), named)
    return hmac.compare_digest(os.fsencode(value), os.fsencode(expected))


@functools.cache
def _own_identity(state_dir: Path) -> FolderIdentity | None:
    """That of the folder that this process uses, which it keeps if the folder is renamed meanwhile."""
    return identity_of_folder(state_dir)


@functools.cache
def _key_of(state_dir: Path) -> bytes:
    """The key in the state folder, which is made if there is none; one for this process alone if it can't be kept."""
    key = _read_key(state_dir)
    if key is not None:
        return key
    try:
        return _create_key(state_dir)
    except OSError as error:
        effect = "processes left by this daemon will not be recognised by the next one"
        remedy = "make room in state_dir or let the daemon write to it, then reload"
        path, reason = str(state_dir / KEY_FILE), error.strerror
        log.warning("identity.not_kept", path=path, reason=reason, effect=effect, remedy=remedy)
        return secrets.token_bytes(_KEY_BYTES)


def _read_key(state_dir: Path) -> bytes | None:
    """None if there is none, or it is damaged."""
    try:
        descriptor = os.open(state_dir / KEY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(_KEY_BYTES + 1)
    return key if len(key) == _KEY_BYTES else None


def keep_key(state_dir: Path) -> None:
    """Puts the key of this process back where somebody deleted it, as with the whole folder. Raises OSError."""
    if not (state_dir / KEY_FILE).exists():
        _write_key(state_dir, _key_of(state_dir))


def _create_key(state_dir: Path) -> bytes:
    key = secrets.token_bytes(_KEY_BYTES)
    _write_key(state_dir, key)
    return key


def _write_key(state_dir: Path, key: bytes) -> None:
    path, temporary = state_dir / KEY_FILE, state_dir / f".{KEY_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)  # one daemon at a time has the folder
