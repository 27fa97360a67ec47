"""Makes sure that one daemon uses a state folder and a runtime_dir, and that PyPI's Supervisor is not in the same
environment.
"""

import asyncio
import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import structlog

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.processes import marks
from supervisor.host.user_folders.guarded_open import guarded_folder, open_guarded
from supervisor.protocol import durable
from supervisor.protocol.installation import install_stepkeeper

LOCK = "lock"
OWNER = ".used-by"  # in runtime_dir: which folder that is, and the state folder of its daemon
MAX_OWNER_BYTES = 8192
CLAIMED_EVERY_S = 30.0  # what empties the folder does so once a day, and another daemon is seldom started just then

log = structlog.get_logger()


class AlreadyRunning(Exception):
    """Another daemon uses the state folder, or runtime_dir; the text says which and what to do."""


class SharedEnvironment(Exception):
    """PyPI's Supervisor is installed in this Python environment; the text says what to do."""


def _may_hold_supervisor(folder: str) -> bool:
    try:
        return any(fnmatch(name, "supervisor[-.]*-info") for name in os.listdir(folder or "."))  # noqa: PTH208 - names
    except OSError:  # it need not exist, or be readable
        return False


def refuse_shared_environment() -> None:
    """Raises SharedEnvironment if the distribution `supervisor` is installed in this environment.

    It installs a package and commands of the same names, so one of the two is broken.
    """
    if not any(map(_may_hold_supervisor, sys.path)):
        return
    from importlib import metadata  # 1 MiB, and seldom needed

    try:
        version = metadata.version("supervisor")
    except metadata.PackageNotFoundError:
        return
    raise SharedEnvironment(
        f"cannot start supervisord: Supervisor {version} is installed in the same Python environment, and the two "
        f"overwrite each other's files; install stepkeeper into an environment of its own: python -m venv DIR, then "
        f"{install_stepkeeper('DIR/bin/python')}"
    )


class StateFolder:
    """The folder with the ledger and a lock, which this process holds until it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def lock(self) -> None:
        """Creates the folder and takes its lock.

        Other users may pass through the folder to the control pipes of their own jobs, but not list it. Raises
        AlreadyRunning if another daemon holds the lock, OSError if the folder can't be made.
        """
        if not self.path.exists():
            self.path.mkdir(parents=True)
            self.path.chmod(0o711)  # whatever the umask
        self._descriptor = self._lock_file()

    def lock_again(self) -> bool:
        """Locks what is at its path now, if somebody replaced the folder or its lock; whether another daemon has it.

        A folder that is gone is left alone: it may have been moved. Raises OSError.
        """
        try:
            new, held = (self.path / LOCK).stat(), os.fstat(self._descriptor)
            is_held = (new.st_dev, new.st_ino) == (held.st_dev, held.st_ino)
        except FileNotFoundError:
            is_held = not self.path.exists()
        if is_held:
            return False
        try:
            descriptor = self._lock_file()
        except AlreadyRunning:
            return True
        os.close(self._descriptor)
        self._descriptor = descriptor
        self.write_pid()
        return False

    def _lock_file(self) -> int:
        """A descriptor that holds the lock. Raises AlreadyRunning, OSError."""
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise AlreadyRunning(
                f"cannot start: another supervisord (pid {holder}) uses the state folder {self.path}; "
                f"stop it, or give this one a state_dir of its own"
            ) from None
        return descriptor

    def write_pid(self) -> None:
        """Writes our pid into the lock file, for the error message of a second daemon."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)


def claim_runtime_dir(runtime_dir: Path, state_dir: Path) -> None:
    """Notes in the folder of the control pipes whose it is: attempts of two daemons have the same numbers there, and
    each would take the other's for left over.

    Call it with the state folder locked. Raises AlreadyRunning if another live daemon has it. Where the folder can't be
    made, or written, whatever needs it says so.
    """
    with contextlib.suppress(OSError):
        if not runtime_dir.exists():
            runtime_dir.mkdir(parents=True)
            runtime_dir.chmod(0o711)  # despite the umask: the users of jobs have to reach their pipes
        status, path = runtime_dir.stat(), runtime_dir / OWNER
        identity = f"{status.st_dev:x}-{status.st_ino:x}"
        other = _owner_of(path, identity)
        if other is not None and _is_of_another(other, state_dir):
            raise AlreadyRunning(
                f"cannot start: another supervisord, with the state folder {other}, uses runtime_dir {runtime_dir}; "
                "give this one a runtime_dir of its own, or delete that line"
            )
        if other == (own := state_dir.resolve()):
            return
        descriptor = open_guarded(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, os.fsencode(f"{identity} {own}"))
        finally:
            os.close(descriptor)


async def keep_folders(
    state: StateFolder, runtime_dir: Path, calls: BlockingCalls, every_s: float = CLAIMED_EVERY_S
) -> None:
    """Claims both folders again where one is emptied or replaced, as by systemd-tmpfiles; until it is cancelled.

    The key of the state folder comes back too, by which the next daemon knows the workers of this one.
    """
    taken = {runtime_dir: False, state.path: False}
    looks = {
        runtime_dir: partial(_is_runtime_dir_taken, runtime_dir, state.path),
        state.path: partial(_is_taken, state),
    }
    while True:
        await asyncio.sleep(every_s)
        for path, look in looks.items():
            was_taken = taken[path]
            try:
                taken[path] = await calls.run_for_folder(path, look)
            except (OSError, RuntimeError):  # RuntimeError: the host has no thread to spare
                continue
            if taken[path] and not was_taken:
                effect = "each of the two may delete what the other one needs"
                remedy = "stop the other one, and give it folders of its own"
                log.error("folder.taken", path=str(path), by="another supervisord", effect=effect, remedy=remedy)


def _is_taken(state: StateFolder) -> bool:
    """Locks the state folder again; whether another live daemon has it meanwhile. Raises OSError."""
    if state.lock_again():
        return True
    if state.path.exists():
        marks.keep_key(state.path)
    return False


def _is_runtime_dir_taken(runtime_dir: Path, state_dir: Path) -> bool:
    """Claims the folder; whether another live daemon has claimed it meanwhile."""
    if not runtime_dir.parent.exists():  # as `run` in a state folder that was deleted
        return False
    try:
        claim_runtime_dir(runtime_dir, state_dir)
    except AlreadyRunning:
        return True
    return False


def _owner_of(path: Path, identity: str) -> Path | None:
    """The state folder that is noted in the folder with this identity; a note that came with a copy has another one."""
    try:
        noted, _, owner = os.fsdecode(durable.read_file(path, MAX_OWNER_BYTES)).partition(" ")
    except OSError:
        return None
    return Path(owner) if noted == identity and owner else None


def _is_of_another(other: Path, state_dir: Path) -> bool:
    """Whether it is the state folder of another live daemon."""
    try:
        if other.samefile(state_dir):  # perhaps by another path
            return False
        descriptor = os.open(other / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Writes our pid to `path`, and removes the file at the end. Raises OSError.

    Files for Supervisor have it in /tmp, where anybody can make a link of its name to a file of root's.
    """
    if path is None:
        yield
        return
    descriptor = open_guarded(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    finally:
        os.close(descriptor)
    try:
        yield
    finally:
        # a file that stays is no failure: a full file table or a lost disk must not change the exit status
        with contextlib.suppress(OSError), guarded_folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
