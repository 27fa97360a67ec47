"""One live worker holds a checkpoint directory, and a worker that a newer attempt has superseded commits nothing.

The lock is one on the directory itself and one on a file in it. The directory's lock holds where somebody deletes the
file. The file's lock holds where a network file system has no locks for directories, and it names the holder. A network
file system may forget both after an outage, so the attempt's number is compared before each commit too.
"""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Protocol

from supervisor.protocol import layout, mounts
from supervisor.protocol.checkpoints.directory import committed_checkpoints, highest_attempt


class DirectoryLocked(Exception):
    """Another live worker holds the directory; the text names that worker."""


class AttemptSuperseded(Exception):
    """A newer attempt has begun in the directory: what this one would commit is out of date."""


class WriterLock(Protocol):
    """Keeps other workers from writing into a directory."""

    def check_not_superseded(self) -> None:
        """Raises AttemptSuperseded if a newer attempt has begun."""

    def release(self) -> None:
        """Lets the next worker have the directory."""


class NoLock:
    """The lock of workers other than the chief: they write nothing into the directory, so they hold none."""

    def check_not_superseded(self) -> None:
        """Passes always: this worker commits nothing."""

    def release(self) -> None:
        """Does nothing."""


class DirectoryLock:
    """Holds a checkpoint directory until `release` or the end of this process, whatever ends it."""

    def __init__(self, directory: Path, attempt: int, chosen_below: int | None = None) -> None:
        """Takes the lock. Raises DirectoryLocked, or OSError if the directory can't be written.

        `chosen_below`: no checkpoint was of a later step when the one to restore was chosen (None: not known). Raises
        OSError if there is one now: whoever held this lock until now has committed it since, or trains on where locks
        keep nobody out, and is not disturbed.
        """
        self._directory, self._attempt = directory, attempt
        self._own_words = f"pid {os.getpid()} attempt {attempt} on {socket.gethostname()}"  # which may be renamed
        self._descriptor = self._folder = -1
        os.register_at_fork(after_in_child=self.release)  # a data loader may outlive this process
        try:
            self._folder = _lock_folder(directory)
            self._descriptor = _lock_file(directory / layout.LOCK)
            if chosen_below is not None:
                self._check_nothing_newer(chosen_below)
        except BlockingIOError as error:
            self.release()
            raise DirectoryLocked(
                f"cannot use checkpoint directory {directory}: another live worker holds it "
                f"({_read_holder(directory) or 'unknown'}); wait until it exits, or stop it"
            ) from error
        except BaseException:
            self.release()
            raise
        self._mount, self._device = str(mounts.mount_of(directory)), directory.stat().st_dev
        self._write_holder()

    def _check_nothing_newer(self, step: int) -> None:
        newest = next(iter(committed_checkpoints(self._directory)), None)
        if newest is not None and newest.step > step:
            text = f"step {newest.step} was committed after the checkpoint to restore was chosen; it is chosen again"
            raise OSError(errno.EBUSY, text, str(self._directory))

    def _write_holder(self) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{self._own_words}\n".encode(), 0)

    def check_place(self, mount: str | None, device: int | None) -> None:
        """Raises OSError if the directory is on another file system than where it was looked for a checkpoint.

        In a container the same one may be mounted elsewhere, so by its number too (None: not known).
        """
        if mount is not None and mount != self._mount and device != self._device:
            text = f"it was on {mount} when the checkpoint was chosen, and is on {self._mount} now; it is chosen again"
            raise OSError(errno.ENODEV, text, str(self._directory))

    def check_not_superseded(self) -> None:
        """Raises AttemptSuperseded if a newer attempt has begun, and OSError if that can't be found out.

        Also if the directory is not the one that this attempt began in: what is written below the mount point of a disk
        would be out of sight once that is mounted again, and what is written on a volume that was mounted over it would
        lie among checkpoints of another past.

        Takes the lock again if somebody deleted its file.
        """
        self._check_volume()
        newest, holder = highest_attempt(self._directory), _read_holder(self._directory)
        if newest <= self._attempt and holder != self._own_words:
            newest = _attempt_in(holder)
            if newest == self._attempt:
                raise AttemptSuperseded(
                    f"cannot commit to {self._directory}: another live worker has taken it ({holder}), as locks keep "
                    f"nobody out there, and it has this attempt's number; this worker exits: stop one of the two jobs, "
                    f"or give it a directory of its own"
                )
        if newest > self._attempt:
            raise AttemptSuperseded(
                f"cannot commit to {self._directory}: attempt {newest} has begun there, and this is attempt "
                f"{self._attempt}; the newer attempt trains on, so this worker exits"
            )
        self._hold_again()

    def _check_volume(self) -> None:
        """Raises OSError if another volume than at the start is mounted there. The same one, mounted again, may have
        another number (NFS), and holds the lock's file as this worker wrote it."""
        mount, device = mounts.mount_of(self._directory), self._directory.stat().st_dev
        if str(mount) == self._mount and device == self._device:
            return
        if str(mount) == self._mount and _read_holder(self._directory) == self._own_words:
            self._device = device
            return
        raise OSError(errno.ENODEV, self._describe_change(mount), str(self._directory))

    def _describe_change(self, mount: mounts.Mount | None) -> str:
        before, point = self._mount, "" if mount is None else mount.point
        if str(mount) == before:
            return f"another volume than when this attempt began is mounted there ({mount}); mount that one again"
        if len(point) > len(before.rpartition(" at ")[2]):
            remedy = f"unmount {point} to save there again, or stop the job, which then begins from what is on it"
            return (
                f"{mount} was mounted over it since this attempt began on {before}, where its checkpoints are; {remedy}"
            )
        return f"it was on {before} when this attempt began, and is on {mount} now; mount its disk again"

    def _hold_again(self) -> None:
        """Makes the lock's file again if it is gone, and locks the directory that is there now if it was replaced."""
        if self._descriptor < 0:
            return
        path = self._directory / layout.LOCK
        try:
            if self._folder >= 0 and self._directory.stat().st_ino != os.fstat(self._folder).st_ino:
                new = _lock_folder(self._directory)
                os.close(self._folder)
                self._folder = new
            if path.exists():
                return
            new = _lock_file(path)
        except BlockingIOError as error:
            raise AttemptSuperseded(
                f"cannot commit to {self._directory}: its lock was deleted, and another live worker holds it now "
                f"({_read_holder(self._directory) or 'unknown'}); this worker exits"
            ) from error
        except OSError:  # nothing can be written there just now: the commit will say so
            return
        os.close(self._descriptor)
        self._descriptor = new
        self._write_holder()

    def release(self) -> None:
        """Lets the next worker have the directory."""
        for descriptor in (self._descriptor, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._folder = -1


def _lock_folder(directory: Path) -> int:
    """Locks the directory itself; -1 where the file system has no such locks. Raises BlockingIOError if it is held.

    NFS emulates flock(2) by locks for which a file has to be open for writing, which a directory never is.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _NO_FOLDER_LOCKS:
            raise
        return -1
    return descriptor


_NO_FOLDER_LOCKS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def _lock_file(path: Path) -> int:
    """Locks the file that has this name once it is locked. Raises BlockingIOError if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was deleted or replaced in between


def _read_holder(directory: Path) -> str:
    """What the lock's file says of its holder: `pid PID attempt NUMBER on HOST`; empty if it says nothing."""
    try:
        return (directory / layout.LOCK).read_bytes()[:200].decode(errors="replace").strip()
    except OSError:
        return ""


def _attempt_in(holder: str) -> int:
    """The attempt that the lock's file names; 0 if it names none."""
    words = holder.split()
    number = words[3] if len(words) > 3 and words[2] == "attempt" else ""
    return int(number) if number.isascii() and number.isdecimal() else 0
