"""A file's bytes in host memory, gathered while training waits, and written while it goes on."""

import contextlib
import errno
import mmap

import numpy as np

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Image:
    """As much memory as the file has bytes, given back when nobody holds it.

    In pages of 2 MiB where the system has them (madvise(2)): getting those of 4 KiB takes longer than the copy.
    It begins with a page, as the file does with a block, so a direct write takes the bytes from here (`appending`).
    """

    def __init__(self, size: int) -> None:
        """Raises MemoryError."""
        try:
            self._memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"no {size} bytes of memory for a copy") from error
        with contextlib.suppress(OSError):  # a system without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self.size = 0
        """Bytes gathered so far."""

    def write(self, content: bytes | Bytes) -> None:
        """Appends."""
        end = self.size + len(content)
        self._bytes[self.size : end] = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
        self.size = end

    @property
    def content(self) -> Bytes:
        """What was gathered."""
        return self._bytes[: self.size]
