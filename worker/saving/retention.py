"""Which checkpoints of a directory go: those that retention gives up, and, on a full disk, the oldest."""

import contextlib
import errno
import shutil
from pathlib import Path

from supervisor.protocol.checkpoints import manifest, retention, selection
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.checkpoints.retention import RetainedCheckpoint, RetentionPolicy
from supervisor.protocol.layout import CheckpointName
from worker.process.reporting import print_message


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
