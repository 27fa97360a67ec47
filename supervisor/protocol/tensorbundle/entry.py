"""The records inside a TensorFlow checkpoint's index: a header, then an entry for each tensor."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from supervisor.protocol.tensorbundle.protowire import (
    BYTES,
    FIXED32,
    VARINT,
    as_signed,
    bytes_field,
    decode_fields,
    encode_varint,
    number_field,
)

MAX_SHARDS = 99_999  # the names of data files have five digits
MAX_DIMENSIONS = 254  # TensorFlow's own limit
MAX_SIZE = (1 << 63) - 1


class Dtype(IntEnum):
    """The element types that the checks treat specially."""

    INT32 = 3
    STRING = 7
    INT64 = 9
    VARIANT = 21


WIDTHS = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 8: 8, 9: 8, 10: 1, 11: 1, 12: 1, 13: 4, 14: 2, 15: 2, 16: 2, 17: 2,
          18: 16, 19: 2, 22: 4, 23: 8, 24: 1, 25: 1, 26: 1, 27: 1, 28: 1}  # fmt: skip
"""Bytes an element, by the number of its type (tensorflow/core/framework/types.proto); others aren't checked."""


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """How many data files there are."""

    shards: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor's bytes lie, and their masked crc32c. `elements`: how many its shape has."""

    name: str
    dtype: int
    dimensions: int
    elements: int
    shard: int
    offset: int
    size: int
    crc: int

    @property
    def is_counter(self) -> bool:
        """Whether it is one whole number."""
        return self.dimensions == 0 and self.dtype in (Dtype.INT32, Dtype.INT64)


def parse_header(key: bytes, record: bytes) -> BundleHeader:
    """The first record. Raises ValueError for another one, and for what TensorFlow's reader refuses too."""
    if key:
        raise ValueError("its first record is no header")
    values = {number: value for number, kind, value in decode_fields(record) if kind == VARINT}
    shards, big_endian = values.get(1, 0), values.get(2, 0)
    if not isinstance(shards, int) or not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"its header says there are {shards!r} data files")
    if big_endian:
        raise ValueError("it was written on a big-endian machine, which is not supported")
    return BundleHeader(shards)


def encode_header(shards: int) -> bytes:
    """The first record of a checkpoint, as TensorFlow writes it: little-endian, format version 1."""
    return number_field(1, shards) + bytes_field(3, number_field(1, 1))


HEADER = encode_header(1)
"""That of a checkpoint with one data file."""


def encode_tensor(dtype: int, shape: Sequence[int], offset: int, size: int, crc: int, shard: int = 0) -> bytes:
    """A tensor's record, as TensorFlow writes it. `crc`: masked; `shard`: the number of its data file."""
    dimensions = b"".join(bytes_field(2, number_field(1, length)) for length in shape)
    places = number_field(3, shard) + number_field(4, offset) + number_field(5, size)
    checksum = encode_varint(6 << 3 | FIXED32) + struct.pack("<I", crc) if crc else b""
    return number_field(1, dtype) + bytes_field(2, dimensions) + places + checksum


def parse_tensor(key: bytes, record: bytes) -> TensorEntry | None:
    """A tensor's record; None for that of a partitioned tensor, which has no bytes of its own. Raises ValueError."""
    name = key.decode(errors="backslashreplace")
    numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    shape: tuple[int, ...] = ()
    for number, kind, value in decode_fields(record):
        if number == 7 and kind == BYTES:
            return None
        if number == 2 and isinstance(value, bytes):
            shape += _shape(value)
            if len(shape) > MAX_DIMENSIONS:  # before their product, which takes minutes for a long list
                raise ValueError(f"{name!r:.120} has an impossible shape: over {MAX_DIMENSIONS} dimensions")
        elif number in numbers and isinstance(value, int) and kind == (FIXED32 if number == 6 else VARINT):
            numbers[number] = as_signed(value)
        elif number in numbers or number == 2:
            raise ValueError(f"the record of {name!r:.120} is not one of a tensor")
    entry = TensorEntry(name, numbers[1], len(shape), math.prod(shape), numbers[3], numbers[4], numbers[5], numbers[6])
    _check(entry, shape)
    return entry


def _check(entry: TensorEntry, shape: tuple[int, ...]) -> None:
    if min(shape, default=0) < 0 or entry.elements > MAX_SIZE:
        raise ValueError(f"{entry.name!r:.120} has an impossible shape")
    if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > MAX_SIZE:
        raise ValueError(f"{entry.name!r:.120} lies at an impossible place")
    width = WIDTHS.get(entry.dtype)
    if width is not None and entry.size != entry.elements * width:
        raise ValueError(
            f"{entry.name!r:.120} has {entry.elements} elements of {width} bytes but is {entry.size} bytes long"
        )
    if entry.dtype in (Dtype.STRING, Dtype.VARIANT) and entry.elements > entry.size:
        raise ValueError(f"{entry.name!r:.120} has {entry.elements} elements in {entry.size} bytes")


def _shape(record: bytes) -> tuple[int, ...]:
    dimensions = []
    for number, kind, value in decode_fields(record):
        if number == 2 and kind == BYTES and isinstance(value, bytes):
            sizes = [size for inner, inner_kind, size in decode_fields(value) if inner == 1 and inner_kind == VARINT]
            dimensions.append(as_signed(int(sizes[-1])) if sizes else 0)
            if len(dimensions) > MAX_DIMENSIONS:
                break  # the caller refuses it
    return tuple(dimensions)
