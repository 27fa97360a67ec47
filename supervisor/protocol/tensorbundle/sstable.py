"""A sorted table of keys and values in LevelDB's file format: read block by block, each proven by its checksum; made.

The index of a TensorFlow checkpoint is such a file. Layout, from the start: data blocks, a metaindex block, an index
block (one entry for each data block), a footer of 48 bytes. Every block is followed by a type byte and a masked
crc32c over block and type.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from supervisor.protocol import durable
from supervisor.protocol.damage import BundleError, Damage, errors_as_damage
from supervisor.protocol.tensorbundle import crc32c
from supervisor.protocol.tensorbundle.protowire import decode_varint, encode_varint

FOOTER_BYTES = 48
MAGIC = bytes.fromhex("57fb808b247547db")
TRAILER_BYTES = 5  # type byte, checksum
MAX_BLOCK_BYTES = 64 << 20  # TensorFlow's are about 256 KiB; more is no index of tensors
MAX_KEY_BYTES = 64 << 10  # the longest path of a variable is far below
BLOCK_BYTES = 256 << 10  # of a data block, once its last entry is in it; TensorFlow's own figure, as the next two
RESTART_ENTRIES = 16  # after so many a key is written in full
INDEX_RESTART_ENTRIES = 1


@dataclass(frozen=True, slots=True)
class _Handle:
    """Where a block lies; `size` is without its trailer."""

    offset: int
    size: int


def masked_crc(content: bytes) -> int:
    """The crc32c of some bytes as TensorFlow stores it."""
    return mask(crc32c.checksum(content))


def mask(crc: int) -> int:
    """TensorFlow stores checksums so, because a checksum of bytes that hold their own checksum proves nothing."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values, in their order. Holds one block in memory.

    Raises BundleError as soon as something is wrong; OSError if the file can't be read for a reason of its own.
    """
    with errors_as_damage(path.name), durable.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        index = _footer(file, size, path.name)
        last: bytes | None = None
        for _, value in _block_entries(_block(file, index, size, path.name), path.name):
            handle, _ = _handle_at(value, 0, path.name)
            for key, entry in _block_entries(_block(file, handle, size, path.name), path.name):
                if last is not None and key <= last:
                    raise BundleError(Damage.MALFORMED, f"{path.name}: its keys are not in order at {key!r:.120}")
                last = key
                yield key, entry


def _footer(file: BinaryIO, size: int, name: str) -> _Handle:
    """The handle of the index block."""
    if size < FOOTER_BYTES:
        raise BundleError(Damage.TRUNCATED, f"{name} is {size} bytes, too short for an index")
    file.seek(size - FOOTER_BYTES)
    footer = file.read(FOOTER_BYTES)
    if footer[-len(MAGIC) :] != MAGIC:
        raise BundleError(Damage.TRUNCATED, f"{name} does not end as an index does: cut off, or another kind of file")
    _, after = _handle_at(footer, 0, name)
    return _handle_at(footer, after, name)[0]


def _handle_at(content: bytes, at: int, name: str) -> tuple[_Handle, int]:
    try:
        offset, at = decode_varint(content, at)
        size, at = decode_varint(content, at)
    except ValueError as error:
        raise BundleError(Damage.MALFORMED, f"{name}: the place of a block is not a number") from error
    return _Handle(offset, size), at


def _block(file: BinaryIO, handle: _Handle, file_bytes: int, name: str) -> bytes:
    """A block's contents, proven by its checksum."""
    if handle.size > MAX_BLOCK_BYTES or handle.offset + handle.size + TRAILER_BYTES > file_bytes:
        where = f"a block of {handle.size} bytes at {handle.offset}"
        raise BundleError(Damage.TRUNCATED, f"{name} is {file_bytes} bytes and should hold {where}")
    file.seek(handle.offset)
    content = file.read(handle.size + TRAILER_BYTES)
    if len(content) != handle.size + TRAILER_BYTES:
        raise BundleError(Damage.TRUNCATED, f"{name} became shorter while it was read")
    (stored,) = struct.unpack("<I", content[-4:])
    if masked_crc(content[:-4]) != stored:
        raise BundleError(Damage.CHECKSUM, f"{name}: the block at {handle.offset} does not match its checksum")
    if content[-TRAILER_BYTES] != 0:
        kind = content[-TRAILER_BYTES]
        raise BundleError(Damage.UNSUPPORTED, f"{name}: the block at {handle.offset} is compressed (type {kind})")
    return content[:-TRAILER_BYTES]


def _block_entries(block: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys share what they begin with: each entry says how many bytes of the key before it to take."""
    end = _end_of_entries(block, name)
    key, at = b"", 0
    while at < end:
        try:
            shared, at = decode_varint(block, at)
            rest, at = decode_varint(block, at)
            length, at = decode_varint(block, at)
        except ValueError as error:
            raise BundleError(Damage.MALFORMED, f"{name}: an entry of a block is cut off") from error
        if shared > len(key) or at + rest + length > end or shared + rest > MAX_KEY_BYTES:
            raise BundleError(Damage.MALFORMED, f"{name}: an entry of a block reaches over its end")
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + length]
        at += rest + length


def _end_of_entries(block: bytes, name: str) -> int:
    """Behind the entries stand offsets for a binary search, which a reader in order doesn't need, and their number."""
    if len(block) >= 4:
        (restarts,) = struct.unpack("<I", block[-4:])
        end = len(block) - 4 - 4 * int(restarts)
        if end >= 0:
            return int(end)
    raise BundleError(Damage.MALFORMED, f"{name}: a block of {len(block)} bytes has no end of its entries")


def encode_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The file that TensorFlow makes of these keys and values, byte for byte; keys in order, none twice."""
    out, index = bytearray(), _Block(INDEX_RESTART_ENTRIES)
    block, last = _Block(RESTART_ENTRIES), b""
    full: bytes | None = None  # where the block before this one lies; its entry waits for the key after it
    for key, value in pairs:
        if full is not None:
            index.add(_between(last, key), full)
            full = None
        block.add(key, value)
        last = key
        if block.size >= BLOCK_BYTES:
            full, block = _append(out, block), _Block(RESTART_ENTRIES)
    if block.entries:
        full = _append(out, block)
    meta = _append(out, _Block(RESTART_ENTRIES))
    if full is not None:
        index.add(_after(last), full)
    handles = meta + _append(out, index)
    return bytes(out) + handles.ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


class _Block:
    """A block that is being filled."""

    def __init__(self, restart_entries: int) -> None:
        self.entries = 0
        self._restart_entries = restart_entries
        self._body = bytearray()
        self._restarts = [0]
        self._last = b""

    @property
    def size(self) -> int:
        """Bytes so far, without the trailer."""
        return len(self._body) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.entries % self._restart_entries:
            shared = _shared(self._last, key)
        elif self.entries:
            self._restarts.append(len(self._body))
        self._body += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value)) + key[shared:] + value
        )
        self._last = key
        self.entries += 1

    def content(self) -> bytes:
        return bytes(self._body) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _append(out: bytearray, block: _Block) -> bytes:
    """Adds a block with its trailer, uncompressed; gives the handle."""
    content = block.content()
    handle = encode_varint(len(out)) + encode_varint(len(content))
    out += content + b"\0" + struct.pack("<I", masked_crc(content + b"\0"))
    return handle


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    if other.startswith(one):
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _between(last: bytes, following: bytes) -> bytes:
    """A short key from `last` on and before `following`, chosen as LevelDB does."""
    at = _shared(last, following)
    if at < min(len(last), len(following)) and last[at] < 0xFF and last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def _after(last: bytes) -> bytes:
    """A short key from `last` on, chosen as LevelDB does."""
    for at, byte in enumerate(last):
        if byte != 0xFF:
            return last[:at] + bytes([byte + 1])
    return last
