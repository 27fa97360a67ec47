"""The two ways in which bytes get to the end of a new file: past the page cache, or through it.

Past it (O_DIRECT, open(2)) a write costs the processor a copy into a small buffer and little else, where the cache has
pages to find, to fill and to write back; and what is trained on stays in the cache. Where the file system has no such
way, the cache it is, with the disk at work from the first bytes on.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable

PIECE_BYTES = 4 << 20  # at a time: 1 MiB and 32 MiB were slower, 2 to 16 equal
BLOCK_BYTES = 4096  # what place, length and address of a direct write are multiples of, whatever the disk
REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)  # open(2) names the former; file systems in user space answer the latter
SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h: begin to write these pages, wait for nothing


class CachedWriter:
    """Through the page cache, straight from the caller's memory."""

    def __init__(self, descriptor: int, at: int = 0) -> None:
        self._descriptor = descriptor
        self._written = self._handed = at  # bytes that the file has; that the disk was asked to take

    def put(self, content: memoryview) -> None:
        """Writes. Raises OSError."""
        while content:
            written = os.pwrite(self._descriptor, content, self._written)
            content, self._written = content[written:], self._written + written
        if self._written - self._handed >= PIECE_BYTES:
            self._hand_over()

    def end(self) -> None:
        """Nothing follows."""
        self._hand_over()

    def _hand_over(self) -> None:
        _begin_writeback(self._descriptor, self._handed, self._written - self._handed)
        self._handed = self._written


class DirectWriter:
    """Past the page cache; goes on as `Cached` where that is refused.

    From the caller's memory, where the next block of the file begins with a page there; else by way of an aligned
    buffer of PIECE_BYTES.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = mmap.mmap(-1, PIECE_BYTES)
        self._filled = self._written = 0
        self._cached: CachedWriter | None = None if _made_direct(descriptor) else CachedWriter(descriptor)

    def put(self, content: memoryview) -> None:
        """Writes, or keeps for the next write. Raises OSError."""
        while content and self._cached is None:
            if self._filled == 0 and len(content) >= BLOCK_BYTES and _begins_a_page(content):
                content = content[self._write(content[: len(content) - len(content) % BLOCK_BYTES]) :]
            else:
                content = content[self._keep(content) :]
        if self._cached is not None:
            self._cached.put(content)

    def end(self) -> None:
        """Nothing follows: writes what is kept; the last bytes, which fill no block, through the cache."""
        if self._cached is None:
            self._flush(self._filled - self._filled % BLOCK_BYTES)
        self._go_cached()
        assert self._cached is not None
        self._cached.end()

    def _keep(self, content: memoryview) -> int:
        """Takes as much as there is room for, and writes all if there is none left; how many bytes that was."""
        taken = min(len(content), PIECE_BYTES - self._filled)
        self._buffer[self._filled : self._filled + taken] = content[:taken]
        self._filled += taken
        if self._filled == PIECE_BYTES:
            self._flush(PIECE_BYTES)
        return taken

    def _flush(self, count: int) -> None:
        """Writes the first `count` bytes of the buffer, and all of it if there has to be another way from here on."""
        with memoryview(self._buffer) as view:
            done = self._write_blocks(view[:count])
        self._buffer.move(0, done, self._filled - done)
        self._filled -= done
        if done < count:
            self._go_cached()

    def _write(self, blocks: memoryview) -> int:
        """Writes these, as nothing is kept; how many bytes: fewer if there has to be another way from here on."""
        done = self._write_blocks(blocks)
        if done < len(blocks):
            self._go_cached()
        return done

    def _write_blocks(self, blocks: memoryview) -> int:
        """How many bytes were written; fewer than these if the rest is refused."""
        done = 0
        while done < len(blocks) and done % BLOCK_BYTES == 0:
            try:
                done += os.pwrite(self._descriptor, blocks[done:], self._written + done)
            except OSError as error:
                if error.errno not in REFUSALS:  # it is refused only now
                    raise
                break
        self._written += done
        return done

    def _go_cached(self) -> None:
        if self._cached is None:
            _set_direct(self._descriptor, False)  # raises: what follows is not aligned
            self._cached = CachedWriter(self._descriptor, self._written)
            with memoryview(self._buffer) as view:
                self._cached.put(view[: self._filled])
            self._buffer.close()


def _made_direct(descriptor: int) -> bool:
    """Whether it is so now; file systems that can't refuse here or at the first write."""
    with contextlib.suppress(OSError):
        _set_direct(descriptor, True)
        return True
    return False


def _begins_a_page(content: memoryview) -> bool:
    """Whether a direct write can take it from where it is. What can't be written to doesn't say where that is."""
    return not content.readonly and ctypes.addressof(ctypes.c_char.from_buffer(content)) % BLOCK_BYTES == 0


def _set_direct(descriptor: int, wanted: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)


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
