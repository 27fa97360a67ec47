"""Reads a checkpoint once for all workers of a gang: each reads a share of its bytes, and all get the whole.

Otherwise each worker reads all of it, and a folder that hosts share is read as often as there are workers.

1. All say what they see: the host, the manifest, whether the files have its sizes, and whether there is memory and
   place for a copy. If one of them can't take part, each reads all by itself.
2. In rounds, each worker reads one piece and puts it into a sum over all workers, in which the others have zeros; so
   all get all pieces, and write them into files in memory (memfd_create(2)), which end with the process.
3. Each worker hashes every file as it gets the pieces, and nothing is used before all have compared all hashes with the
   manifest: what a worker read wrongly, and what was changed on the way, is seen by all of them. TensorFlow then
   restores from those files, and checks its own checksums as ever.

A worker that can't read a piece says so in that round, and all end there: they have to make the same calls.
"""

import contextlib
import json
import os
import platform
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from supervisor.protocol import durable, layout
from supervisor.protocol.available_memory import available_memory
from supervisor.protocol.checkpoints.manifest import MAX_BYTES, FileRecord, Manifest, ManifestError, parse_manifest
from supervisor.protocol.plurals import counted_bytes
from supervisor.protocol.wire.launch import LEAST_READING_TOGETHER
from worker.data.collectives import Gang
from worker.process.temporary_folder import temporary_folder

LEAST_BYTES = 32 << 20  # of a checkpoint: each has read a smaller one in a tenth of a second
ROUND_BYTES = 32 << 20  # of all workers' pieces together
LEAST_PIECE_BYTES = 64 << 10  # with so many workers that a piece would be smaller, a round is larger
BUFFERS = 4  # times the bytes of a round: the table, its copies in TensorFlow, and the sum
_WORD_BYTES = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class SharingRule:
    """From how many bytes, and from how many hosts on, workers read together: those of one host share a page cache."""

    least_bytes: int
    least_hosts: int


ALWAYS = SharingRule(0, 1)
IF_IT_PAYS = SharingRule(LEAST_BYTES, LEAST_READING_TOGETHER)


class CannotShare(Exception):
    """Each worker has to read the checkpoint by itself; the text says why."""


@dataclass(frozen=True, slots=True)
class _View:
    """What a worker says of itself and the checkpoint. `manifest`: its checksum; `problem`: why it can't take part."""

    host: str
    manifest: int = 0
    size_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some bytes of a file. `number`: of the file, in the manifest's order."""

    number: int
    offset: int
    size: int


@contextlib.contextmanager
def read_together(folder: Path, gang: Gang, rule: SharingRule, round_bytes: int = ROUND_BYTES) -> Iterator[Path | None]:
    """A copy of the checkpoint in `folder` that is proven whole, for as long as the context lasts. All workers call it.

    None where sharing gains nothing, as the `rule` says. `round_bytes`: of all workers' pieces together.

    Raises CannotShare, on all workers.
    """
    piece_bytes = max(LEAST_PIECE_BYTES, round_bytes // gang.size // _WORD_BYTES * _WORD_BYTES)
    with contextlib.ExitStack() as stack:
        content, manifest, mine = _look_at(folder, BUFFERS * gang.size * piece_bytes)
        place, copies = Path(), list[int]()
        if manifest is not None and mine.size_bytes >= rule.least_bytes:
            try:
                place, copies = _make_copies(stack, folder.name, content, manifest)
            except OSError as error:  # such as a full /tmp of one host
                mine = replace(mine, problem=f"there is no place for a copy: {error}")
        views = [_View(**json.loads(part)) for part in gang.gather(json.dumps(asdict(mine)).encode())]
        is_small = max(view.size_bytes for view in views) < rule.least_bytes
        if is_small or len({view.host for view in views}) < rule.least_hosts:
            yield None
            return
        for rank, view in enumerate(views):
            problem = view.problem or ("it sees another manifest" if view.manifest != views[0].manifest else None)
            if problem is not None:
                raise CannotShare(f"worker {rank}: {problem}")
        assert manifest is not None
        _fill(folder, manifest.files, copies, gang, piece_bytes)
        yield place


def _make_copies(stack: contextlib.ExitStack, name: str, content: bytes, manifest: Manifest) -> tuple[Path, list[int]]:
    """A folder like the checkpoint's, and what its files are to be filled through; empty as yet. Raises OSError."""
    copies = list[int]()
    for _ in manifest.files:
        copies.append(os.memfd_create("stepkeeper-restore", os.MFD_CLOEXEC))
        stack.callback(os.close, copies[-1])
    place = stack.enter_context(temporary_folder()) / name
    place.mkdir()
    (place / layout.MANIFEST).write_bytes(content)
    for file, descriptor in zip(manifest.files, copies, strict=True):
        (place / file.name).symlink_to(f"/proc/self/fd/{descriptor}")
    return place, copies


def _look_at(folder: Path, buffer_bytes: int) -> tuple[bytes, Manifest | None, _View]:
    """What this worker sees: the manifest's content, and the manifest if it can be read."""
    view = _View(_host())
    try:
        content = durable.read_file(folder / layout.MANIFEST, MAX_BYTES + 1)
        manifest = parse_manifest(content)
        for file in manifest.files:
            if (here := (folder / file.name).lstat().st_size) != file.size:
                raise ManifestError(f"{file.name} is {here} bytes, its manifest says {file.size}")
        needed = manifest.size_bytes + buffer_bytes
        free, _ = available_memory()
    except (OSError, ManifestError, ValueError) as error:
        return b"", None, _View(view.host, problem=str(error))
    problem = (
        f"{counted_bytes(free)} of memory are free, and {counted_bytes(needed)} are needed" if free < needed else None
    )
    return content, manifest, _View(view.host, zlib.crc32(content), manifest.size_bytes, problem)


def _host() -> str:
    """One word for all processes that have one page cache."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def _pieces_of(files: Sequence[FileRecord], size: int) -> list[_Piece]:
    """All bytes of the files, in order. Which worker reads a piece follows from its number."""
    return [
        _Piece(number, offset, min(size, file.size - offset))
        for number, file in enumerate(files)
        for offset in range(0, file.size, size)
    ]


def _fill(folder: Path, files: Sequence[FileRecord], copies: Sequence[int], gang: Gang, piece_bytes: int) -> None:
    """Gets all files into `copies`, together with the other workers. Raises CannotShare, on all of them."""
    pieces = _pieces_of(files, piece_bytes)
    digests = [xxhash.xxh3_128() for _ in files]
    problem: str | None = None
    for first in range(0, len(pieces), gang.size):
        words = np.zeros(1 + piece_bytes // _WORD_BYTES, np.int64)
        mine = first + gang.rank
        try:
            if mine < len(pieces):
                _read(folder / files[pieces[mine].number].name, pieces[mine], words[1:].data.cast("B"))
                _read_ahead(folder, files, pieces[mine + gang.size : mine + gang.size + 1])
        except OSError as error:
            problem, words[0] = f"cannot read {folder.name}: {error}", 1
        table = gang.gather_numbers(words)
        if (failed := np.flatnonzero(table[:, 0])).size:
            raise CannotShare(f"worker {failed[0]}: {problem or f'it cannot read {folder.name}'}")
        for rank, piece in enumerate(pieces[first : first + gang.size]):
            content = table[rank, 1:].data.cast("B")[: piece.size]
            digests[piece.number].update(content)
            try:
                _write(copies[piece.number], content, piece.offset)
            except OSError as error:  # it is said at the end: the rounds of all go on
                problem = f"no memory for a copy: {error.strerror}"
    for file, digest in zip(files, digests, strict=True):
        if (hashed := f"xxh3_128:{digest.hexdigest()}") != file.hash:
            problem = f"{file.name} has hash {hashed}, its manifest says {file.hash}"
    failed = np.flatnonzero(gang.gather_numbers(np.array([int(problem is not None)])))
    if failed.size:
        raise CannotShare(f"worker {failed[0]}: {problem or f'it has no whole copy of {folder.name}'}")


def _read(path: Path, piece: _Piece, into: memoryview) -> None:
    """Raises OSError, also for a file that ends too early."""
    with durable.open_regular(path) as file:
        rest = into[: piece.size]
        at = piece.offset
        while rest:
            length = os.preadv(file.fileno(), [rest], at)
            if length == 0:
                raise OSError(f"{path.name} ends at {at}")
            rest, at = rest[length:], at + length


def _read_ahead(folder: Path, files: Sequence[FileRecord], pieces: Sequence[_Piece]) -> None:
    """Has the disk read what this worker reads next, while the workers exchange what they have."""
    for piece in pieces:
        with durable.open_regular(folder / files[piece.number].name) as file:
            os.posix_fadvise(file.fileno(), piece.offset, piece.size, os.POSIX_FADV_WILLNEED)


def _write(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
