"""One run in the store, and the job's folder beside it: list, fetch, take over, upload, delete.

**How a checkpoint gets there.** Its files are uploaded under a key that no other host uses, their sizes are
compared, and the manifest is created last, by one put that fails if there is one. So a process that is killed
anywhere leaves either no manifest, and then no checkpoint, or a whole one. Before the manifest the epochs are listed
once more: if another host has begun a later one, nothing is committed. Should that host come between the look and
the put, the manifest exists and still does not count (`protocol/mirror/line.py`).

**How it comes back.** Into `….partial` in the job's folder, hashed while it is written, compared with the manifest,
synced and renamed, as the worker's own checkpoints are. What does not agree is refused, and the next older one is
tried.
"""

import contextlib
import json
import platform
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from supervisor.host.mirror.store import RateLimiter, Store, StoreError
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, ManifestError, parse_manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import (
    EPOCHS,
    MAX_EPOCH_BYTES,
    Epoch,
    RemoteCheckpoint,
    decode_epoch,
    encode_epoch,
    epoch_key,
    parse_epoch_key,
    parse_file_key,
)
from supervisor.protocol.mirror.line import checkpoints_on_line, left_behind, newest_at_or_before, to_delete
from supervisor.protocol.wire.codec import ProtocolError

UNFINISHED_AGE = timedelta(hours=24)  # longer than any upload; files without a manifest may go after that
MAX_HELD_BYTES = 4096


class TakenOver(Exception):
    """Another host has begun a later epoch."""

    def __init__(self, epoch: Epoch) -> None:
        super().__init__(f"{epoch.holder or 'another host'} has taken this run over (epoch {epoch.number})")
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What `MirroredRun.fetch` found: see `messages.FetchAnswer`."""

    fetched: CheckpointName | None
    epoch: int
    attempt: int
    newest: CheckpointName | None
    left_behind: tuple[CheckpointName, ...]
    bad: tuple[tuple[RemoteCheckpoint, str], ...]


@dataclass(slots=True)
class MirroredRun:
    """`folder`: the job's checkpoint_dir. `keep`: how many remote checkpoints stay. `limiter`: of uploads.

    Every method raises StoreError.
    """

    store: Store
    folder: Path
    keep: int
    limiter: RateLimiter = field(default_factory=RateLimiter)
    _epochs: dict[int, Epoch] = field(default_factory=dict)

    # --- looking ------------------------------------------------------------------------------------------------------

    def epochs(self) -> Mapping[int, Epoch]:
        """All epochs. What one object says never changes, so each is read once."""
        numbers = {number for key, _, _ in self.store.list_keys(EPOCHS) if (number := parse_epoch_key(key)) is not None}
        for number in sorted(numbers - self._epochs.keys()):
            content = self.store.read(epoch_key(number), MAX_EPOCH_BYTES)
            if content is None:
                continue
            try:
                self._epochs[number] = decode_epoch(number, content)
            except ProtocolError as error:
                raise StoreError(f"cannot read who holds this run: {error}; delete or repair it") from error
        return self._epochs

    def files(self) -> dict[RemoteCheckpoint, dict[str, datetime]]:
        """Every checkpoint of which anything is there, whether it counts or not: its files, and when each was written.

        One without a manifest does not exist, or not yet.
        """
        found: dict[RemoteCheckpoint, dict[str, datetime]] = {}
        for key, _, written_at in self.store.list_keys(""):
            if (parsed := parse_file_key(key)) is not None:
                found.setdefault(parsed[0], {})[parsed[1]] = written_at
        return found

    def local(self) -> list[CheckpointName]:
        """The names of the checkpoints in the job's folder; none if there is no folder."""
        try:
            return [name for each in self.folder.iterdir() if (name := parse_name(each.name)) is not None]
        except FileNotFoundError:
            return []

    def held_epoch(self) -> int | None:
        """The epoch under which this folder's checkpoints were written; None if it never had one."""
        try:
            body = json.loads(durable.read_file(self.folder / layout.EPOCH_HELD, MAX_HELD_BYTES))
            number = body["epoch"]
        except (OSError, ValueError, RecursionError, TypeError, KeyError):
            return None
        return number if isinstance(number, int) and number > 0 else None

    # --- from the store -----------------------------------------------------------------------------------------------

    def fetch(
        self,
        newer_than: CheckpointName | None,
        below: int | None,
        unwanted: Collection[str] = (),
        only_look: bool = False,
    ) -> FetchResult:
        """Fetches the newest checkpoint that counts and is newer than one (None: any), below a step (None: any).

        Those that are in the folder already are not fetched: what chose an older one had its reasons.

        Raises OSError if the folder can't be written.
        """
        epochs, committed = self.epochs(), _committed(self.files())
        line = checkpoints_on_line(epochs, committed)
        local = self.local()
        behind = left_behind(local, self.held_epoch(), epochs)
        if newer_than in behind:
            newer_than = max((each for each in local if each not in behind), default=None)
        wanted = [each for each in line if (below is None or each.name.step < below) and str(each.name) not in unwanted]
        bad: list[tuple[RemoteCheckpoint, str]] = []
        fetched = None
        for each in () if only_look else wanted:
            if newer_than is not None and each.name <= newer_than:
                break
            if each.name in local:
                continue
            try:
                self._download(each)
            except ManifestError as error:
                bad.append((each, str(error)))
                continue
            fetched = each.name
            break
        newest = wanted[0].name if wanted else None
        attempt = max((each.name.attempt for each in committed), default=0)
        return FetchResult(fetched, max(epochs, default=0), attempt, newest, behind, tuple(bad))

    def _download(self, remote: RemoteCheckpoint) -> None:
        """Raises ManifestError if it is not whole."""
        content = self.store.read(remote.manifest, MAX_BYTES)
        if content is None:
            raise ManifestError(f"{layout.MANIFEST} is missing")
        manifest = parse_manifest(content)
        if manifest.name != remote.name:
            raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, its place {remote.name}")
        durable.make_folder(self.folder)
        partial = self.folder / remote.name.partial
        if partial.is_dir():
            shutil.rmtree(partial)  # an earlier try was cut off
        try:
            with NewFolder(partial) as folder:
                for file in manifest.files:
                    self._download_file(remote, file, folder)
                folder.add(layout.MANIFEST, content)
                folder.commit(self.folder / str(remote.name))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _download_file(self, remote: RemoteCheckpoint, expected: FileRecord, folder: NewFolder) -> None:
        file = folder.create(expected.name)
        try:
            for piece in self.store.download(remote.key(expected.name)):
                if file.size + len(piece) > expected.size:
                    raise ManifestError(f"{expected.name} has more than the {expected.size} bytes of its manifest")
                file.write(piece)
        except FileNotFoundError:
            raise ManifestError(f"{expected.name} is missing") from None
        if file.end() != (expected.size, expected.hash):
            raise ManifestError(f"{expected.name} is not what its manifest says (size or hash)")

    # --- to the store -------------------------------------------------------------------------------------------------

    def begin_epoch(self, start: CheckpointName | None, known: int) -> int:
        """Takes the run over, going on from `start`; the number of the new epoch. `known`: the highest known one.

        An epoch that this folder holds is known too: a daemon that goes on with a running worker looks at nothing else.

        Raises TakenOver if there is a later one, OSError if the folder can't be written.
        """
        epochs, known = self.epochs(), max(known, self.held_epoch() or 0)
        self._refuse_after(known)
        number = max(epochs, default=0) + 1
        line = checkpoints_on_line(epochs, _committed(self.files()))
        epoch = Epoch(number, newest_at_or_before(line, start), platform.node(), time.time())
        if not self.store.create(epoch_key(number), encode_epoch(epoch)):
            self.epochs()
            self._refuse_after(known)
        durable.make_folder(self.folder)
        durable.write_file(self.folder / layout.EPOCH_HELD, json.dumps({"epoch": number}).encode())
        return number

    def upload(self, name: CheckpointName, epoch: int) -> tuple[int, tuple[RemoteCheckpoint, ...]]:
        """Copies a local checkpoint; gives its bytes, and all that count then, newest first.

        Raises TakenOver, and FileNotFoundError if it is not there (any more); ManifestError if it is damaged.
        """
        folder = self.folder / str(name)
        content = durable.read_file(folder / layout.MANIFEST, MAX_BYTES + 1)
        manifest, remote = parse_manifest(content), RemoteCheckpoint(epoch, name)
        self.epochs()
        self._refuse_after(epoch)
        for file in manifest.files:
            self._upload_file(remote, folder, file)
        self.epochs()
        self._refuse_after(epoch)
        if not self.store.create(remote.manifest, content):
            raise StoreError(f"cannot commit {remote}: there is another checkpoint of that name")
        files = self.files()
        line = checkpoints_on_line(self._epochs, _committed(files))
        self._tidy(files, line, epoch)
        return manifest.size_bytes, line

    def _upload_file(self, remote: RemoteCheckpoint, folder: Path, file: FileRecord) -> None:
        key = remote.key(file.name)
        self.store.upload(key, folder / file.name, self.limiter)
        stored = self.store.size(key)
        if stored != file.size:
            raise ManifestError(f"{file.name} has {stored} bytes in the store, its manifest says {file.size}")

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


def _committed(files: Mapping[RemoteCheckpoint, Mapping[str, datetime]]) -> set[RemoteCheckpoint]:
    return {each for each, names in files.items() if layout.MANIFEST in names}
