"""How a checkpoint becomes durable: it exists whole, or not at all. One commit for every kind of run.

1. Capture. Between two steps, on the training thread, the writer copies what the next step would change
   (`tensorflow_writer.py`, `files_writer.py`). This copy is all that training waits for. What can't be copied, or has
   no memory for a copy, is written while training waits.
2. Write. A thread beside training (`save.py`) fills `step-N.aM.partial`. Files are hashed while they are written, and
   the disk begins with their first bytes, so the sync at the end waits for the last ones only.
3. Manifest, last of the files: sizes and hashes of all the others, and where they came from.
4. Sync. fsync of every file and of the `.partial` folder: the names in it are durable too. The large files are the
   last, as their bytes are still on the way while the small ones are synced.
5. Check that no newer attempt has begun in the directory, and that it is still on the volume on which this one began
   (`directory_lock.py`). That is looked at before step 2 too, so that nothing is written or deleted elsewhere.
6. Rename `step-N.aM.partial` to `step-N.aM`. This is the commit. Then fsync of the checkpoint directory, which makes
   the new name durable.
7. Report. `Committed` goes to the daemon only now, and answers the flushes that waited for it. Then retention deletes
   older checkpoints; nothing that fails there undoes the commit.

What a crash leaves: during 1, nothing. During 2 to 5, a `.partial` folder, which the next start sweeps; no reader takes
it for a checkpoint. Between the rename and the sync of the directory, a power cut leaves one name or the other; both
are sound, as all files were synced before. During 7, a complete checkpoint that the daemon was not told of; the next
start finds it in the directory. If only the process is killed, without a power cut, the rename loses nothing.

An error, as opposed to a crash, deletes what the save has written (`Retention.discard`), also a folder whose rename is
not known to be durable, which would be in the way of the next try, but never another one of that name. On a full disk,
`checkpoint_make_room` lets the oldest checkpoints go one by one, and each time the commit is tried again from step 2.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetainedCheckpoint, RetentionPolicy
from supervisor.protocol.disk_space import DISK_FULL, full_disk_reason
from supervisor.protocol.layout import CheckpointName
from worker.process.reporting import print_message


class SaveError(Exception):
    """A save did not reach its commit; nothing of it is left and older checkpoints are untouched."""


class NotFinite(SaveError):
    """The state to be saved contains a NaN or an infinity, so no attempt could continue from it; the text names it."""

    @classmethod
    def naming(cls, names: Sequence[str]) -> "NotFinite":
        """One whose text names the first ten of the variables or tensors."""
        more = f" and {len(names) - 10} more" if len(names) > 10 else ""
        return cls(f"{', '.join(names[:10])}{more} {'is' if len(names) == 1 else 'are'} not finite")


class OtherDiskFull(SaveError):
    """The disk of another node is full, so nothing on this one's makes room for the save."""


class NotPublished(SaveError):
    """All files were written, but the mirror, which makes them a checkpoint, does not have them."""


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """What all manifests of this attempt have in common."""

    job: str
    attempt: int
    versions: Mapping[str, str]
    topology: Mapping[str, str | int | bool]


class Retention:
    """Deletes checkpoints from the directory that this process writes to. Not for two threads at once."""

    def __init__(
        self, directory: Path, policy: RetentionPolicy, make_room: bool, restored: CheckpointName | None = None
    ) -> None:
        """`make_room`: whether a full disk may cost checkpoints that the policy would keep, but not `restored`, from
        which this attempt began, before it has saved."""
        self._directory = directory
        self._policy = policy
        self._make_room = make_room
        self._restored = restored
        self._known: dict[CheckpointName, RetainedCheckpoint] = {}

    def free_space(self, for_name: CheckpointName) -> bool:
        """Deletes the oldest checkpoint for a save that found the disk full; False if none may be deleted."""
        if not self._make_room:
            return False
        try:
            deleted = removal.delete_oldest(self._directory, () if self._restored is None else (self._restored,))
        except OSError:
            return False  # the save's own error says what is wrong with the disk
        if deleted is None:
            return False
        self._known.pop(deleted, None)
        print_message(f"deleted {deleted} to make room for {for_name}: the disk is full")
        return True

    def discard(self, name: CheckpointName, is_renamed: bool) -> None:
        """Deletes what a failed save has written; the next start sweeps what can't be deleted now.

        `is_renamed`: the save has given it its name; otherwise what has that name is another's.
        """
        shutil.rmtree(self._directory / name.partial, ignore_errors=True)
        shutil.rmtree(self._directory / name.part, ignore_errors=True)
        if is_renamed:
            with contextlib.suppress(OSError):  # perhaps not durable: it would be in the way of the next try
                removal.delete_checkpoint(self._directory, name)

    def apply_policy(self, newest: CheckpointName) -> None:
        """Deletes what the policy does not keep, but never `newest`; and parts, also of a time when the job trained on
        several nodes with folders of their own, that are of no use any more. Raises OSError."""
        self._restored = None  # there is a newer state
        removal.delete_parts(self._directory, newest)
        removal.delete_expendable(self._directory, self._policy, newest, self._known)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that no space, or no quota, is left."""
    return isinstance(error, OSError) and error.errno in DISK_FULL


Publish = Callable[[Manifest, Path], None]
"""Makes what a folder contains a checkpoint, where the rename does not. Raises NotPublished."""


class CheckpointCommitter:
    """Commits the checkpoints of one attempt into one directory. Not for two threads at once."""

    def __init__(
        self,
        directory: Path,
        origin: CheckpointOrigin,
        retention: Retention,
        check: Callable[[], None],
        describe: Callable[[BaseException], str | None],
        is_full: Callable[[BaseException | None], bool] = is_disk_full,
        publish: Publish | None = None,
    ) -> None:
        """`check`: called before anything is written, and right before the rename; what it raises passes through,
        unless it can be described. `describe`: an error of a save in a
        few words, None for a defect of the program. `is_full`: whether an error says that the disk is full. `publish`:
        the rename is not the commit, but this is."""
        self._directory = directory
        self._origin = origin
        self._retention = retention
        self._check = check
        self._describe = describe
        self._is_full = is_full
        self._publish = publish

    def commit(self, name: CheckpointName, metrics: Mapping[str, float], fill: Callable[[NewFolder], None]) -> Manifest:
        """Commits what `fill` writes into the folder; calls it again if older checkpoints made room on a full disk.

        Raises SaveError, which includes NotFinite; other errors of `fill` and `check` pass through.
        """
        while True:
            try:
                return self._commit_once(name, metrics, fill)
            except SaveError as error:
                if not (self._is_full(error.__cause__) and self._may_delete() and self._retention.free_space(name)):
                    raise

    def _may_delete(self) -> bool:
        """Whether what is in the directory is this attempt's to delete."""
        try:
            self._check()
        except OSError:
            return False
        return True

    def _commit_once(
        self, name: CheckpointName, metrics: Mapping[str, float], fill: Callable[[NewFolder], None]
    ) -> Manifest:
        partial = self._directory / name.partial
        folder = None
        try:
            self._check()
            shutil.rmtree(partial, ignore_errors=True)
            with NewFolder(partial) as folder:
                fill(folder)
                written = self._make_manifest(name, metrics, folder)
                folder.add(layout.MANIFEST, written.to_bytes())
                if self._publish is None:
                    folder.commit(self._directory / str(name), self._check)
                else:
                    part = self._directory / name.part
                    shutil.rmtree(part, ignore_errors=True)  # of a try before this one
                    folder.commit(part, self._check)
                    self._publish(written, part)
            return written
        except BaseException as error:
            if folder is not None:
                self._retention.discard(name, folder.is_renamed and self._publish is None)
            if isinstance(error, NotFinite):
                raise NotFinite(save_error_text(name, str(error))) from error
            if (cause := self._describe(error)) is not None:
                raise SaveError(save_error_text(name, cause)) from error
            raise

    def _make_manifest(self, name: CheckpointName, metrics: Mapping[str, float], folder: NewFolder) -> Manifest:
        return Manifest(
            job=self._origin.job,
            attempt=name.attempt,
            step=name.step,
            created_wall_at=time.time(),
            files=tuple(FileRecord(file, size, digest) for file, (size, digest) in folder.finish().items()),
            versions=self._origin.versions,
            topology=self._origin.topology,
            metrics=metrics,
        )


def save_error_text(name: CheckpointName, cause: str) -> str:
    """The message for a save that failed."""
    return f"cannot save {name}: {cause}; earlier checkpoints are untouched"


def describe_os_error(error: OSError) -> str:
    """A failed system call in a few words: the file and the reason."""
    return f"{error.filename}: {full_disk_reason(error, Path(error.filename))}" if error.filename else str(error)
