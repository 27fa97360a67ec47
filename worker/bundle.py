"""A TensorFlow checkpoint, byte for byte as TensorFlow writes it, straight from tensors in memory.

One pass over each tensor: its checksum, the file's hash and the write, while the disk is at work on what came before.
TensorFlow's own writer copies every byte through a buffer, begins with the disk at the end, and gives no hash.
"""

import struct
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from supervisor.protocol import bundle_entry, crc32c, sstable, tensorbundle
from supervisor.protocol.appending import PIECE_BYTES
from supervisor.protocol.filling import NewFile, NewFolder
from supervisor.protocol.protowire import encoded

DATA = ".data-00000-of-00001"


def writable(dtype: tf.DType) -> bool:
    """Whether `write` knows how tensors of this type lie in the file; of the rest TensorFlow alone does (variants)."""
    return dtype == tf.string or dtype.as_datatype_enum in bundle_entry.WIDTHS


def write(folder: NewFolder, prefix: str, tensors: Iterable[tuple[str, tf.Tensor]]) -> None:
    """Makes PREFIX.data-00000-of-00001 and PREFIX.index. Holds no copy of a tensor; raises OSError."""
    data = folder.create(f"{prefix}{DATA}")
    records = {b"": bundle_entry.HEADER}
    for name, tensor in tensors:
        offset = data.size
        crc = sstable.mask(_strings(data, tensor) if tensor.dtype == tf.string else _plain(data, tensor))
        kind, shape = tensor.dtype.as_datatype_enum, tuple(tensor.shape)
        records[name.encode()] = bundle_entry.record(kind, shape, offset, data.size - offset, crc)
    folder.add(f"{prefix}{tensorbundle.INDEX}", sstable.table(sorted(records.items())))


def _plain(data: NewFile, tensor: tf.Tensor) -> int:
    """Writes the elements as they lie in memory; gives their checksum."""
    values = np.asarray(tensor.__array__())  # the tensor's own memory; `numpy()` would copy it
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    content.flags.writeable = False  # what the checksum's library asks for
    crc: int = 0
    for at in range(0, content.size, PIECE_BYTES):
        piece = content[at : at + PIECE_BYTES]
        crc = crc32c.extend(crc, piece)  # type: ignore[arg-type]  # a buffer: NumPy's types say so from Python 3.12 on
        data.write(piece.data)
    return crc


def _strings(data: NewFile, tensor: tf.Tensor) -> int:
    """Writes the lengths, their checksum, the bytes; gives the checksum, which covers lengths in a fixed width."""
    # as objects: NumPy's own type for bytes drops zeros at the end of a text
    texts: list[bytes] = np.asarray(tensor.numpy(), dtype=object).reshape(-1).tolist()
    fixed = b"".join(struct.pack("<I" if len(text) < 1 << 32 else "<Q", len(text)) for text in texts)
    crc = crc32c.value(fixed)
    of_lengths = struct.pack("<I", sstable.mask(crc))
    data.write(b"".join(encoded(len(text)) for text in texts) + of_lengths)
    crc = crc32c.extend(crc, of_lengths)
    for text in texts:
        crc = crc32c.extend(crc, text)
        data.write(text)
    return crc
