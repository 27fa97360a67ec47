"""Proves that a TensorFlow checkpoint is whole by the checksums inside it, without TensorFlow.

A checkpoint with prefix P is P.index, a table from names to entries, and P.data-SSSSS-of-NNNNN, in which the tensors
lie end to end. Every entry carries the checksum of its bytes. They prove that a file holds what was written, not that
all tensors were taken at the same step.

Memory is bounded: one block of the index, the entries (at most MAX_ENTRIES), one piece of data. Stricter than
TensorFlow's reader in this: bytes that belong to no tensor are an error too.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from supervisor.protocol import durable
from supervisor.protocol.damage import BundleError, Damage, errors_as_damage
from supervisor.protocol.tensorbundle import crc32c, sstable
from supervisor.protocol.tensorbundle import entry as bundle_entry
from supervisor.protocol.tensorbundle.entry import BundleHeader, Dtype, TensorEntry
from supervisor.protocol.tensorbundle.protowire import decode_varint

INDEX = ".index"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
MAX_ENTRIES = 1_000_000  # 0.3 GB here; the largest models have some ten thousand variables
MAX_NAMES_BYTES = 256 << 20  # of all names together
PIECE_BYTES = 128 << 10  # still in the processor's cache when it is hashed: with 1 MiB, a third slower
MAX_COUNTERS = 10_000


@dataclass(frozen=True, slots=True)
class Bundle:
    """A TensorFlow checkpoint that was read. `counters`: its whole-number scalars by name, among them the step.

    `object_based`: written by tf.train.Checkpoint; otherwise by TF1's Saver, under the variables' names.
    """

    prefix: Path
    tensors: int
    size_bytes: int
    shards: int
    object_based: bool
    counters: Mapping[str, int] = field(default_factory=dict)


def verify_bundle(prefix: Path) -> Bundle:
    """Reads every byte of a checkpoint and compares it with its checksums.

    Raises BundleError, which says what is damaged and how; OSError if it can't be read for a reason that says nothing
    about the checkpoint.
    """
    return _read(prefix, _prove_shard)


def read_counters(prefix: Path) -> Bundle:
    """The same without the proof: reads the index and the counters only. Raises as `verify` does."""
    return _read(prefix, _look_at_shard)


_ReadShard = Callable[["_Shard", list[TensorEntry], dict[str, int]], None]


def _read(prefix: Path, read_shard: _ReadShard) -> Bundle:
    index = prefix.with_name(prefix.name + INDEX)
    header, entries = _index(index)
    counters: dict[str, int] = {}
    size_bytes = 0
    by_shard: dict[int, list[TensorEntry]] = {number: [] for number in range(header.shards)}
    for entry in entries:
        if entry.shard not in by_shard:
            raise BundleError(
                Damage.MALFORMED, f"{index.name}: {entry.name!r} lies in shard {entry.shard} of {header.shards}"
            )
        by_shard[entry.shard].append(entry)
    for number, inside in by_shard.items():
        path = prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{header.shards:05d}")
        with errors_as_damage(path.name), durable.open_regular(path) as file:
            shard = _Shard(path.name, file, os.fstat(file.fileno()).st_size)
            size_bytes += shard.size
            read_shard(shard, sorted(inside, key=lambda entry: (entry.offset, entry.size)), counters)
    object_based = any(entry.name == OBJECT_GRAPH for entry in entries)
    return Bundle(prefix, len(entries), size_bytes, header.shards, object_based, counters)


def _index(path: Path) -> tuple[BundleHeader, list[TensorEntry]]:
    header: BundleHeader | None = None
    entries: list[TensorEntry] = []
    names_bytes = records = 0
    for key, value in sstable.read_table(path):
        try:
            if header is None:
                header = bundle_entry.parse_header(key, value)
                continue
            entry = bundle_entry.parse_tensor(key, value)
        except ValueError as error:
            raise BundleError(Damage.MALFORMED, f"{path.name}: {error}") from error
        records += 1
        names_bytes += len(key)
        if records > MAX_ENTRIES or names_bytes > MAX_NAMES_BYTES:
            raise BundleError(Damage.UNSUPPORTED, f"{path.name} names over {MAX_ENTRIES} tensors, or too long ones")
        if entry is None:  # a partitioned tensor: each of its parts has an entry of its own
            continue
        entries.append(entry)
    if header is None:
        raise BundleError(Damage.MALFORMED, f"{path.name} is empty: not even a header")
    return header, entries


@dataclass(frozen=True, slots=True)
class _Shard:
    """One open data file."""

    name: str
    file: BinaryIO
    size: int

    def pieces(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes."""
        while count:
            piece = self.file.read(min(count, PIECE_BYTES))
            if not piece:
                raise BundleError(Damage.TRUNCATED, f"{self.name} became shorter while it was read")
            count -= len(piece)
            yield piece

    def exactly(self, count: int) -> bytes:
        """The next few bytes."""
        return b"".join(self.pieces(count))


def _prove_shard(shard: _Shard, entries: list[TensorEntry], counters: dict[str, int]) -> None:
    """Reads a file from its beginning to its end: the entries must lie in it without gap or overlap."""
    claimed = max((entry.offset + entry.size for entry in entries), default=0)
    if claimed != shard.size:
        damage = Damage.TRUNCATED if shard.size < claimed else Damage.MALFORMED
        raise BundleError(damage, f"{shard.name} is {shard.size} bytes, its index says {claimed}")
    at = 0
    for entry in entries:
        if entry.offset != at:
            what = "overlaps what is before it" if entry.offset < at else "leaves a gap before it"
            raise BundleError(Damage.MALFORMED, f"{shard.name}: {entry.name!r} at {entry.offset} {what}")
        _prove(shard, entry, counters)
        at += entry.size


def _look_at_shard(shard: _Shard, entries: list[TensorEntry], counters: dict[str, int]) -> None:
    for entry in entries:
        if entry.is_counter:
            shard.file.seek(entry.offset)
            _prove(shard, entry, counters)


def _prove(shard: _Shard, entry: TensorEntry, counters: dict[str, int]) -> None:
    match entry.dtype:
        case Dtype.STRING:
            crc = _crc_of_strings(shard, entry)
        case Dtype.VARIANT:
            crc = _crc_of_variants(shard, entry)
        case _ if entry.is_counter:
            content = shard.exactly(entry.size)
            crc = crc32c.checksum(content)
            if len(counters) < MAX_COUNTERS:
                counters[entry.name] = int.from_bytes(content, "little", signed=True)
        case _:
            crc = 0
            for piece in shard.pieces(entry.size):
                crc = crc32c.extend(crc, piece)
    if sstable.mask(crc) != entry.crc:
        raise _mismatch(shard, entry)


def _mismatch(shard: _Shard, entry: TensorEntry) -> BundleError:
    where = f"{entry.size} bytes at {entry.offset}"
    return BundleError(Damage.CHECKSUM, f"{shard.name}: {entry.name!r} ({where}) does not match its checksum")


class _Span:
    """The bytes of an entry that is no plain array, taken in small portions."""

    def __init__(self, shard: _Shard, entry: TensorEntry) -> None:
        self._pieces = shard.pieces(entry.size)
        self._mismatch = _mismatch(shard, entry)
        self._held = b""
        self._at = 0

    def _fill(self, count: int) -> None:
        """Makes at least `count` bytes ready, if there are so many."""
        while len(self._held) - self._at < count:
            piece = next(self._pieces, None)
            if piece is None:
                return
            self._held, self._at = self._held[self._at :] + piece, 0

    def number(self) -> int:
        """The next varint. Raises BundleError if there is none."""
        self._fill(10)
        try:
            value, self._at = decode_varint(self._held, self._at)
        except ValueError as error:
            raise self._mismatch from error
        return value

    def take(self, count: int) -> Iterator[bytes]:
        """The next `count` bytes. Raises BundleError if there are fewer."""
        while count:
            if self._at == len(self._held):
                self._fill(1)
            piece = self._held[self._at : self._at + count]
            if not piece:
                raise self._mismatch
            self._at += len(piece)
            count -= len(piece)
            yield piece

    def stored_crc(self) -> bytes:
        """The next 4 bytes."""
        return b"".join(self.take(4))

    def done(self) -> None:
        """Raises BundleError if something is left."""
        self._fill(1)
        if self._at < len(self._held):
            raise self._mismatch


def _crc_of_strings(shard: _Shard, entry: TensorEntry) -> int:
    """All lengths, their checksum, all bytes. It covers each length in a fixed width, that checksum, and the bytes."""
    span = _Span(shard, entry)
    crc: int = 0
    total = 0
    for _ in range(entry.elements):
        length = span.number()
        total += length
        crc = crc32c.extend(crc, struct.pack("<I" if length < 1 << 32 else "<Q", length))
    stored = span.stored_crc()
    if stored != struct.pack("<I", sstable.mask(crc)) or total > entry.size:
        raise _mismatch(shard, entry)
    crc = crc32c.extend(crc, stored)
    for piece in span.take(total):
        crc = crc32c.extend(crc, piece)
    span.done()
    return crc


def _crc_of_variants(shard: _Shard, entry: TensorEntry) -> int:
    """For each element its length, its bytes, the checksum so far."""
    span = _Span(shard, entry)
    crc: int = 0
    for _ in range(entry.elements):
        length = span.number()
        if length > entry.size:
            raise _mismatch(shard, entry)
        crc = crc32c.extend(crc, struct.pack("<Q", length))
        for piece in span.take(length):
            crc = crc32c.extend(crc, piece)
        stored = span.stored_crc()
        if stored != struct.pack("<I", sstable.mask(crc)):
            raise _mismatch(shard, entry)
        crc = crc32c.extend(crc, stored)
    span.done()
    return crc
