"""One run in the store, and the job's folder beside it: list, fetch, take over, upload, delete.

**How a checkpoint gets there.** Its files are uploaded under a key that no other host uses, their sizes are
compared, and the manifest is created last, by one put that fails if there is one. So a process that is killed
anywhere leaves either no manifest, and then no checkpoint, or a whole one. Before the manifest the epochs are listed
once more: if another host has begun a later one, nothing is committed. Should that host come between the look and
the put, the manifest exists and still does not count (`protocol/mirror/line.py`).

How it comes back is in `protocol/mirror/fetching.py`.
"""

import contextlib
import platform
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from supervisor.host.mirror.rate_limit import RateLimiter
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, ManifestError, parse_manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.fetching import FetchResult, fetch, held_epoch, hold_epoch
from supervisor.protocol.mirror.keys import (
    MAX_EPOCH_BYTES,
    Epoch,
    RemoteCheckpoint,
    decode_epoch,
    encode_epoch,
    epoch_key,
)
from supervisor.protocol.mirror.line import checkpoints_on_line, newest_at_or_before, to_delete
from supervisor.protocol.mirror.remote_run import RemoteRun, committed
from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.wire.codec import ProtocolError

UNFINISHED_AGE = timedelta(hours=24)  # longer than any upload; files without a manifest may go after that


class EpochLost(StoreError):
    """The store lacks the epoch under which this host writes: what is uploaded under it would never be chosen."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"epoch {number} of this run is gone from the store, as if the prefix was emptied; a new one is begun, and "
            f"the newest checkpoint uploaded again"
        )


class TakenOver(Exception):
    """Another host has begun a later epoch."""

    def __init__(self, epoch: Epoch) -> None:
        super().__init__(f"{epoch.holder or 'another host'} has taken this run over (epoch {epoch.number})")
        self.epoch = epoch


class MirroredRun(RemoteRun):
    """`folder`: the job's checkpoint_dir. `keep`: how many remote checkpoints stay. `limiter`: of uploads.

    Every method raises StoreError.
    """

    def __init__(self, store: Store, folder: Path, keep: int, limiter: RateLimiter | None = None) -> None:
        super().__init__(store)
        self.folder = folder
        self.keep = keep
        self._limiter = limiter or RateLimiter()
        self._tried: Epoch | None = None  # what was to be created last

    def fetch(
        self,
        newer_than: CheckpointName | None,
        below: int | None,
        unwanted: Collection[str] = (),
        only_look: bool = False,
    ) -> FetchResult:
        """Fetches the newest checkpoint that counts and is newer than one (None: any), below a step (None: any).

        Raises OSError if the folder can't be written.
        """
        return fetch(self, self.folder, newer_than, below, unwanted, only_look)

    def begin_epoch(self, start: CheckpointName | None, known: int) -> int:
        """Takes the run over, going on from `start`; the number of the new epoch. `known`: the highest known one.

        An epoch that this folder holds is known too: a daemon that goes on with a running worker looks at nothing else.

        Raises TakenOver if there is a later one, OSError if the folder can't be written.
        """
        epochs, known = self.epochs(), max(known, held_epoch(self.folder) or 0)
        if self._tried is not None and epochs.get(self._tried.number) == self._tried:
            known = max(known, self._tried.number)  # it was created, and only the answer was lost
        self._refuse_after(known)
        number = max(epochs, default=0) + 1
        line = checkpoints_on_line(epochs, committed(self.files()))
        epoch = Epoch(number, newest_at_or_before(line, start), platform.node(), time.time())
        self._tried = epoch
        if not self.store.create(epoch_key(number), encode_epoch(epoch)):
            self._refuse_other(epoch)
        hold_epoch(self.folder, number)
        return number

    def upload(self, name: CheckpointName, epoch: int) -> tuple[int, tuple[RemoteCheckpoint, ...]]:
        """Copies a local checkpoint; gives its bytes, and all that count then, newest first.

        Raises TakenOver and EpochLost; FileNotFoundError if it is not there (any more), ManifestError if it is damaged.
        """
        folder = self.folder / str(name)
        content = durable.read_file(folder / layout.MANIFEST, MAX_BYTES + 1)
        manifest, remote = parse_manifest(content), RemoteCheckpoint(epoch, name)
        self.epochs()
        self._refuse_after(epoch)
        for file in manifest.files:
            self._upload_file(remote, folder, file)
        self._require(epoch)
        if not self.store.create(remote.manifest, content):
            raise StoreError(f"cannot commit {remote}: there is another checkpoint of that name")
        files = self.files()
        line = checkpoints_on_line(self._epochs, committed(files))
        self._tidy(files, line, epoch)
        return manifest.size_bytes, line

    def _upload_file(self, remote: RemoteCheckpoint, folder: Path, file: FileRecord) -> None:
        key = remote.key(file.name)
        self.store.upload(key, folder / file.name, self._limiter.pieces_of)
        stored = self.store.size(key)
        if stored != file.size:
            raise ManifestError(f"{file.name} has {stored} bytes in the store, its manifest says {file.size}")

    def _refuse_other(self, epoch: Epoch) -> None:
        """Raises TakenOver unless the epoch of this number is `epoch`. The object says so: a list may leave it out."""
        content = self.store.read(epoch_key(epoch.number), MAX_EPOCH_BYTES)
        if content is None:
            raise StoreError(f"cannot begin epoch {epoch.number}: the store has and has not an object of that name")
        try:
            found = decode_epoch(epoch.number, content)
        except ProtocolError as error:
            raise StoreError(f"cannot read who holds this run: {error}; delete or repair it") from error
        if found != epoch:
            raise TakenOver(found)

    def _require(self, epoch: int) -> None:
        """Raises TakenOver if there is a later epoch, EpochLost if this one is gone, which no list proves."""
        self.epochs()
        self._refuse_after(epoch)
        if self.store.size(epoch_key(epoch)) is None:
            self._epochs.clear()
            raise EpochLost(epoch)

    def _refuse_after(self, epoch: int) -> None:
        latest = max(self._epochs, default=0)
        if latest > epoch:
            raise TakenOver(self._epochs[latest])

    def _tidy(
        self, files: Mapping[RemoteCheckpoint, Mapping[str, datetime]], line: tuple[RemoteCheckpoint, ...], epoch: int
    ) -> None:
        """Deletes what retention leaves no room for, the manifest first, and what was never finished."""
        oldest = datetime.now(UTC) - UNFINISHED_AGE
        unfinished = {each for each, names in files.items() if layout.MANIFEST not in names}
        abandoned = {each for each in unfinished if max(files[each].values()) < oldest}
        with contextlib.suppress(StoreError):  # the next upload tries again
            for each in sorted(abandoned.union(to_delete(line, epoch, self.keep))):
                names = sorted(files.get(each, ()), key=lambda name: name != layout.MANIFEST)
                self.store.delete(each.key(name) for name in names)
