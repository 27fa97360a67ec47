"""The file in memory that outlives this process as long as somebody else has it open: room for two copies of the state.

`supervisor/protocol/memory_tier/layout.py` says what lies in it, and why nothing but one step's state is ever read
from it.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import weakref
from pathlib import Path

from supervisor.protocol.memory_tier import layout

_MADV_DONTFORK = 10  # linux/mman.h; a data loader that is forked would keep the pages for as long as it lives


class MemoryFile:
    """A sealed memfd with two halves. Not for two threads at once."""

    def __init__(self, half_bytes: int) -> None:
        """Takes all of the memory now, so that no later write can fail for a lack of it. Raises MemoryError, OSError.

        Takes about 0.5 s for a gigabyte.
        """
        self.half_bytes = layout.in_pages(half_bytes)
        self._descriptor = os.memfd_create(layout.FILE_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, 2 * self.half_bytes)
            os.posix_fallocate(self._descriptor, 0, 2 * self.half_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)
            self._memory = mmap.mmap(self._descriptor, 2 * self.half_bytes)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.ENOMEM, errno.ENOSPC):
                raise MemoryError(f"no {2 * self.half_bytes} bytes of memory for two copies") from error
            raise
        self._memory.madvise(_MADV_DONTFORK)
        self._opened = _descriptors_of(self._descriptor)
        for at in range(0, 2 * self.half_bytes, layout.PAGE_BYTES):
            self._memory[at] = 0  # the kernel enters the page into this process's table
        _OPEN.add(self)
        self._begun = 0

    @property
    def descriptor(self) -> int:
        """By which another process can open it, in /proc/PID/fd."""
        return self._descriptor

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return 2 * self.half_bytes

    def begin(self) -> "CopyRoom":
        """Room for the next copy, in place of the older one of two, which is gone from now on."""
        self._begun += 1
        at = self._begun % 2 * self.half_bytes
        half = memoryview(self._memory)[at : at + self.half_bytes]
        layout.unseal(half)
        return CopyRoom(half, self._begun)

    def close(self) -> None:
        """Lets go of it; whoever has opened it has it still."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def forget_in_child(self) -> None:
        """In a forked process, which does not have the memory: lets go of the file, too."""
        _FORGOTTEN.append(self)  # for ever: the end of the mapping would take what has its place in this process now
        for descriptor in self._opened if self._descriptor >= 0 else ():
            os.close(descriptor)
        self._descriptor = -1


def _descriptors_of(descriptor: int) -> tuple[int, ...]:
    """All descriptors of the same file in this process: `mmap.mmap` keeps one of its own."""
    file, same = os.fstat(descriptor), []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            if os.path.samestat(os.fstat(int(path.name)), file):
                same.append(int(path.name))
    return tuple(same)


_OPEN: weakref.WeakSet[MemoryFile] = weakref.WeakSet()
_FORGOTTEN: list[MemoryFile] = []


def _close_in_child() -> None:
    for file in list(_OPEN):
        file.forget_in_child()


os.register_at_fork(after_in_child=_close_in_child)


class CopyRoom:
    """Half of a file in memory, into which one copy is written: parts first, then `seal`."""

    def __init__(self, half: memoryview, number: int) -> None:
        self._half = half
        self._number = number
        self.used_bytes = 0
        """Up to where parts lie in it."""

    def take(self, size: int) -> tuple[int, memoryview]:
        """Where the next part of `size` bytes begins, and its memory. Raises NoRoom."""
        begin = layout.in_pages(self.used_bytes)
        if begin + size > layout.trailer_at(len(self._half)):
            raise NoRoom(begin + size)
        self.used_bytes = begin + size
        return begin, self._half[begin : begin + size]

    def seal(self, description: layout.Description) -> None:
        """The copy is complete. Raises NoRoom."""
        try:
            layout.seal(self._half, self._number, self.used_bytes, description)
        except ValueError as error:
            raise NoRoom(len(self._half)) from error


class NoRoom(MemoryError):
    """A half is too small. `needed_bytes`: what the parts take, as far as they are known."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"a copy needs {needed_bytes} bytes")
        self.needed_bytes = needed_bytes
