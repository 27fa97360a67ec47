"""A file in memory with room for two copies of a job's state, written in turns, and the proof that one is whole.

Why nothing but the state of one step is ever taken from it
-----------------------------------------------------------
The file (memfd_create(2)) has two halves of equal size. The worker writes its newest state into the half that holds the
older copy, so that one whole copy is there at any time after the first:

    between two steps    the half's trailer is overwritten with zeros, then the tensors are copied into the half
    beside training      the other files of the checkpoint and the description follow, then all is hashed, in pieces
                         that several threads can prove side by side
    last                 the trailer: which copy this is (they are counted), its lengths, the hash of the hashes of its
                         pieces, and the hash of the trailer itself

A worker may die at any moment. Before the trailer is written the half does not count, and the other one does. A trailer
that is only half written does not have its own hash. What a dying process overwrote (a crash may come from memory that
was damaged), or what is copied while somebody still writes, does not have the hash in the trailer. So a copy is whole
if both hashes are right, and of two whole ones the one with the higher number is newer.

The size of the file is sealed (fcntl(2), F_SEAL_SHRINK): whoever reads it can't be made to read behind its end.

A half holds what a checkpoint's folder does, less the manifest and the index of the tensors, which are made when it is
written to the disk: a `Description` says which tensors lie where.
"""

import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import xxhash

from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest, is_plain_name
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.layout import MANIFEST, CheckpointName
from supervisor.protocol.wire.codec import decode_record, encode_record, parse_object
from supervisor.protocol.wire.limits import Attempt, Items, Range, Step, Text

PAGE_BYTES = 4096  # what a copy and each part of it begin at a multiple of
FORMAT = 1
MAX_DESCRIPTION_BYTES = 256 << 20  # of a million tensors
MAX_BYTES = 1 << 50
PIECE_BYTES = 16 << 20  # that have a hash of their own

FILE_NAME = "stepkeeper-state"  # of the file, by which a daemon finds it that can't ask the worker
SOCKET_NAME = "stepkeeper-memory-"  # begin of the name of the abstract socket at which a worker gets the file

_MAGIC = b"stepmem2"
_MAGIC_OF_ONE_HASH = b"stepmem1"  # of workers of an earlier version: one hash of all bytes
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

    def manifest(self, files: Iterable[FileRecord]) -> Manifest:
        """That of the checkpoint that it becomes, with these files."""
        made = self.job, self.attempt, self.step, self.created_wall_at
        return Manifest(*made, tuple(files), self.versions, self.topology, self.metrics)


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
    is_of_one_hash: bool = False

    def to_bytes(self) -> bytes:
        """As it lies in the last page of the half."""
        magic = _MAGIC_OF_ONE_HASH if self.is_of_one_hash else _MAGIC
        content = _TRAILER.pack(magic, self.number, self.parts_bytes, self.description_bytes, self.hash)
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
    if xxhash.xxh3_128_digest(content[: _TRAILER.size]) != content[_TRAILER.size :]:
        raise NoCopy("its trailer is damaged")
    if magic not in (_MAGIC, _MAGIC_OF_ONE_HASH):
        raise NoCopy("its trailer is of another version of stepkeeper")
    if description_bytes > MAX_DESCRIPTION_BYTES or parts_bytes + description_bytes > trailer_at(len(half)):
        raise NoCopy("its trailer names more than there is")
    return Trailer(number, parts_bytes, description_bytes, parts_hash, magic == _MAGIC_OF_ONE_HASH)


def prove(half: memoryview, threads: int = 1) -> Description:
    """The description of a whole copy: reads all of its bytes, with so many threads. Raises NoCopy."""
    trailer = read_trailer(half)
    begin, end = trailer.parts_bytes, trailer.parts_bytes + trailer.description_bytes
    found = _one_hash_of(half[:end]) if trailer.is_of_one_hash else _hash_of(half[:end], threads)
    if found != trailer.hash:
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


def prove_newest(memory: memoryview, job: str, attempt: int, threads: int = 1) -> WholeCopy:
    """The newest whole copy, which has to be of that attempt, proven with so many threads.

    Raises NoCopy if there is none.
    """
    reasons = []
    for begin in _begins_newest_first(memory):
        half = memory[begin : begin + len(memory) // 2]
        try:
            description = prove(half, threads)
        except NoCopy as error:
            reasons.append(str(error))
            continue
        if (description.job, description.attempt) == (job, attempt):
            return WholeCopy(begin, half, description)
        reasons.append(f"it is of attempt {description.attempt} of {description.job:.100}")
    raise NoCopy(f"no copy in memory is whole: {'; '.join(reasons) or 'none was complete'}")


def _hash_of(content: memoryview, threads: int = 1) -> bytes:
    pieces = _pieces_of(content)  # the interpreter's lock is free while one is hashed
    if threads == 1 or len(pieces) == 1:
        digests = list(map(xxhash.xxh3_128_digest, pieces))
    else:
        with ThreadPoolExecutor(min(threads, len(pieces)), "stepkeeper-proof") as pool:
            digests = list(pool.map(xxhash.xxh3_128_digest, pieces))
    return xxhash.xxh3_128_digest(b"".join(digests))


def _one_hash_of(content: memoryview) -> bytes:
    digest = xxhash.xxh3_128()
    for piece in _pieces_of(content):
        digest.update(piece)
    return digest.digest()


def _pieces_of(content: memoryview) -> list[memoryview]:
    return [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]


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
