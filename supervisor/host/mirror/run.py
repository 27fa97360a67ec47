"""One run in the store, and the job's folder beside it: list, fetch, take over, upload, delete.

**How a checkpoint gets there.** Its files are uploaded under a key that no other host uses. The bytes that are sent are
hashed on their way and compared with the manifest, and the store is asked for the size of what it has. Where several
nodes upload, each says what it has sent and how the store calls that version (its ETag), and right before the commit
the store has to have that very version. The manifest is created last, by one put that fails if there is one. So a
process that is killed anywhere leaves either no manifest, and then no checkpoint, or a whole one. Before the manifest
the epochs are listed once more: if another host has begun a later one, nothing is committed. Should that host come
between the look and the put, the manifest exists and may not count (`protocol/mirror/line.py`). So the epochs are
listed after the put too, and only then is anybody told that the checkpoint is in the store.

**Why two hosts never both go on.** The run belongs to the newest epoch. An epoch is created by one put that fails if
there is one of that number, so each has one holder. A host that is about to take a run over may fail to start at all:
it may be another job of the same name by mistake, which can't even restore what it finds. So the epoch is created only
once an attempt has restored its checkpoint and done a step (`runner/mirror/hold.py`); until then the holder trains
on, undisturbed, and the newcomer can upload nothing, as an upload needs an epoch. From the put on the order is turned
round: the newcomer may upload, and the earlier holder finds the later epoch at its next look, at most WATCH_S later,
and before each commit, and is stopped. In between both train, and nothing that the earlier one commits is told to
anybody as being in the store.

**What the earlier holder did until then.** It may have committed a checkpoint after the newcomer had fetched its own.
So before and after the put the newcomer lists what counts. If there is something that it had not seen, and that is
newer than what it has, the parent of its epoch is that one: nothing uploaded is left behind, the earlier holder is
stopped all the same, and the newcomer's attempt begins again from there. The one gap: the earlier holder commits and
looks between the newcomer's list and its put, and the newcomer is killed before it has listed again.

How it comes back is in `protocol/mirror/fetching.py`.
"""

import contextlib
import platform
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import RawIOBase
from pathlib import Path

import xxhash

from supervisor.host.mirror.rate_limit import RateLimiter
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, ManifestError, StoredFile, parse_manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.fetching import FetchResult, fetch
from supervisor.protocol.mirror.folder_epochs import (
    begun_epoch,
    given_up_in,
    held_epoch,
    hold_epoch,
    known_epoch,
    record_begin,
)
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint, committed_key, encode_epoch, epoch_key
from supervisor.protocol.mirror.line import KEEP_AT_LEAST, checkpoints_on_line, given_up, newest_at_or_before, to_delete
from supervisor.protocol.mirror.remote_run import RemoteRun, committed
from supervisor.protocol.mirror.store import Store, StoreError

UNFINISHED_AGE = timedelta(hours=24)  # longer than any upload; files without a manifest may go after that
GIVEN_UP_AGE = timedelta(days=7)  # for people to see that a run was taken over, or taken back, by mistake


class EpochLost(StoreError):
    """The store lacks the epoch under which this host writes: what is uploaded under it would never be chosen."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"epoch {number} of this run is gone from the store, as if the prefix was emptied; a new one is begun, and "
            f"the newest checkpoint uploaded again"
        )


class LocalDamaged(ManifestError):
    """The checkpoint on this disk is not what the worker has written, and will hardly become that."""


class PartDamaged(ManifestError):
    """What a node has uploaded is not what its worker has written, and will not become that."""


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
        self._proven: set[RemoteCheckpoint] = set()  # whose manifest was seen, not only listed
        self.on_progress: Callable[[int, int], None] = lambda sent, of: None
        """Called while a checkpoint is uploaded, with the bytes that were read so far, and all that it has."""
        self._marked = 0  # the epoch of which the store knows that it has a checkpoint

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

    def take_over(
        self, start: CheckpointName | None, known: int, seen: CheckpointName | None
    ) -> tuple[int, CheckpointName | None]:
        """Takes the run over without leaving anything behind that was uploaded meanwhile.

        `start`: what the attempt goes on from, or has committed since. `seen`: the newest that counted when it was
        chosen; what lies between the two was passed over on purpose. `known`: as for `begin_epoch`. Gives the number
        of the new epoch, and what is newer than both: then the epoch goes on from that, and the attempt is to begin
        again (None: there is nothing). Raises what `begin_epoch` raises.
        """
        is_given_up = given_up_in(self.folder)  # before an epoch of this host leaves it behind
        newer = self._newer_than((start, seen), self.epochs(), is_given_up)
        number = self.begin_epoch(start, known) if newer is None else self._create_epoch(newer, known)
        earlier = {epoch.number: epoch for epoch in self._epochs.values() if epoch.number < number}
        known_names = (start, seen, None if newer is None else newer.name)
        if (late := self._newer_than(known_names, earlier, is_given_up)) is not None:
            newer, number = late, self._create_epoch(late, number)
        return number, None if newer is None else newer.name

    def _newer_than(
        self,
        names: Iterable[CheckpointName | None],
        epochs: Mapping[int, Epoch],
        is_given_up: Callable[[CheckpointName], bool],
    ) -> RemoteCheckpoint | None:
        """The newest checkpoint on the line of these epochs, if it is newer than all the names; none of those given
        up."""
        limit = max((name for name in names if name is not None), default=None)
        line = checkpoints_on_line(epochs, committed(self.files()))
        newer = (checkpoint for checkpoint in line if limit is None or checkpoint.name > limit)
        return next((remote for remote in newer if not is_given_up(remote.name) and self._exists(remote)), None)

    def begin_epoch(self, start: CheckpointName | None, known: int) -> int:
        """Begins an epoch that goes on from `start`, whatever there is beyond it; its number.

        `known`: the highest known epoch. One that this folder knows of is known too: a daemon that goes on with a
        running worker looks at nothing else.

        Raises TakenOver if there is a later one, OSError if the folder can't be written.
        """
        line = checkpoints_on_line(self.epochs(), committed(self.files()))
        return self._create_epoch(newest_at_or_before(line, start), known)

    def _create_epoch(self, parent: RemoteCheckpoint | None, known: int) -> int:
        """What is going to be created is noted in the folder first, so that the next process knows it again if this
        one is killed, or its answer lost."""
        epochs, before = self.epochs(), begun_epoch(self.folder)
        known = max(known, known_epoch(self.folder, epochs))
        self._refuse_after(known)
        # numbers never go back, also where the store was emptied: what is in the folder counts by them
        number, holder = max(known, *epochs, 0) + 1, platform.node()
        if before is not None and (before.number, before.parent, before.holder) == (number, parent, holder):
            epoch = before  # the request of that time may still arrive
        else:
            epoch = Epoch(number, parent, holder, time.time(), secrets.token_hex(8))
            record_begin(self.folder, epoch)
        if not self.store.create(epoch_key(number), encode_epoch(epoch)):
            self._refuse_other(epoch, before)
        hold_epoch(self.folder, number)
        return number

    def keep_held(self, epoch: int) -> None:
        """Has the folder say which epoch this host holds: somebody may have deleted it with all that it said.

        Otherwise the next daemon would take its own epoch for another host's. Raises OSError.
        """
        if held_epoch(self.folder, self._epochs) != epoch:
            hold_epoch(self.folder, epoch, leaves_behind=False)

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
        line = tuple(checkpoint for checkpoint in line if checkpoint <= remote or self._exists(checkpoint))
        self._tidy(files, line, epoch)
        return line

    def _mark(self, epoch: int, name: CheckpointName) -> None:
        """Leaves an object that says that this epoch has a checkpoint: an empty list alone can't be believed."""
        if self._marked != epoch:
            with contextlib.suppress(StoreError):  # the next upload tries again
                self.store.create(committed_key(epoch), f"{name}\n".encode())
                self._marked = epoch

    def _exists(self, remote: RemoteCheckpoint) -> bool:
        """Whether a checkpoint is there, and not only in a list."""
        if remote not in self._proven and self.store.size(remote.manifest) is not None:
            self._proven.add(remote)
        return remote in self._proven

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

    def _refuse_other(self, epoch: Epoch, before: Epoch | None) -> None:
        """Raises TakenOver unless the epoch of this number is `epoch`. The object says so: a list may leave it out.

        `before`: what this host was about to begin earlier. If it is that, StoreError: the next try goes on from it.
        """
        stored = self.read_epoch(epoch.number)
        if stored is None:
            raise StoreError(f"cannot begin epoch {epoch.number}: the store has and has not an object of that name")
        if stored == before != epoch:
            hold_epoch(self.folder, stored.number, leaves_behind=False)
            raise StoreError(f"cannot begin epoch {epoch.number}: an earlier try of this host came through late")
        if stored != epoch:
            raise TakenOver(stored)

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

    def _given_up(
        self, files: Mapping[RemoteCheckpoint, Mapping[str, datetime]], line: tuple[RemoteCheckpoint, ...], epoch: int
    ) -> set[RemoteCheckpoint]:
        """What was given up long ago, once the present epoch has enough that is its own and is there."""
        own = [checkpoint for checkpoint in line if checkpoint.epoch == epoch]
        if sum(map(self._exists, own[:KEEP_AT_LEAST])) < KEEP_AT_LEAST:
            return set()
        oldest, now = datetime.now(UTC) - GIVEN_UP_AGE, datetime.now(UTC)
        passed_over = given_up(self._epochs, committed(files))
        return {checkpoint for checkpoint, by in passed_over.items() if self.epochs_begun.get(by, now) < oldest}

    def _tidy(
        self, files: Mapping[RemoteCheckpoint, Mapping[str, datetime]], line: tuple[RemoteCheckpoint, ...], epoch: int
    ) -> None:
        """Deletes what retention leaves no room for, the manifest first, what was given up long ago, and what was never
        finished.

        Nothing is deleted because a list names checkpoints that are not there, or leaves out a manifest that is.
        """
        oldest = datetime.now(UTC) - UNFINISHED_AGE
        unfinished = {checkpoint for checkpoint, names in files.items() if layout.MANIFEST not in names}
        abandoned = {checkpoint for checkpoint in unfinished if max(files[checkpoint].values()) < oldest}
        with contextlib.suppress(StoreError):  # the next upload tries again
            if len(line) > self.keep:
                line = tuple(checkpoint for checkpoint in line if self._exists(checkpoint))
            for checkpoint in sorted(
                abandoned.union(to_delete(line, epoch, self.keep), self._given_up(files, line, epoch))
            ):
                if checkpoint in abandoned and self._exists(checkpoint):
                    continue
                self._proven.discard(checkpoint)
                names = sorted(files.get(checkpoint, ()), key=lambda name: name != layout.MANIFEST)
                self.store.delete(checkpoint.key(name) for name in names)


def _not_as_written(name: str) -> str:
    return f"{name} on its disk is not what the worker has written there; look at that disk"
