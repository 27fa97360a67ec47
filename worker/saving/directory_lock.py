"""One live worker per checkpoint directory, and no commit of one that was overtaken."""

import fcntl
import os
import socket
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection


class DirectoryLocked(Exception):
    """Another live worker holds the directory; the text names it."""


class AttemptSuperseded(Exception):
    """A newer attempt has begun in the directory: what this one would commit now is of the past."""


class DirectoryLock:
    """Holds a checkpoint directory until `release` or the end of this process, whatever ends it."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Takes the lock. Raises DirectoryLocked, or OSError if the directory can't be written."""
        self._directory, self._attempt = directory, attempt
        path = directory / layout.LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.register_at_fork(after_in_child=self.release)  # a forked data loader that outlives us must not hold it
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            raise DirectoryLocked(
                f"cannot use {directory}: another live worker holds it ({holder or 'it did not say who'}); "
                f"wait until it has left, or stop it"
            ) from error
        self._file = os.fstat(self._descriptor).st_ino
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"pid {os.getpid()} attempt {attempt} on {socket.gethostname()}\n".encode(), 0)

    def check_not_superseded(self) -> None:
        """Call it before a commit. Raises AttemptSuperseded if a newer attempt has begun, OSError if it can't find out.

        The lock rules that out on one host. It does not where a file system forgets locks (a network file system after
        an outage) or somebody deleted the lock's file: there the attempt's number decides.
        """
        newest = selection.highest_attempt(self._directory)
        if newest <= self._attempt and not self._is_ours():
            newest = self._holder()
        if newest > self._attempt:
            raise AttemptSuperseded(
                f"cannot commit to {self._directory}: attempt {newest} has begun there, and this is attempt "
                f"{self._attempt}; its checkpoints are the valid ones, so this worker ends"
            )

    def _is_ours(self) -> bool:
        try:
            return (self._directory / layout.LOCK).stat().st_ino == self._file
        except FileNotFoundError:
            return False

    def _holder(self) -> int:
        """The attempt that the lock's file, made anew by somebody else, names; 0 if it names none."""
        try:
            words = (self._directory / layout.LOCK).read_bytes()[:200].decode(errors="replace").split()
        except FileNotFoundError:
            return 0
        number = words[3] if len(words) > 3 and words[2] == "attempt" else ""
        return int(number) if number.isascii() and number.isdecimal() else 0

    def release(self) -> None:
        """Lets the next one in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
