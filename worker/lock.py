"""One live worker per checkpoint directory."""

import fcntl
import os
import socket
from pathlib import Path

from supervisor.protocol import layout


class Locked(Exception):
    """Another live worker holds the directory; the text names it."""


class DirectoryLock:
    """Holds a checkpoint directory until `release` or the end of this process, whatever ends it."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Takes the lock. Raises Locked, or OSError if the directory can't be written."""
        path = directory / layout.LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.register_at_fork(after_in_child=self.release)  # a forked data loader that outlives us must not hold it
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            raise Locked(
                f"cannot use {directory}: another live worker holds it ({holder or 'it did not say who'}); "
                f"wait until it has left, or stop it"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"pid {os.getpid()} attempt {attempt} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Lets the next one in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
