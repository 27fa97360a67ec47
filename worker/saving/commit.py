"""One checkpoint made to exist, whole and on the disk, or nothing left of it: the same for every kind of run."""

import contextlib
import errno
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, retention, selection
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest, ManifestError
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetainedCheckpoint, RetentionPolicy
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


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """What every manifest of this attempt says alike."""

    job: str
    attempt: int
    versions: Mapping[str, str]
    topology: Mapping[str, str | int | bool]


class Retention:
    """The checkpoints of one directory, seen by the one who writes there. Not for two threads at once."""

    def __init__(self, directory: Path, policy: RetentionPolicy, gives_room: bool) -> None:
        """`gives_room`: whether a full disk may cost checkpoints that retention would keep."""
        self._directory = directory
        self._policy = policy
        self._gives_room = gives_room
        self._known: dict[CheckpointName, RetainedCheckpoint] = {}

    def free_space(self, for_name: CheckpointName) -> bool:
        """Deletes the oldest one for a save that found the disk full; False if none may go."""
        if not self._gives_room:
            return False
        try:
            gone = selection.make_room(self._directory)
        except OSError:
            return False  # the save's own error says what is wrong with the disk
        if gone is None:
            return False
        self._known.pop(gone, None)
        print_message(f"deleted {gone} to make room for {for_name}: the disk is full")
        return True

    def discard(self, name: CheckpointName) -> None:
        """Deletes what a failed save left; that which can't be deleted is swept at the next start."""
        shutil.rmtree(self._directory / name.partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # renamed, but not known to be on the disk: in the next try's way
            selection.delete(self._directory, name)

    def apply_policy(self, newest: CheckpointName) -> None:
        """Deletes what retention gives up, and never `newest`. Raises OSError."""
        kept = [found for name in selection.committed(self._directory) if (found := self._read_entry(name)) is not None]
        for name in retention.expendable(kept, self._policy):
            if name != newest:
                selection.delete(self._directory, name)
                self._known.pop(name, None)

    def _read_entry(self, name: CheckpointName) -> RetainedCheckpoint | None:
        """What retention needs to know; None for a damaged one, which is evidence and not ours to delete."""
        if name not in self._known:
            try:
                found = manifest.read(self._directory / str(name))
            except ManifestError:
                return None
            self._known[name] = RetainedCheckpoint(name, found.created_wall_at, found.metrics)
        return self._known[name]


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error says that there is no space, or no quota, left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class CheckpointCommitter:
    """For the checkpoints of one attempt in one directory. Not for two threads at once."""

    def __init__(
        self,
        directory: Path,
        origin: CheckpointOrigin,
        shelf: Retention,
        check: Callable[[], None],
        cause: Callable[[BaseException], str | None],
        says_full: Callable[[BaseException | None], bool] = is_disk_full,
    ) -> None:
        """`check`: called before each commit; what it raises passes through. `cause`: an error in a few words, None if
        it is none of saving. `says_full`: whether one says that the disk is."""
        self._directory = directory
        self._origin = origin
        self._shelf = shelf
        self._check = check
        self._cause = cause
        self._says_full = says_full

    def commit(self, name: CheckpointName, metrics: Mapping[str, float], fill: Callable[[NewFolder], None]) -> Manifest:
        """`fill` adds the files. Where the disk is full, older checkpoints give way if they may, and it is asked again.

        Raises SaveError, NotFinite among them; what else `fill` or `check` raise passes through.
        """
        while True:
            try:
                return self._commit_once(name, metrics, fill)
            except SaveError as error:
                if not (self._says_full(error.__cause__) and self._shelf.free_space(name)):
                    raise

    def _commit_once(
        self, name: CheckpointName, metrics: Mapping[str, float], fill: Callable[[NewFolder], None]
    ) -> Manifest:
        partial = self._directory / name.partial
        try:
            shutil.rmtree(partial, ignore_errors=True)
            with NewFolder(partial) as folder:
                fill(folder)
                proof = self._make_manifest(name, metrics, folder)
                folder.add(layout.MANIFEST, proof.to_bytes())
                folder.commit(self._directory / str(name), self._check)
            return proof
        except BaseException as error:
            self._shelf.discard(name)
            if isinstance(error, NotFinite):
                raise NotFinite(save_error_text(name, str(error))) from error
            if (cause := self._cause(error)) is not None:
                raise SaveError(save_error_text(name, cause)) from error
            raise

    def _make_manifest(self, name: CheckpointName, metrics: Mapping[str, float], folder: NewFolder) -> Manifest:
        return Manifest(
            job=self._origin.job,
            attempt=name.attempt,
            step=name.step,
            created_wall_at=time.time(),
            files=tuple(FileRecord(file, size, digest) for file, (size, digest) in folder.end().items()),
            versions=self._origin.versions,
            topology=self._origin.topology,
            metrics=metrics,
        )


def save_error_text(name: CheckpointName, cause: str) -> str:
    """What is said of a save that came to nothing."""
    return f"cannot save {name}: {cause}; earlier checkpoints are untouched"


def describe_os_error(error: OSError) -> str:
    """A failed system call in a few words."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)
