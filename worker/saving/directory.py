"""A checkpoint directory at the start of a run: made, locked, swept, and what to restore from it."""

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.messages import WorkerExit
from worker.process.attempt import Attempt


class Unfit(Exception):
    """A whole checkpoint does not fit this program; the text names what differs."""


class DirectoryLocked(Exception):
    """Another live worker holds the directory; the text names it."""


class AttemptSuperseded(Exception):
    """A newer attempt has begun in the directory: what this one would commit now is of the past."""


class WriterLock(Protocol):
    """What keeps others from writing into a directory."""

    def check_not_superseded(self) -> None:
        """Raises AttemptSuperseded where a newer attempt has begun."""

    def release(self) -> None:
        """Lets the next one in."""


@dataclass(frozen=True, slots=True)
class OpenedDirectory:
    """A directory that is ours, and the checkpoint to restore (None: begin at step 0).

    `restore`: the folder of one of ours, in this directory or another one's; or the prefix of another program's.
    """

    directory: Path
    lock: WriterLock
    restore: Path | None


def open_checkpoint_directory(attempt: Attempt, directory: Path) -> OpenedDirectory:
    """Waits for the daemon's word where there is a daemon, else chooses the newest checkpoint that is whole; so it does
    where a script trains a second time.

    Leaves the process with LOCKED, DIRECTORY_UNUSABLE, or, where it chooses and nothing in the directory is whole,
    CHECKPOINT_UNFIT.
    """
    go = attempt.channel.wait_for_go() if attempt.channel is not None and not attempt.has_begun_run else None
    attempt.has_begun_run = True
    try:
        durable.make_folder(directory)
        if attempt.channel is None:
            attempt.number = 1 + selection.highest_attempt(directory)
        lock = DirectoryLock(directory, attempt.number)
        selection.sweep_partials(directory)
        if go is None:
            return OpenedDirectory(directory, lock, _select_checkpoint(attempt, directory))
    except DirectoryLocked as error:
        attempt.exit_with_error(WorkerExit.LOCKED, str(error))
    except OSError as error:
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot use checkpoint directory {directory}: {error}; make it a folder that this user may write",
        )
    return OpenedDirectory(directory, lock, Path(go.restore) if go.restore is not None else None)


def _select_checkpoint(attempt: Attempt, directory: Path) -> Path | None:
    try:
        chosen = selection.select(directory, attempt.launch.initial_checkpoint)
    except NoValidCheckpoint as error:
        attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, str(error))
    for refused in chosen.refused:
        moved = (directory / layout.QUARANTINE / refused.name).exists()
        where = f"; it lies in {layout.QUARANTINE}/ now" if moved else ""
        attempt.reporter.show_message(f"refused {refused.name}: {refused.reason}{where}")
    return chosen.path


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
