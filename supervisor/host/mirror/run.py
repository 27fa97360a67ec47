"""One run in the store, and the job's folder beside it: what is copied there, and when it counts.

**How a checkpoint gets there.** Its files are uploaded under a key that no other host uses. The bytes that are sent are
hashed on their way and compared with the manifest, and the store is asked for the size of what it has. Where several
nodes upload, each says what it has sent and how the store calls that version (its ETag), and right before the commit
the store has to have that very version. The manifest is created last, by one put that fails if there is one. So a
process that is killed anywhere leaves either no manifest, and then no checkpoint, or a whole one. Before the manifest
the epochs are listed once more: if another host has begun a later one, nothing is committed. Should that host come
between the look and the put, the manifest exists and may not count (`protocol/mirror/line.py`). So the epochs are
listed after the put too, and only then is anybody told that the checkpoint is in the store.

Whose the run is, is in `epochs.py`; how a checkpoint comes back, in `protocol/mirror/fetching.py`.
"""

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator
from io import RawIOBase
from pathlib import Path

import xxhash

from supervisor.host.mirror.epochs import HeldRun
from supervisor.host.mirror.tidying import tidy
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, ManifestError, StoredFile, parse_manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.fetching import FetchResult, fetch
from supervisor.protocol.mirror.keys import RemoteCheckpoint, committed_key
from supervisor.protocol.mirror.line import checkpoints_on_line
from supervisor.protocol.mirror.remote_run import committed
from supervisor.protocol.mirror.store import PART_BYTES, Store, StoreError


class LocalDamaged(ManifestError):
    """The checkpoint on this disk is not what the worker has written, and will hardly become that."""


class PartDamaged(ManifestError):
    """What a node has uploaded is not what its worker has written, and will not become that."""


class RateLimiter:
    """Holds uploads back to `bytes_per_s` (None: not at all). Another thread may lift that at any time."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._is_lifted = threading.Event()

    def set_lifted(self, is_lifted: bool) -> None:
        """Lets uploads go as fast as they can, at once, or no more."""
        if is_lifted:
            self._is_lifted.set()
        else:
            self._is_lifted.clear()

    def pieces_of(self, file: RawIOBase) -> Iterator[bytes]:
        """The content of a file in pieces; each takes its time, the last one too, so a small file is no exception."""
        while piece := file.read(PART_BYTES):
            yield piece
            if self._bytes_per_s is not None:
                self._is_lifted.wait(len(piece) / self._bytes_per_s)


class MirroredRun(HeldRun):
    """`folder`: the job's checkpoint_dir. `keep`: how many remote checkpoints stay. `limiter`: of uploads.

    Every method raises StoreError.
    """

    def __init__(self, store: Store, folder: Path, keep: int, limiter: RateLimiter | None = None) -> None:
        super().__init__(store, folder)
        self.keep = keep
        self._limiter = limiter or RateLimiter()
        self._marked = 0  # the epoch of which the store knows that it has a checkpoint

    def fetch(
        self,
        newer_than: CheckpointName | None,
        below: int | None,
        unwanted: Collection[str] = (),
        only_look: bool = False,
        is_chosen: bool = False,
    ) -> FetchResult:
        """Fetches the newest checkpoint that counts and is newer than one (None: any), below a step (None: any).

        `is_chosen`: an operator has said that training goes on from there. Raises OtherRun, and OSError if the folder
        can't be written.
        """
        return fetch(self, self.folder, newer_than, below, unwanted, only_look, is_chosen)

    def upload(self, name: CheckpointName, epoch: int) -> tuple[int, tuple[RemoteCheckpoint, ...]]:
        """Copies a local checkpoint; gives its bytes, and all that count then, newest first.

        Raises TakenOver and EpochLost; FileNotFoundError if it is not there (any more), LocalDamaged if it is damaged,
        ManifestError if the store has not what was sent.
        """
        folder = self.folder / str(name)
        content = durable.read_file(folder / layout.MANIFEST, MAX_BYTES + 1)
        manifest, remote = parse_manifest(content), RemoteCheckpoint(epoch, name)
        self.epochs()
        self._refuse_after(epoch)
        self.keep_held(epoch)
        sent = 0
        for file in manifest.files:
            stored = self._upload_file(remote, folder, file.name, sent, manifest.size_bytes)
            if (stored.size, stored.hash) != (file.size, file.hash):
                raise LocalDamaged(f"cannot upload {name}: {_not_as_written(file.name)}")
            sent += file.size
        return manifest.size_bytes, self._commit(remote, content, epoch)

    def upload_part(self, name: CheckpointName, epoch: int) -> tuple[StoredFile, ...]:
        """Copies this node's files of a checkpoint; says which. They count once the chief's node has committed.

        Copies nothing over a checkpoint that is committed: the answer to that was lost. Raises FileNotFoundError if the
        files are not there (any more).
        """
        folder, remote = self.folder / name.part, RemoteCheckpoint(epoch, name)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != layout.MANIFEST}
        if self.store.size(remote.manifest) is not None:
            return ()
        files: list[StoredFile] = []
        for file in sizes:
            sent = sum(stored.size for stored in files)
            files.append(self._upload_file(remote, folder, file, sent, sum(sizes.values())))
        return tuple(files)

    def commit_parts(
        self, name: CheckpointName, epoch: int, files: Iterable[StoredFile]
    ) -> tuple[int, tuple[RemoteCheckpoint, ...]]:
        """Commits the checkpoint of which all nodes have uploaded their files; gives what `upload` gives.

        `files`: what they say of them. Raises TakenOver and EpochLost; FileNotFoundError if its manifest is not here
        (any more), PartDamaged if a node has uploaded another file than its worker wrote, ManifestError if the store
        has not the file that was uploaded.
        """
        content = durable.read_file(self.folder / name.part / layout.MANIFEST, MAX_BYTES + 1)
        manifest, remote = parse_manifest(content), RemoteCheckpoint(epoch, name)
        if manifest.name != name:
            raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, its folder {name.part}")
        self.epochs()
        self._refuse_after(epoch)
        self.keep_held(epoch)
        uploaded = {file.name: file for file in files}
        if uploaded or self.store.read(remote.manifest, MAX_BYTES) != content:  # nothing is sent to what is committed
            for file in manifest.files:
                self._require_uploaded(remote, file, uploaded.get(file.name))
        return manifest.size_bytes, self._commit(remote, content, epoch)

    def _commit(self, remote: RemoteCheckpoint, content: bytes, epoch: int) -> tuple[RemoteCheckpoint, ...]:
        """Creates the manifest, once all files are there; gives all that count then, newest first."""
        self._require(epoch)
        if not self.store.create(remote.manifest, content):
            raise StoreError(f"cannot commit {remote}: there is another checkpoint of that name")
        self._proven.add(remote)
        self.epochs()
        self._refuse_after(epoch)
        self._mark(epoch, remote.name)
        files = self.files()
        line = checkpoints_on_line(self._epochs, committed(files) | {remote})
        line = tuple(checkpoint for checkpoint in line if checkpoint <= remote or self.exists(checkpoint))
        tidy(self, files, line, self._epochs, epoch, self.keep)
        return line

    def _mark(self, epoch: int, name: CheckpointName) -> None:
        """Leaves an object that says that this epoch has a checkpoint: an empty list alone can't be believed."""
        if self._marked != epoch:
            with contextlib.suppress(StoreError):  # the next upload tries again
                self.store.create(committed_key(epoch), f"{name}\n".encode())
                self._marked = epoch

    def _upload_file(
        self, remote: RemoteCheckpoint, folder: Path, name: str, sent_before: int, size: int
    ) -> StoredFile:
        """Copies a file, and says what of it has been sent. `size`: of all files, for the progress."""
        key, digest, sent = remote.key(name), xxhash.xxh3_128(), 0

        def pieces_of(opened: RawIOBase) -> Iterator[bytes]:
            nonlocal sent
            for piece in self._limiter.pieces_of(opened):
                digest.update(piece)
                yield piece
                sent += len(piece)
                self.on_progress(sent_before + sent, size)

        self.store.upload(key, folder / name, pieces_of)
        stored, tag = self.store.look(key) or (None, None)
        if stored != sent:
            raise ManifestError(f"{name} has {stored} bytes in the store, and {sent} were sent; it is tried again")
        return StoredFile(name, sent, f"xxh3_128:{digest.hexdigest()}", tag)

    def _require_uploaded(self, remote: RemoteCheckpoint, file: FileRecord, uploaded: StoredFile | None) -> None:
        """Raises PartDamaged unless a node has uploaded that very file, and ManifestError unless the store has it."""
        if uploaded is None:
            raise PartDamaged(f"cannot commit {remote.name}: no node has uploaded {file.name}")
        if (uploaded.size, uploaded.hash) != (file.size, file.hash):
            raise PartDamaged(f"cannot commit {remote.name}: {_not_as_written(file.name)}")
        there = self.store.look(remote.key(file.name))
        if there is None or there[0] != file.size:
            stored = "no" if there is None else there[0]
            raise ManifestError(f"{file.name} has {stored} bytes in the store, its manifest says {file.size}")
        if there[1] != uploaded.tag:
            raise ManifestError(f"{file.name} in the store is another one than was uploaded; it is uploaded again")


def _not_as_written(name: str) -> str:
    return f"{name} on its disk is not what the worker has written there; look at that disk"
