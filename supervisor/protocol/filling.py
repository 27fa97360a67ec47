"""A folder that is filled and then committed as one: its files are hashed while they are written, not read back.

The disk begins with a file's first bytes, so the sync at the end waits for the last ones only.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import xxhash

from supervisor.protocol import durable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 4 << 20  # between two requests to the disk: 1 MiB and 32 MiB were slower, 2 to 16 equal
SMALL_BYTES = 256 << 10  # less is gathered: one system call for many small tensors
SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h: begin to write these pages, wait for nothing


class NewFile:
    """A file that did not exist, written from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._digest = xxhash.xxh3_128()
        self._gathered = bytearray()
        self._written = self._handed = 0  # bytes that the file has; that the disk was asked to take
        self.size = 0
        """Bytes written so far."""

    def write(self, content: "ReadableBuffer") -> None:
        """Appends. What is large is written before this returns, straight from the caller's memory."""
        view = memoryview(content).cast("B")
        self.size += len(view)
        if len(self._gathered) + len(view) < SMALL_BYTES:
            self._gathered += view
            return
        self._write_gathered()
        for at in range(0, len(view), PIECE_BYTES):
            self._write(view[at : at + PIECE_BYTES])

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._write(memoryview(gathered))

    def _write(self, piece: memoryview) -> None:
        self._digest.update(piece)
        at = self._written
        try:
            while piece:
                written = os.pwrite(self._descriptor, piece, at)
                piece, at = piece[written:], at + written
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error  # it does not know the name
        self._written = at
        if at - self._handed >= PIECE_BYTES:
            _begin_writeback(self._descriptor, self._handed, at - self._handed)
            self._handed = at

    def end(self) -> tuple[int, str]:
        """Nothing follows. Size and hash, as `durable.hash_file` would give them."""
        self._write_gathered()
        _begin_writeback(self._descriptor, self._handed, self._written - self._handed)
        return self.size, f"xxh3_128:{self._digest.hexdigest()}"

    def sync(self) -> None:
        """Waits until it is on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Lets go of it, complete or not."""
        os.close(self._descriptor)


class NewFolder:
    """The folder `partial`, made by this and becoming another one by `commit`. Not for two threads at once."""

    def __init__(self, partial: Path) -> None:
        """Raises FileExistsError, or another OSError."""
        self.path = partial
        partial.mkdir()
        self._open: dict[str, NewFile] = {}
        self._of_others: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Closes the files. What was not committed stays as it is."""
        for file in self._open.values():
            file.close()

    def create(self, name: str) -> NewFile:
        """A file in it; it stays open until the end, so that no error of its writing can go to somebody else."""
        self._open[name] = NewFile(self.path / name)
        return self._open[name]

    def add(self, name: str, content: bytes) -> None:
        """A whole file."""
        self.create(name).write(content)

    def adopt(self, name: str) -> None:
        """A file that somebody else wrote into it: read back for its hash."""
        self._of_others[name] = durable.hash_file(self.path / name)

    def end(self) -> dict[str, tuple[int, str]]:
        """Size and hash by name, sorted, of all files so far; nothing more is written into those."""
        own = {name: file.end() for name, file in self._open.items()}
        return dict(sorted((own | self._of_others).items()))

    def commit(self, final: Path, check: Callable[[], None] = lambda: None) -> None:
        """Makes it exist as `final`, on the disk. `check`: called when all but the rename is done; what it raises
        passes through, and there is no `final`.

        Raises OSError, also where `final` exists and is not empty.
        """
        self.end()
        for file in self._open.values():
            file.sync()
        for name in self._of_others:
            durable.sync_file(self.path / name)
        durable.sync_folder(self.path)
        check()
        self.path.rename(final)
        durable.sync_folder(final.parent)


def _make_begin_writeback() -> Callable[[int, int, int], None]:
    """Python has no sync_file_range. Where the C library has none either, the sync at the end does all the work."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return lambda descriptor, at, count: None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

    def begin(descriptor: int, at: int, count: int) -> None:
        if count:
            call(descriptor, at, count, SYNC_FILE_RANGE_WRITE)  # a hint: fsync tells of every error, this one's too

    return begin


_begin_writeback = _make_begin_writeback()
