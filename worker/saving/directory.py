"""A checkpoint directory at the start of a run: created, locked, swept, and which checkpoint to restore.

One live worker holds a directory, by a lock on the directory itself and one on a file in it, and a worker that a newer
attempt has superseded commits nothing. The directory's lock holds where somebody deletes the file. The file's lock
holds where a network file system has no locks for directories, and it names the holder. A network file system may
forget both after an outage, so the attempt's number is compared before each commit too.
"""

import contextlib
import errno
import fcntl
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from supervisor.protocol import durable, layout, mounts
from supervisor.protocol.checkpoints import removal, selection
from supervisor.protocol.checkpoints.account import SeenDirectory, find_loss
from supervisor.protocol.checkpoints.directory import highest_attempt, view_directory
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.wire.launch import MIRROR
from supervisor.protocol.wire.messages import WorkerExit
from worker.process.attempt import Attempt
from worker.saving.commit_record import CommitRecord

if TYPE_CHECKING:
    from worker.saving.mirror_restore import MirrorSource


UNFIT_REMEDY = "restore it with the program that wrote it, or give this one a checkpoint_dir of its own"


class Unfit(Exception):
    """A whole checkpoint does not fit this program; the text names what differs."""


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


@dataclass(frozen=True, slots=True)
class OpenedDirectory:
    """A locked directory, and the checkpoint to restore (None: begin at step 0).

    `restore`: the folder of a stepkeeper checkpoint, in this directory or another job's; or the prefix of a checkpoint
    that another program wrote. `record`: what is remembered of the directory without a daemon.
    """

    directory: Path
    lock: WriterLock
    restore: Path | None
    record: CommitRecord | None = None

    def remember_commit(self, name: str, step: int) -> None:
        """Remembers that a checkpoint was committed, where no daemon does."""
        if self.record is not None:
            self.record.remember(name, step)


def open_checkpoint_directory(attempt: Attempt, directory: Path) -> OpenedDirectory:
    """Opens the directory for this attempt. The daemon says which checkpoint to restore.

    Without a daemon, and for the second run of a script, this selects the newest checkpoint that verifies; without a
    daemon also of the run's mirror, if it was told of one. Exits with LOCKED, DIRECTORY_UNUSABLE, or, if it selects and
    no checkpoint verifies, CHECKPOINT_UNFIT.
    """
    go = attempt.channel.wait_for_go() if attempt.channel is not None and not attempt.has_begun_run else None
    attempt.has_begun_run = True
    record = source = None
    try:
        if attempt.channel is None:
            record = _check_not_lost(attempt, directory)
            source = _look_at_mirror(attempt, directory)
        durable.make_folder(directory)
        if attempt.channel is None:
            attempt.number = 1 + max(highest_attempt(directory), source.attempt if source is not None else 0)
        lock = DirectoryLock(directory, attempt.number)
        removal.delete_partials(directory)
        if go is None:
            return OpenedDirectory(directory, lock, _select_checkpoint(attempt, directory, source), record)
    except DirectoryLocked as error:
        attempt.exit_with_error(WorkerExit.LOCKED, str(error))
    except OSError as error:
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot use checkpoint directory {directory}: {error}; make it a folder that this user may write",
            errno=error.errno,
        )
    return OpenedDirectory(directory, lock, Path(go.restore) if go.restore is not None else None)


def _check_not_lost(attempt: Attempt, directory: Path) -> CommitRecord | None:
    """Refuses a directory that has lost its checkpoints, before anything is created there; says what is doubtful.

    Raises OSError if the directory can't be read.
    """
    record = None if attempt.state_home is None else CommitRecord(attempt.state_home, directory)
    newest = None if record is None else record.load()
    seen = view_directory(directory, None if newest is None else newest.name)
    for each in seen.remarks:
        attempt.reporter.show_message(f"checkpoint directory {directory} is on {each}")
    if record is None:
        return None
    record.mount = seen.mount
    remedy = f"mount the disk or put the folder back, and start again; to begin anew, delete {record.path}"
    place = SeenDirectory(str(directory.absolute()), seen.highest_step, seen.mount, seen.passed_over)
    lost = find_loss(newest, place, f"cannot train in {directory}", remedy)
    if lost is not None and lost.waits:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, lost.text)
    if lost is not None:
        attempt.reporter.show_message(lost.text)
    return record


def _look_at_mirror(attempt: Attempt, directory: Path) -> "MirrorSource | None":
    """The run's mirror; None without one. Raises OSError if the directory can't be read."""
    if attempt.mirror_url is None:
        return None
    try:
        # only here: most workers have none, and not the library for it either
        from worker.saving.mirror_restore import MirrorSource, MirrorUnusable
    except ModuleNotFoundError as error:
        remedy = f"install it with: {sys.executable} -m pip install 'stepkeeper[mirror]'"
        attempt.exit_with_error(WorkerExit.BAD_LAUNCH, f"{MIRROR} needs the package {error.name}; {remedy}")
    try:
        return MirrorSource(attempt.mirror_url, directory)
    except MirrorUnusable as error:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, str(error))


def _select_checkpoint(attempt: Attempt, directory: Path, source: "MirrorSource | None") -> Path | None:
    rules = selection.SelectionRules(initial=attempt.launch.initial_checkpoint)
    try:
        chosen = _select_here_or_there(attempt, directory, rules, source)
    except NoValidCheckpoint as error:
        attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, str(error))
    for text in source.messages if source is not None else ():
        attempt.reporter.show_message(text)
    for refused in chosen.rejected:
        moved = (directory / layout.QUARANTINE / refused.name).exists()
        where = f"; it was moved to {layout.QUARANTINE}/" if moved else ""
        attempt.reporter.show_message(f"refused {refused.name}: {refused.reason}{where}")
    return chosen.path


def _select_here_or_there(
    attempt: Attempt, directory: Path, rules: selection.SelectionRules, source: "MirrorSource | None"
) -> selection.Selection:
    """The newest whole checkpoint of the directory and of the run's mirror. Raises NoValidCheckpoint, OSError."""
    if source is None:
        return selection.select_checkpoint(directory, rules)
    source.set_aside_left_behind()
    try:
        here = selection.select_checkpoint(directory, rules)
    except NoValidCheckpoint:
        if not _fetch_newer(attempt, source, None):
            raise
        return selection.select_checkpoint(directory, rules)
    newest = layout.parse_name(here.path.name) if here.path is not None else None
    return selection.select_checkpoint(directory, rules) if _fetch_newer(attempt, source, newest) else here


def _fetch_newer(attempt: Attempt, source: "MirrorSource", than: layout.CheckpointName | None) -> bool:
    from worker.saving.mirror_restore import MirrorUnusable

    try:
        return source.fetch_newer(than)
    except MirrorUnusable as error:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, str(error))


class DirectoryLock:
    """Holds a checkpoint directory until `release` or the end of this process, whatever ends it."""

    def __init__(self, directory: Path, attempt: int) -> None:
        """Takes the lock. Raises DirectoryLocked, or OSError if the directory can't be written."""
        self._directory, self._attempt = directory, attempt
        self._descriptor = self._folder = -1
        os.register_at_fork(after_in_child=self.release)  # a data loader may outlive this process
        try:
            self._folder = _lock_folder(directory)
            self._descriptor = _lock_file(directory / layout.LOCK)
        except BlockingIOError as error:
            self.release()
            raise DirectoryLocked(
                f"cannot use checkpoint directory {directory}: another live worker holds it "
                f"({_read_holder(directory) or 'unknown'}); wait until it exits, or stop it"
            ) from error
        except BaseException:
            self.release()
            raise
        self._mount = str(mounts.mount_of(directory))
        self._write_holder()

    def _write_holder(self) -> None:
        self._file = os.fstat(self._descriptor).st_ino
        os.ftruncate(self._descriptor, 0)
        text = f"pid {os.getpid()} attempt {self._attempt} on {socket.gethostname()}\n"
        os.pwrite(self._descriptor, text.encode(), 0)

    def check_not_superseded(self) -> None:
        """Raises AttemptSuperseded if a newer attempt has begun, and OSError if that can't be found out.

        Also if the directory is on another file system than when this attempt began: what is written below the mount
        point of a disk would be out of sight once that is mounted again.

        Takes the lock again if somebody deleted its file.
        """
        if (mount := str(mounts.mount_of(self._directory))) != self._mount:
            text = f"it was on {self._mount} when this attempt began, and is on {mount} now; mount its disk again"
            raise OSError(errno.ENODEV, text, str(self._directory))
        newest = highest_attempt(self._directory)
        if newest <= self._attempt and not self._is_ours():
            newest = self._holder()
        if newest > self._attempt:
            raise AttemptSuperseded(
                f"cannot commit to {self._directory}: attempt {newest} has begun there, and this is attempt "
                f"{self._attempt}; the newer attempt trains on, so this worker exits"
            )
        self._hold_again()

    def _is_ours(self) -> bool:
        try:
            return (self._directory / layout.LOCK).stat().st_ino == self._file
        except FileNotFoundError:
            return False

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

    def _holder(self) -> int:
        """The attempt named in the lock's file, which another worker has created anew; 0 if it names none."""
        words = _read_holder(self._directory).split()
        number = words[3] if len(words) > 3 and words[2] == "attempt" else ""
        return int(number) if number.isascii() and number.isdecimal() else 0

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
