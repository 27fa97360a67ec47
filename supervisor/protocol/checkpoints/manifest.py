"""The manifest: the record that makes a directory a checkpoint, and the proof that it is whole.

A directory without a valid manifest does not exist as a checkpoint. The manifest is written last, names every
other file with size and hash, and carries a hash of itself, which is made in the same way in every format: so one of a
later format is told from one that was changed.

It has a codec of its own: the wire's, which lies above, makes text and numbers harmless, and here every byte counts.
"""

import errno
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from supervisor.protocol import durable, layout
from supervisor.protocol.damage import DAMAGE_ERRNOS
from supervisor.protocol.formats import check_format

FORMAT = 1
MAX_BYTES = 4 << 20  # a manifest is kilobytes; parsing more would hold up the process that asks
MAX_FILES = 20_000  # what fits
MAX_TEXT = 1000  # characters of a job's name or a hash: errors repeat them

MAX_NAME_BYTES = 255  # of every file system that matters
_PLAIN_NAME = re.compile(r"[^/\0\ud800-\udfff]+")


class ManifestError(ValueError):
    """A checkpoint is not whole, or its manifest is not one; the text says which file and why."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint: plain name, size in bytes, hash as `durable.hash_file` gives it."""

    name: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file that a node has uploaded. `hash`: of the very bytes that were sent, as in a manifest; `tag`: what the
    store calls this version of the object (its ETag), None if it has none."""

    name: str
    size: int
    hash: str
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds. `created_wall_at` is Unix time; `metrics` are those of the step it was taken at."""

    job: str
    attempt: int
    step: int
    created_wall_at: float
    files: tuple[FileRecord, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    topology: Mapping[str, str | int | bool] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        """Bytes of all files it names."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> layout.CheckpointName:
        """The directory name it belongs into."""
        return layout.CheckpointName(self.step, self.attempt)

    def to_bytes(self) -> bytes:
        """The file's content: one JSON object whose `self_hash` covers all the rest.

        Raises ManifestError if it is larger than what can be read back.
        """
        body = asdict(self)
        content = (json.dumps({**body, "self_hash": _self_hash(body)}, indent=1, allow_nan=False) + "\n").encode()
        if len(content) > MAX_BYTES:
            raise ManifestError(f"cannot write {layout.MANIFEST}: {len(content)} bytes, the limit is {MAX_BYTES}")
        return content


def _self_hash(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def parse_manifest(content: bytes) -> Manifest:
    """The manifest in a file's content.

    Raises ManifestError, saying what is wrong: not JSON, changed since it was written, fields missing or of the wrong
    kind, file names that would leave the directory; and NewerFormat for one that a later version wrote.
    """
    if len(content) > MAX_BYTES:
        raise ManifestError(f"{layout.MANIFEST} is {len(content)} bytes, more than the {MAX_BYTES} allowed")
    try:
        body = json.loads(content.decode())  # json would guess others than UTF-8, and import what this user can't read
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{layout.MANIFEST} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ManifestError(f"{layout.MANIFEST} is not a JSON object")
    claimed = body.pop("self_hash", None)
    try:
        actual = _self_hash(body)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{layout.MANIFEST} holds a value JSON does not allow: {error}") from error
    if claimed != actual:
        raise ManifestError(f"{layout.MANIFEST} was changed after it was written (its own hash does not match)")
    try:
        check_format(body, FORMAT, layout.MANIFEST)
    except ValueError as error:
        raise ManifestError(str(error)) from error
    return _from_body(body)


def _from_body(body: dict[str, Any]) -> Manifest:
    return Manifest(
        job=_text(body, "job"),
        attempt=_count(body, "attempt"),
        step=_count(body, "step"),
        created_wall_at=_number(body, "created_wall_at"),
        files=tuple(_file(item) for item in _files(body)),
        versions=_mapping(body, "versions", str),
        topology=_mapping(body, "topology", str, int, bool),
        metrics=_mapping(body, "metrics", int, float),
    )


def digest_of(content: bytes) -> str:
    """What says that two hosts speak of one manifest, and so of one checkpoint: the SHA-256 of its bytes, in hex."""
    return hashlib.sha256(content).hexdigest()


def verify_checkpoint(directory: Path, reads: bool = True) -> Manifest:
    """Proves that `directory` is a whole checkpoint: reads every byte of it and compares with its manifest.

    `reads`: False compares the sizes of files alone.

    Raises ManifestError if anything is missing, changed, of another size, or not where its name says; OSError if it
    can't be read for a reason that says nothing about the checkpoint.
    Costs one read of every file. Files the manifest does not name are ignored.
    """
    name = layout.parse_name(directory.name)
    if name is None and layout.is_unfinished(directory.name):
        raise ManifestError(f"{directory.name} is no checkpoint: an interrupted save left it, or it is one node's part")
    manifest = read_manifest(directory)
    if name is None:
        says = f"its {layout.MANIFEST} says {manifest.name}"
        raise ManifestError(f"{directory.name} is not a checkpoint's name; {says}: give it that name")
    if manifest.name != name:
        raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, the directory is called {directory.name}")
    for file in manifest.files:
        _verify_file(directory, file, reads)
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory, without proof that the files it names are whole. Raises as `verify` does."""
    with _reading(layout.MANIFEST):
        content = durable.read_file(directory / layout.MANIFEST, MAX_BYTES + 1)
    return parse_manifest(content)


def record_files(directory: Path, names: tuple[str, ...]) -> tuple[FileRecord, ...]:
    """Sizes and hashes of the named files, for a manifest that is about to be written."""
    return tuple(FileRecord(name, *durable.hash_file(directory / name)) for name in names)


def _verify_file(directory: Path, expected: FileRecord, reads: bool) -> None:
    with _reading(expected.name):
        on_disk = (directory / expected.name).lstat().st_size
        if on_disk != expected.size:
            raise ManifestError(f"{expected.name} is {on_disk} bytes, its manifest says {expected.size}")
        if not reads:
            return
        size, file_hash = durable.hash_file(directory / expected.name)
    if size != expected.size or file_hash != expected.hash:
        raise ManifestError(f"{expected.name} has hash {file_hash}, its manifest says {expected.hash}")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Makes ManifestErrors of those OSErrors that say the file is bad."""
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE_ERRNOS:
            raise
        why = f"{name} is missing" if error.errno == errno.ENOENT else f"{name}: {error.strerror}"
        raise ManifestError(why) from error


def _wrong(key: str, value: object, wanted: str) -> ManifestError:
    return ManifestError(f"{layout.MANIFEST}: {key} is {value!r:.80}, not {wanted}")


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(key, value, f"a text of at most {MAX_TEXT} characters")
    return value


def _count(body: Mapping[str, Any], key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise _wrong(key, value, "a whole number from 0 to 2**63 - 1")
    return value


def _number(body: Mapping[str, Any], key: str) -> float:
    value = body.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise _wrong(key, value, "a finite number")
    return float(value)


def _mapping(body: Mapping[str, Any], key: str, *kinds: type) -> dict[str, Any]:
    value = body.get(key)
    if not isinstance(value, dict) or not all(isinstance(item, kinds) for item in value.values()):
        raise _wrong(key, value, f"an object of {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file inside a folder, and leads nowhere else."""
    is_plain = name not in {".", ".."} and _PLAIN_NAME.fullmatch(name) is not None
    return is_plain and len(name.encode(errors="replace")) <= MAX_NAME_BYTES


def _files(body: Mapping[str, Any]) -> list[Any]:
    value = body.get("files")
    if not isinstance(value, list) or not 0 < len(value) <= MAX_FILES:
        raise _wrong("files", value, f"a list of 1 to {MAX_FILES} files")
    names = [item.get("name") for item in value if isinstance(item, dict)]
    if len(set(map(str, names))) != len(value):
        raise ManifestError(f"{layout.MANIFEST} names a file twice, or holds something that is not a file")
    return value


def _file(item: Mapping[str, Any]) -> FileRecord:
    name = _text(item, "name")
    if name == layout.MANIFEST or not is_plain_name(name):
        raise _wrong("a file's name", name, "a plain name inside the checkpoint's directory")
    return FileRecord(name=name, size=_count(item, "size"), hash=_text(item, "hash"))
