"""Host memory for copies of a state: of its own, kept from one copy to the next, or a part of a file in memory."""

import contextlib
import ctypes
import errno
import mmap
import threading
from typing import Protocol

import numpy as np

from supervisor.protocol.available_memory import available_memory
from supervisor.protocol.checkpoints.direct_write import PIECE_BYTES
from supervisor.protocol.plurals import counted_bytes
from worker.saving.memory_file import CopyRoom

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

ROOM_BYTES = 16 << 20  # spare, as histories grow from save to save; no memory until it is written to
COPY_SHARE = 0.8  # of the memory that is left, at most, for a copy: training and its data go on beside it
EARLY_SHARE = 0.25  # the same before the first save, as a data cache may still grow
_WIPE_ON_FORK, _POPULATE_WRITE = 18, 23  # MADV_…, linux/mman.h; Python has no names for them
_libc = ctypes.CDLL(None)  # its calls don't hold the interpreter's lock, as those of Python's mmap do


class HostCopy:
    """Host memory for a file. It begins at a page, as the file does at a block, so direct I/O can write from it."""

    def __init__(self, memory: mmap.mmap | memoryview, capacity: int) -> None:
        """`memory`: has room for `capacity` bytes, and for nothing else."""
        self._bytes = np.frombuffer(memory, np.uint8)
        self.capacity = capacity
        self.size = 0
        """Bytes appended so far."""

    @classmethod
    def allocate(cls, capacity: int) -> "HostCopy":
        """In memory of its own. Processes forked from this one don't get the bytes: a data loader would hold on to all
        of them for as long as it lives. Raises MemoryError."""
        try:
            memory = mmap.mmap(-1, max(capacity, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(f"no {capacity} bytes of memory for a copy") from error
        with contextlib.suppress(OSError):  # before Linux 4.14
            memory.madvise(_WIPE_ON_FORK)
        return cls(memory, capacity)

    def populate(self) -> None:
        """Lets the kernel give the memory now (Linux 5.14 and later), which it does at the first write otherwise.

        On any thread, also while the copy is made.
        """
        for at in range(0, self.capacity, PIECE_BYTES):
            piece = ctypes.c_void_p(self._bytes.ctypes.data + at)
            if _libc.madvise(piece, ctypes.c_size_t(min(PIECE_BYTES, self.capacity - at)), _POPULATE_WRITE):
                return

    def append(self, content: bytes | Bytes) -> None:
        """Appends."""
        end = self.size + len(content)
        self._bytes[self.size : end] = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
        self.size = end

    @property
    def content(self) -> Bytes:
        """The bytes appended so far."""
        return self._bytes[: self.size]


class CopyMemory(Protocol):
    """Where the memory of copies comes from."""

    def allocate(self, size: int) -> HostCopy:
        """An empty copy with room for `size` bytes. Raises MemoryError."""

    def reuse(self, image: HostCopy) -> None:
        """Takes the memory back; nothing reads the copy any more."""


class RoomInFile:
    """A part of a file in memory. `offset`: where the copy in it begins, once it is allocated."""

    def __init__(self, room: CopyRoom) -> None:
        self._room = room
        self.offset = 0

    def allocate(self, size: int) -> HostCopy:
        """Raises NoRoom."""
        self.offset, memory = self._room.take(size)
        return HostCopy(memory, size)

    def reuse(self, image: HostCopy) -> None:
        """Does nothing: the next copy goes elsewhere."""


class BufferPool:
    """Keeps the memory of a copy for the next one. Not for two threads at once.

    On two virtual cores a copy of 400 MB took 30 ms into memory that was used before, and 240 ms into new pages (up to
    1600 ms with pages of 2 MiB, by madvise(2)).
    """

    def __init__(self) -> None:
        self._kept: HostCopy | None = None

    def allocate(self, size: int) -> HostCopy:
        """An empty copy with room for `size` bytes. Raises MemoryError."""
        kept, self._kept = self._kept, None
        if kept is not None and size <= kept.capacity <= 2 * (size + ROOM_BYTES):
            return kept
        del kept  # frees it before the next one is made: memory may be short
        _require_memory(size)
        return HostCopy.allocate(size + ROOM_BYTES)

    def prepare(self, size: int) -> None:
        """Takes the memory of the first copy, of about `size` bytes, and has it filled in on a thread of its own."""
        with contextlib.suppress(MemoryError, RuntimeError):  # too little memory, for now; too many threads
            _require_memory(size, EARLY_SHARE)
            self._kept = self.allocate(size)
            threading.Thread(target=self._kept.populate, name="stepkeeper-memory", daemon=True).start()

    def clear(self) -> None:
        """Frees what is kept: no copies are made here after all."""
        self._kept = None

    def reuse(self, image: HostCopy) -> None:
        """Takes the memory back; nothing reads the copy any more."""
        image.size = 0
        self._kept = image


def _require_memory(size: int, share: float = COPY_SHARE) -> None:
    """Raises MemoryError if a copy would take more than this share of the memory that is left: the kernel promises more
    than there is, then kills."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # nobody says how much is left
        left = available_memory()[0]
        if size > share * left:
            raise MemoryError(f"a copy takes {counted_bytes(size)}, and {counted_bytes(left)} of memory are left")
