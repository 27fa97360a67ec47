"""Which bytes of a file are in the page cache, by mincore(2)."""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)


def cached_bytes(path: Path) -> int:
    """How many bytes of the file are in the page cache, in whole pages."""
    size = path.stat().st_size
    if size == 0:
        return 0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE) as memory:
        address = ctypes.c_char.from_buffer(memory)
        if _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
        del address
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def is_cached(path: Path) -> bool:
    """Whether all of the file is in the page cache."""
    return cached_bytes(path) >= path.stat().st_size


def drop(path: Path) -> None:
    """Takes the file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def skip_without_disk(folder: Path) -> None:
    """Skips a test that needs files which can be out of the page cache."""
    if os.major(folder.stat().st_dev) == 0:
        pytest.skip(f"{folder} is on no disk")


@contextmanager
def folder_on_disk() -> Iterator[Path]:
    """An empty folder for such a test, also where pytest's own ones are in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        skip_without_disk(Path(folder))
        yield Path(folder)
