"""Makes sure that one daemon uses a state folder, and that PyPI's Supervisor is not in the same environment."""

import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from supervisor.host.user_folders.guarded_open import guarded_folder, open_guarded
from supervisor.protocol.installation import install_stepkeeper

LOCK = "lock"


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
        """Writes our pid into the lock file, for the error message of a second daemon; on a full disk it says less."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)


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
    except OSError as error:  # the system call knows no name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    try:
        yield
    finally:
        # a file that stays is no failure: a full file table or a lost disk must not change the exit status
        with contextlib.suppress(OSError), guarded_folder(path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
