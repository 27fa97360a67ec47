"""A file in memory with room for two copies of a job's state, written in turns, and the proof that one is whole.

Why nothing but the state of one step is ever taken from it
-----------------------------------------------------------
The file (memfd_create(2)) has two halves of equal size. The worker writes its newest state into the half that holds the
older copy, so that one whole copy is there at any time after the first:

    between two steps    the half's trailer is overwritten with zeros, then the tensors are copied into the half
    beside training      the other files of the checkpoint and the description follow, then all is hashed
    last                 the trailer: which copy this is (they are counted), its lengths, the hash of all of it, and the
                         hash of the trailer itself

A worker may die at any moment. Before the trailer is written the half does not count, and the other one does. A trailer
that is only half written does not have its own hash. What a dying process overwrote (a crash may come from memory that
was damaged), or what is copied while somebody still writes, does not have the hash in the trailer. So a copy is whole
if both hashes are right, and of two whole ones the one with the higher number is newer.

The size of the file is sealed (fcntl(2), F_SEAL_SHRINK): whoever reads it can't be made to read behind its end.

A half holds what a checkpoint's folder does, less the manifest and the index of the tensors, which are made when it is
written to the disk: a `Description` says which tensors lie where.
"""

import contextlib
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import xxhash

from supervisor.protocol.checkpoints.manifest import is_plain_name
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.layout import MANIFEST, CheckpointName
from supervisor.protocol.wire.codec import decode_record, encode_record, parse_object
from supervisor.protocol.wire.limits import Attempt, Items, Range, Step, Text

PAGE_BYTES = 4096  # what a copy and each part of it begin at a multiple of
FORMAT = 1
MAX_DESCRIPTION_BYTES = 256 << 20  # of a million tensors
MAX_BYTES = 1 << 50
HASHED_BYTES = 16 << 20  # at a time

SOCKET_NAME = "stepkeeper-memory-"  # begin of the name of the abstract socket at which a worker gets the file

_MAGIC = b"stepmem1"
_TRAILER = struct.Struct("<8sQQQ16s")  # magic, number of the copy, length of the parts, of the description, their hash
_HASH_BYTES = 16
_TRAILER_BYTES = _TRAILER.size + _HASH_BYTES

Place = Annotated[int, Range(0, MAX_BYTES)]
Name = Annotated[str, Text(4096)]


class NoCopy(ValueError):
    """A half holds no whole copy; the text says why."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor in its bundle's data file. `dtype`: TensorFlow's number of its type. `crc`: the checksum of its content,
    if that is not the one of all its bytes."""

    name: Name
    dtype: int
    shape: tuple[int, ...]
    offset: Place
    size: Place
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class BundlePlace:
    """Where the data file of a bundle lies, and which tensors it holds, in their order there."""

    prefix: Name
    offset: Place
    size: Place
    tensors: tuple[TensorPlace, ...]


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where another file of the checkpoint lies."""

    name: Name
    offset: Place
    size: Place


@dataclass(frozen=True, slots=True)
class Description:
    """What a copy is of, and where its parts lie. The names are those of the manifest that it becomes."""

    job: Annotated[str, Text(1000)]
    attempt: Attempt
    step: Step
    created_wall_at: float
    bundles: Annotated[tuple[BundlePlace, ...], Items(100)]
    files: Annotated[tuple[FilePlace, ...], Items(10_000)]
    versions: Mapping[str, str] = field(default_factory=dict)
    topology: Mapping[str, str | int | bool] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def name(self) -> CheckpointName:
        """The checkpoint that it becomes."""
        return CheckpointName(self.step, self.attempt)


@dataclass(frozen=True, slots=True)
class WholeCopy:
    """A copy that was proven. `begin`: where its half begins in the file."""

    begin: int
    half: memoryview
    description: Description


@dataclass(frozen=True, slots=True)
class Trailer:
    """What is written last into a half. `number`: how many copies the worker has begun so far."""

    number: int
    parts_bytes: int
    description_bytes: int
    hash: bytes

    def to_bytes(self) -> bytes:
        """As it lies in the last page of the half."""
        content = _TRAILER.pack(_MAGIC, self.number, self.parts_bytes, self.description_bytes, self.hash)
        return content + xxhash.xxh3_128_digest(content)


NO_TRAILER = bytes(_TRAILER_BYTES)


def half_bytes(parts_bytes: int) -> int:
    """How large a half is that has room for so many bytes with their trailer."""
    return in_pages(parts_bytes) + PAGE_BYTES


def in_pages(size: int) -> int:
    """A size, rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def trailer_at(size: int) -> int:
    """Where in a half of `size` bytes its trailer begins."""
    return size - PAGE_BYTES


def seal(half: memoryview, number: int, parts_bytes: int, description: Description) -> None:
    """Completes a copy whose parts are in the half: appends the description, then the trailer.

    Raises ValueError if there is no room for it.
    """
    begin, words = in_pages(parts_bytes), encode_record(description).encode()
    if begin + len(words) > trailer_at(len(half)):
        raise ValueError(f"a copy of {begin + len(words)} bytes in a half of {len(half)}")
    half[begin : begin + len(words)] = words
    trailer = Trailer(number, begin, len(words), _hash_of(half[: begin + len(words)]))
    half[trailer_at(len(half)) :][:_TRAILER_BYTES] = trailer.to_bytes()


def unseal(half: memoryview) -> None:
    """From now on the half holds no copy."""
    half[trailer_at(len(half)) :][:_TRAILER_BYTES] = NO_TRAILER


def read_trailer(half: memoryview) -> Trailer:
    """The trailer of a half, which proves nothing yet of the rest. Raises NoCopy."""
    if len(half) < PAGE_BYTES:
        raise NoCopy(f"it is {len(half)} bytes long")
    content = bytes(half[trailer_at(len(half)) :][:_TRAILER_BYTES])
    if content == NO_TRAILER:
        raise NoCopy("it was not complete")
    magic, number, parts_bytes, description_bytes, parts_hash = _TRAILER.unpack(content[: _TRAILER.size])
    if magic != _MAGIC or xxhash.xxh3_128_digest(content[: _TRAILER.size]) != content[_TRAILER.size :]:
        raise NoCopy("its trailer is damaged")
    if description_bytes > MAX_DESCRIPTION_BYTES or parts_bytes + description_bytes > trailer_at(len(half)):
        raise NoCopy("its trailer names more than there is")
    return Trailer(number, parts_bytes, description_bytes, parts_hash)


def prove(half: memoryview) -> Description:
    """The description of a whole copy: reads all of its bytes. Raises NoCopy."""
    trailer = read_trailer(half)
    begin, end = trailer.parts_bytes, trailer.parts_bytes + trailer.description_bytes
    if _hash_of(half[:end]) != trailer.hash:
        raise NoCopy("its bytes do not have the hash in its trailer")
    try:
        body = parse_object(bytes(half[begin:end]))
        check_format(body, FORMAT, "it")
        description = decode_record(body, Description, "its description")
    except (ValueError, NewerFormat) as error:
        raise NoCopy(str(error)) from error
    _require_sane(description, begin)
    return description


def newest_first(memory: memoryview) -> Iterator[memoryview]:
    """The halves of a file that seem to hold a copy, by their trailers."""
    for begin in _begins_newest_first(memory):
        yield memory[begin : begin + len(memory) // 2]


def _begins_newest_first(memory: memoryview) -> list[int]:
    size = len(memory) // 2
    numbered = []
    for begin in (0, size):
        with contextlib.suppress(NoCopy):
            numbered.append((read_trailer(memory[begin : begin + size]).number, begin))
    return [begin for _, begin in sorted(numbered, reverse=True)]


def prove_newest(memory: memoryview, job: str, attempt: int) -> WholeCopy:
    """The newest whole copy, which has to be of that attempt. Raises NoCopy if there is none."""
    reasons = []
    for begin in _begins_newest_first(memory):
        half = memory[begin : begin + len(memory) // 2]
        try:
            description = prove(half)
        except NoCopy as error:
            reasons.append(str(error))
            continue
        if (description.job, description.attempt) == (job, attempt):
            return WholeCopy(begin, half, description)
        reasons.append(f"it is of attempt {description.attempt} of {description.job:.100}")
    raise NoCopy(f"no copy in memory is whole: {'; '.join(reasons) or 'none was complete'}")


def _hash_of(content: memoryview | mmap.mmap) -> bytes:
    digest = xxhash.xxh3_128()
    view = memoryview(content)
    for at in range(0, len(view), HASHED_BYTES):  # the interpreter's lock is free during each piece
        digest.update(view[at : at + HASHED_BYTES])
    return digest.digest()


def _require_sane(description: Description, parts_bytes: int) -> None:
    """Raises NoCopy if a part lies outside, or has a name that leads out of the folder, or that of another."""
    names: list[str] = []
    for bundle in description.bundles:
        names += [f"{bundle.prefix}.data-00000-of-00001", f"{bundle.prefix}.index"]
        _require_inside(bundle, parts_bytes)
        end = 0
        for tensor in bundle.tensors:
            if tensor.offset != end:
                raise NoCopy(f"{tensor.name:.80} does not lie behind the tensor before it")
            end += tensor.size
        if end != bundle.size:
            raise NoCopy(f"the tensors of {bundle.prefix:.80} have {end} bytes, their file {bundle.size}")
    for file in description.files:
        names.append(file.name)
        _require_inside(file, parts_bytes)
    bad = next((name for name in names if name == MANIFEST or not is_plain_name(name)), None)
    if bad is not None or len(set(names)) < len(names):
        raise NoCopy(f"it names files that no checkpoint has ({bad!r:.80})")


def _require_inside(part: Any, parts_bytes: int) -> None:
    if part.offset + part.size > parts_bytes:
        raise NoCopy("it names a part that lies outside of it")
