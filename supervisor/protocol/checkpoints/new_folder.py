"""A folder that is filled and then committed as one: its files are hashed while they are written, not read back.

The disk begins with a file's first bytes (`CachedWriter`), so the sync at the end waits for the last ones only.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import xxhash

from supervisor.protocol import durable
from supervisor.protocol.checkpoints.direct_write import PIECE_BYTES, CachedWriter, DirectWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SMALL_BYTES = 256 << 10  # less is gathered: one system call for many small tensors


class NewFile:
    """A file that did not exist, written from its beginning to its end."""

    def __init__(self, path: Path, through_cache: bool = False) -> None:
        """`through_cache`: its content is read again soon, and stays in the page cache."""
        self._path = path
        self._through_cache = through_cache
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._digest = xxhash.xxh3_128()
        self._gathered = bytearray()
        self._writer: DirectWriter | CachedWriter | None = None  # none yet: it may be small
        self._has_ended = False
        self._failure: OSError | None = None
        self.size = 0
        """Bytes written so far."""

    def write(self, content: "ReadableBuffer", is_stable: bool = False) -> None:
        """Appends. What is large is in the file, or in memory of ours, before this returns.

        `is_stable`: nobody changes the content before `wait` or `close` returns, so it may be written from where it is
        while the next one is prepared.
        """
        view = memoryview(content).cast("B")
        self.size += len(view)
        if len(self._gathered) + len(view) < SMALL_BYTES:
            self._gathered += view
            return
        if self._writer is None:
            self._writer = (CachedWriter if self._through_cache else DirectWriter)(self._descriptor)
        self._put_gathered(self._writer)
        for at in range(0, len(view), PIECE_BYTES):
            self._put(self._writer, view[at : at + PIECE_BYTES], is_stable)

    def _put_gathered(self, way: DirectWriter | CachedWriter) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._put(way, memoryview(gathered), is_stable=True)

    def _put(self, way: DirectWriter | CachedWriter, piece: memoryview, is_stable: bool) -> None:
        self._digest.update(piece)
        with self._named():
            way.put(piece, is_stable)

    def finish(self) -> tuple[int, str]:
        """Nothing follows. Size and hash, as `durable.hash_file` will give them once the bytes are written (`wait`).

        Raises OSError, also for a write that failed before.
        """
        if self._failure is not None:  # bytes are missing
            raise self._failure
        if not self._has_ended:
            way = self._writer or CachedWriter(self._descriptor)
            self._put_gathered(way)
            with self._named():
                way.finish()
            self._has_ended = True
        return self.size, f"xxh3_128:{self._digest.hexdigest()}"

    def wait(self) -> None:
        """Returns when all bytes are written. Raises OSError."""
        if self._failure is not None:
            raise self._failure
        if self._writer is not None:
            with self._named():
                self._writer.wait()

    def end(self) -> tuple[int, str]:
        """`finish` and `wait`."""
        ended = self.finish()
        self.wait()
        return ended

    @property
    def is_being_written(self) -> bool:
        """Whether `wait` may take long."""
        return self._writer is not None

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the system call does not know the name."""
        try:
            yield
        except OSError as error:
            self._failure = OSError(error.errno, error.strerror, str(self._path))
            raise self._failure from error

    def sync(self) -> None:
        """Waits until it is on the disk."""
        with self._named():
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Lets go of it, complete or not."""
        if self._writer is not None:
            self._writer.close()  # or its thread would write into whatever gets the descriptor next
        os.close(self._descriptor)


class NewFolder:
    """The folder `partial`, made by this and becoming another one by `commit`. Not for two threads at once."""

    def __init__(self, partial: Path, is_there: bool = False, through_cache: bool = False) -> None:
        """`is_there`: another process made it and commits it; files are added here, and end with `sync`.
        `through_cache`: as for NewFile.

        Raises FileExistsError, or another OSError.
        """
        self.path = partial
        self._through_cache = through_cache
        if not is_there:
            partial.mkdir()
        self._synced: set[str] = set()
        self._open: dict[str, NewFile] = {}
        self._of_others: dict[str, tuple[int, str]] = {}
        self.is_renamed = False
        """Whether it has its final name, though that may not be durable."""

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
        self._open[name] = NewFile(self.path / name, self._through_cache)
        return self._open[name]

    def add(self, name: str, content: bytes) -> None:
        """A whole file."""
        self.create(name).write(content)

    def adopt(self, name: str) -> None:
        """A file that somebody else wrote into it: read back for its hash."""
        self._of_others[name] = durable.hash_file(self.path / name)

    def record(self, name: str, size: int, digest: str) -> None:
        """A file that another process wrote into it, hashed and synced. Raises OSError if it is not there as said."""
        here = (self.path / name).lstat().st_size
        if here != size:
            raise OSError(errno.EIO, f"{here} bytes are there, {size} were written", str(self.path / name))
        self._of_others[name] = size, digest
        self._synced.add(name)

    def record_elsewhere(self, name: str, size: int, digest: str) -> None:
        """A file of the same checkpoint that another node wrote into a folder of its own, hashed and synced."""
        self._of_others[name] = size, digest
        self._synced.add(name)

    def finish(self) -> dict[str, tuple[int, str]]:
        """Size and hash by name, sorted, of all files so far; nothing more is written into those.

        Their last bytes may still be on the way to the disk: `end` and `commit` raise what fails there.
        """
        own = {name: file.finish() for name, file in self._open.items()}
        return dict(sorted((own | self._of_others).items()))

    def end(self) -> dict[str, tuple[int, str]]:
        """As `finish`, once the bytes are written."""
        ended = self.finish()
        for file in self._open.values():
            file.wait()
        return ended

    def commit(self, final: Path, check: Callable[[], None] = lambda: None) -> None:
        """Makes it exist as `final`, on the disk. `check`: called when all but the rename is done; what it raises
        passes through, and there is no `final`.

        Raises OSError, also where `final` exists and is not empty.
        """
        self.sync()
        check()
        self.path.rename(final)
        self.is_renamed = True
        durable.sync_folder(final.parent)

    def sync(self) -> None:
        """Returns when all files and their names are on the disk. Raises OSError."""
        self.finish()
        last = [file for file in self._open.values() if file.is_being_written]
        for file in self._open.values():  # small ones, while the disk still works on the large
            if not file.is_being_written:
                file.sync()
        for name in self._of_others.keys() - self._synced:
            durable.sync_file(self.path / name)
        durable.sync_folder(self.path)  # the names; what the large files contain has a sync of its own
        for file in last:
            file.wait()
            file.sync()
