"""What a store has of one run: its epochs, its checkpoints, their bytes. Reads only.

A list may be wrong: leave out what is there, or name what is not. So no decision that loses something rests on a list
alone; what an object itself says is believed.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, Manifest, ManifestError, parse_manifest
from supervisor.protocol.mirror.keys import (
    EPOCHS,
    MAX_EPOCH_BYTES,
    Epoch,
    RemoteCheckpoint,
    committed_key,
    decode_epoch,
    epoch_key,
    parse_epoch_key,
    parse_file_key,
)
from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.wire.codec import ProtocolError


class RemoteRun:
    """One run in a store. Every method raises StoreError."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._epochs: dict[int, Epoch] = {}
        self.epochs_begun: dict[int, datetime] = {}
        """When the object of each epoch was written, by the store's clock, as far as the last list has said it."""
        self.on_progress: Callable[[int, int], None] = lambda copied, of: None
        """Called while a checkpoint is copied, with the bytes that were so far, and all that it has."""

    def epochs(self) -> Mapping[int, Epoch]:
        """All epochs. What one object says never changes, so each is read once.

        What a list leaves out is asked for: the epochs after the last one, and those that precede it on the line.
        """
        listed = ((parse_epoch_key(key), written_at) for key, _, written_at in self.store.list_keys(EPOCHS))
        self.epochs_begun = {number: written_at for number, written_at in listed if number is not None}
        for number in sorted(self.epochs_begun.keys() - self._epochs.keys()):
            self._find_epoch(number)
        while self._find_epoch(max(self._epochs, default=0) + 1):
            pass
        number = max(self._epochs, default=0)
        while (epoch := self._epochs.get(number)) is not None and epoch.parent is not None:
            number = epoch.parent.epoch
            if number not in self._epochs:
                self._find_epoch(number)
        return self._epochs

    def later_epoch(self, than: int) -> Epoch | None:
        """The newest epoch, if it is later than one. One list, and no more unless there is a later one."""
        numbers = (number for key, _, _ in self.store.list_keys(EPOCHS) if (number := parse_epoch_key(key)) is not None)
        later = sorted((number for number in numbers if number > than), reverse=True)
        return next((epoch for number in later if (epoch := self.read_epoch(number)) is not None), None)

    def _find_epoch(self, number: int) -> bool:
        epoch = self.read_epoch(number)
        if epoch is not None:
            self._epochs[number] = epoch
        return epoch is not None

    def read_epoch(self, number: int) -> Epoch | None:
        """What the object of an epoch says; None if there is none."""
        content = self.store.read(epoch_key(number), MAX_EPOCH_BYTES)
        try:
            return None if content is None else decode_epoch(number, content)
        except ProtocolError as error:
            raise StoreError(f"cannot read who holds this run: {error}; delete or repair it") from error

    def has_committed(self, epoch: int) -> bool:
        """Whether a checkpoint was ever committed under an epoch."""
        return self.store.size(committed_key(epoch)) is not None

    def files(self) -> dict[RemoteCheckpoint, dict[str, datetime]]:
        """Every checkpoint of which anything is there, whether it counts or not: its files, and when each was written.

        One without a manifest does not exist, or not yet.
        """
        files: dict[RemoteCheckpoint, dict[str, datetime]] = {}
        for key, _, written_at in self.store.list_keys(""):
            if (parsed := parse_file_key(key)) is not None:
                files.setdefault(parsed[0], {})[parsed[1]] = written_at
        return files


def committed(files: Mapping[RemoteCheckpoint, Mapping[str, datetime]]) -> set[RemoteCheckpoint]:
    """The checkpoints that exist: those with a manifest."""
    return {checkpoint for checkpoint, names in files.items() if layout.MANIFEST in names}


def read_manifest(store: Store, folder: str) -> tuple[Manifest, bytes]:
    """The manifest of a checkpoint, and its bytes. Raises ManifestError if it can't be believed."""
    content = store.read(key_in(folder, layout.MANIFEST), MAX_BYTES)
    if content is None:
        raise ManifestError(f"{layout.MANIFEST} is missing")
    return parse_manifest(content), content


def read_file(store: Store, folder: str, expected: FileRecord) -> Iterator[memoryview]:
    """The content of one of a checkpoint's files. Raises ManifestError if it is missing or has too many bytes."""
    size = 0
    try:
        for piece in store.download(key_in(folder, expected.name)):
            size += len(piece)
            if size > expected.size:
                raise ManifestError(f"{expected.name} has more than the {expected.size} bytes of its manifest")
            yield piece
    except FileNotFoundError:
        raise ManifestError(f"{expected.name} is missing") from None


def check_file(expected: FileRecord, size: int, file_hash: str) -> None:
    """Raises ManifestError if a file has another size or hash than its manifest says."""
    if (size, file_hash) != (expected.size, expected.hash):
        raise ManifestError(f"{expected.name} is not what its manifest says (size or hash)")


def key_in(folder: str, name: str) -> str:
    """The key of a file in a folder; the empty folder is where the URL leads."""
    return f"{folder}/{name}" if folder else name
