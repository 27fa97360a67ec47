"""One daemon for one state folder: the lock, the pid file, and the check for PyPI's Supervisor beside us."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"


class AlreadyRunning(Exception):
    """Something else is where only we may be; the text says what and what to do."""


def refuse_shared_environment() -> None:
    """PyPI's Supervisor installs the same package and commands, so one of the two is broken by the other.

    Raises AlreadyRunning where the distribution `supervisor` is installed in this environment.
    """
    if not any(each for folder in sys.path for each in Path(folder).glob("supervisor[-.]*-info")):
        return
    from importlib import metadata  # with zipfile, csv and the like 1 MiB, only to say which version

    try:
        version = metadata.version("supervisor")
    except metadata.PackageNotFoundError:
        return
    raise AlreadyRunning(
        f"cannot run: Supervisor {version} is installed in this environment, and its files and stepkeeper's overwrite "
        f"each other; install stepkeeper into an environment of its own (python -m venv), there: pip install stepkeeper"
    )


class StateFolder:
    """The folder with the ledger and the lock, held for as long as the process lives."""

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
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise AlreadyRunning(
                f"cannot start: another supervisord (pid {holder}) holds the state folder {self.path}; "
                f"stop it, or give this one a state_dir of its own"
            ) from None
        self._descriptor = descriptor

    def write_pid(self) -> None:
        """Writes our pid into the lock, for the message that a second daemon gives."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)


@contextlib.contextmanager
def pid_file(path: Path | None) -> Iterator[None]:
    """Writes our pid to `path` and takes it away at the end. Raises OSError."""
    if path is None:
        yield
        return
    path.write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
