"""One checkpoint made to exist, whole and on the disk, or nothing left of it: the same for every kind of run."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.filling import NewFolder
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest
from supervisor.protocol.layout import CheckpointName
from worker.saving.retention import Retention, is_disk_full
from worker.saving.save import CheckpointOrigin, NotFinite, SaveError


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
