"""A file's bytes in host memory, gathered while training waits, and written while it goes on."""

import contextlib
import errno
import mmap

import numpy as np

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

ROOM_BYTES = 16 << 20  # more than asked for: histories grow from save to save; it is no memory until it is written to
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, linux/mman.h; Python has no name for it


class HostCopy:
    """Memory for a file of `capacity` bytes.

    It begins with a page, as the file does with a block, so a direct write takes the bytes from here (`appending`).
    Processes forked from this one don't have the bytes: a data loader would keep all of them for as long as it lives.
    """

    def __init__(self, capacity: int) -> None:
        """Raises MemoryError."""
        try:
            self._memory = mmap.mmap(-1, max(capacity, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"no {capacity} bytes of memory for a copy") from error
        with contextlib.suppress(OSError):  # before Linux 4.14
            self._memory.madvise(_WIPE_ON_FORK)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        self.capacity = capacity
        self.size = 0
        """Bytes gathered so far."""

    def append(self, content: bytes | Bytes) -> None:
        """Appends."""
        end = self.size + len(content)
        self._bytes[self.size : end] = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
        self.size = end

    @property
    def content(self) -> Bytes:
        """What was gathered."""
        return self._bytes[: self.size]


class BufferPool:
    """Keeps an image's memory for the next one: on two virtual cores a copy of 400 MB took 30 ms, and 240 where pages
    had to be had first (up to 1600 with pages of 2 MiB, by madvise(2)). Not for two threads at once.
    """

    def __init__(self) -> None:
        self._kept: HostCopy | None = None

    def allocate(self, size: int) -> HostCopy:
        """An empty one. Raises MemoryError."""
        kept, self._kept = self._kept, None
        if kept is not None and size <= kept.capacity <= 2 * (size + ROOM_BYTES):
            return kept
        del kept  # before there is another one: memory may be short
        return HostCopy(size + ROOM_BYTES)

    def reuse(self, image: HostCopy) -> None:
        """Nobody reads it any more."""
        image.size = 0
        self._kept = image
