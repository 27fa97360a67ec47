"""Writes TensorFlow checkpoint files (bundles), byte for byte as TensorFlow does, from tensors or from a copy of them.

One pass over all bytes computes their checksum and the file's hash and writes them, while the disk works on the bytes
before. TensorFlow's own writer copies every byte through a buffer, starts the disk at the end, and gives no hash.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from supervisor.protocol.checkpoints.direct_write import PIECE_BYTES
from supervisor.protocol.checkpoints.new_folder import NewFile, NewFolder
from supervisor.protocol.memory_tier.layout import BundlePlace, TensorPlace
from supervisor.protocol.tensorbundle import crc32c, entry, sstable, verify
from supervisor.protocol.tensorbundle.protowire import encode_varint
from worker.checkpoint.copy_memory import Bytes, CopyMemory

Written = Sequence[tuple["TensorSlot", int]]
"""The tensors in a data file, with their checksums."""


def is_writable(dtype: tf.DType) -> bool:
    """Whether this module knows the file format of this type; TensorFlow alone knows that of variants."""
    return dtype == tf.string or dtype.as_datatype_enum in entry.WIDTHS


def host_elements(tensor: tf.Tensor) -> np.ndarray:
    """A tensor's elements in host memory, without a copy if it lies there (`numpy()` would copy)."""
    return np.asarray(tensor.__array__())


def write_bundle(folder: NewFolder, prefix: str, tensors: Iterable[tuple[str, tf.Tensor]]) -> None:
    """Writes PREFIX.data-00000-of-00001 and PREFIX.index. Makes no copy of a tensor, which must not change before
    the folder is committed or closed. Raises OSError."""
    written = write_data(folder.create(data_name(prefix)), tensors)
    folder.add(f"{prefix}{verify.INDEX}", encode_index([written]))


def data_name(prefix: str, shard: int = 0, shards: int = 1) -> str:
    """The name of a data file, as TensorFlow has it."""
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


def write_data(data: NewFile, tensors: Iterable[tuple[str, tf.Tensor]]) -> Written:
    """Writes the tensors into a data file, as `write_bundle` does."""
    written = []
    for name, tensor in tensors:
        offset = data.size
        if tensor.dtype == tf.string:
            parts, crc = _encode_strings(tensor)
            for part in parts:
                data.write(part)
        else:
            crc = 0
            for piece in _pieces(_flat_bytes(tensor)):
                crc = crc32c.extend(crc, piece)  # type: ignore[arg-type]  # a buffer: NumPy says so from Python 3.12 on
                data.write(piece.data, is_stable=True)
        written.append((TensorSlot(name, tensor.dtype, tuple(tensor.shape), offset, data.size - offset), crc))
    return written


def encode_index(shards: Sequence[Written]) -> bytes:
    """The content of the index file: type, shape, place and checksum of each tensor in the data files."""
    records = {b"": entry.encode_header(len(shards))}
    for shard, written in enumerate(shards):
        for slot, crc in written:
            kind = slot.dtype.as_datatype_enum
            record = entry.encode_tensor(kind, slot.shape, slot.offset, slot.size, sstable.mask(crc), shard)
            records[slot.name.encode()] = record
    return sstable.encode_table(sorted(records.items()))


class BundleCopy:
    """A copy of tensors in host memory, laid out as in the file."""

    def __init__(self, tensors: Sequence[tuple[str, tf.Tensor]], pool: CopyMemory) -> None:
        """Raises MemoryError."""
        self._pool = pool
        texts = {name: _encode_strings(tensor) for name, tensor in tensors if tensor.dtype == tf.string}
        size = sum(len(part) for parts, _ in texts.values() for part in parts)
        size += sum(flat_size(tensor) for name, tensor in tensors if name not in texts)
        self._copy = pool.allocate(size)
        self._slots: list[tuple[TensorSlot, int | None]] = []  # and the checksum, if it is not that of all bytes
        for name, tensor in tensors:
            offset = self._copy.size
            parts, crc = texts[name] if name in texts else ([_flat_bytes(tensor)], None)
            for part in parts:
                self._copy.append(part)
            place = TensorSlot(name, tensor.dtype, tuple(tensor.shape), offset, self._copy.size - offset)
            self._slots.append((place, crc))

    def write(self, folder: NewFolder, prefix: str) -> None:
        """Writes the same files as `write_bundle`. On any thread; raises OSError.

        The folder has to be committed or closed before `release`.
        """
        folder.add(f"{prefix}{verify.INDEX}", encode_index([self.write_data(folder.create(data_name(prefix)))]))

    def place(self, prefix: str, offset: int) -> BundlePlace:
        """What whoever finds the copy in memory, at `offset`, has to know to write the same files."""
        tensors = tuple(
            TensorPlace(slot.name, slot.dtype.as_datatype_enum, slot.shape, slot.offset, slot.size, crc)
            for slot, crc in self._slots
        )
        return BundlePlace(prefix, offset, self._copy.size, tensors)

    def release(self) -> None:
        """Gives the memory back for the next copy; this one can't be used any more."""
        self._slots = []
        self._pool.reuse(self._copy)

    def elements(self) -> Iterator[tuple[str, np.ndarray]]:
        """Names and elements of all tensors except strings."""
        for place, crc in self._slots:
            if crc is None:
                content = self._copy.content[place.offset : place.end]
                yield place.name, content.view(place.dtype.as_numpy_dtype).reshape(place.shape)

    def write_data(self, data: NewFile) -> Written:
        """Writes the data alone, in one pass with the checksums, so that memory is read once. As `write`."""
        checked = []
        content, written = self._copy.content, 0
        fixed = content.view()
        fixed.flags.writeable = False  # what the checksum's library asks for
        for place, known in self._slots:
            crc = 0
            for at in range(place.offset, place.end, PIECE_BYTES):
                end = min(at + PIECE_BYTES, place.end)
                crc = crc32c.extend(crc, fixed[at:end])  # type: ignore[arg-type]
                if end - written >= PIECE_BYTES:
                    data.write(content[written : written + PIECE_BYTES].data, is_stable=True)
                    written += PIECE_BYTES
            checked.append((place, crc if known is None else known))
        data.write(content[written:].data, is_stable=True)
        return checked


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """The place of a tensor in its data file."""

    name: str
    dtype: tf.DType
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def flat_size(tensor: tf.Tensor) -> int:
    """The bytes of a tensor of any type but string."""
    return int(tensor.shape.num_elements()) * entry.WIDTHS[tensor.dtype.as_datatype_enum]


def _flat_bytes(tensor: tf.Tensor) -> Bytes:
    """The elements as bytes, in their order in memory."""
    return np.ascontiguousarray(host_elements(tensor)).reshape(-1).view(np.uint8)


def _pieces(content: Bytes) -> Iterator[Bytes]:
    content.flags.writeable = False  # what the checksum's library asks for
    return (content[at : at + PIECE_BYTES] for at in range(0, content.size, PIECE_BYTES))


def _encode_strings(tensor: tf.Tensor) -> tuple[list[bytes], int]:
    """The encoding of a string tensor (lengths, their checksum, the strings) and the checksum of all of it.

    That checksum covers the lengths in a fixed width.
    """
    # as objects: NumPy's own type for bytes drops zeros at the end of a text
    texts: list[bytes] = np.asarray(tensor.numpy(), dtype=object).reshape(-1).tolist()
    fixed = b"".join(struct.pack("<I" if len(text) < 1 << 32 else "<Q", len(text)) for text in texts)
    crc = crc32c.checksum(fixed)
    of_lengths = struct.pack("<I", sstable.mask(crc))
    crc = crc32c.extend(crc, of_lengths)
    for text in texts:
        crc = crc32c.extend(crc, text)
    return [b"".join(encode_varint(len(text)) for text in texts), of_lengths, *texts], crc
