"""The wire format of protocol buffers, as much of it as the records inside a TensorFlow checkpoint need."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_SHIFT = 63  # of a varint's last byte: 64 bits in all


def decode_varint(content: bytes, at: int) -> tuple[int, int]:
    """The unsigned number of at most 64 bits at `at`, and where it ends. Raises ValueError."""
    value = shift = 0
    while at < len(content) and shift <= MAX_SHIFT:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at
        shift += 7
    raise ValueError("a number is cut off, or has more than 64 bits")


def encode_varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1 as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A field of type VARINT; nothing where it has its default, 0."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def bytes_field(number: int, content: bytes) -> bytes:
    """A field of type BYTES, present also where it is empty."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(content)) + content


def as_signed(value: int) -> int:
    """A varint's value as the int32 or int64 it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def decode_fields(content: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field: an int of VARINT, FIXED32 and FIXED64, bytes of BYTES.

    Raises ValueError for what is cut off, for groups, and for field number 0.
    """
    at = 0
    while at < len(content):
        tag, at = decode_varint(content, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has number 0")
        if kind == VARINT:
            value, at = decode_varint(content, at)
            yield number, kind, value
            continue
        length, at = _length(content, kind, at)
        if at + length > len(content):
            raise ValueError(f"field {number} reaches over the end of its record")
        piece = content[at : at + length]
        yield number, kind, piece if kind == BYTES else int.from_bytes(piece, "little")
        at += length


def _length(content: bytes, kind: int, at: int) -> tuple[int, int]:
    if kind == BYTES:
        return decode_varint(content, at)
    if kind in (FIXED32, FIXED64):
        return (4 if kind == FIXED32 else 8), at
    raise ValueError(f"a field has wire type {kind}")
