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
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

PIECE_BYTES = 4 << 20  # at a time: 1 MiB and 32 MiB were slower, 2 to 16 equal
BLOCK_BYTES = 4096  # what place, length and address of a direct write are multiples of, whatever the disk
BUFFERS = 3  # one is filled, one is written, and one waits so that the disk never does
REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)  # open(2) names the former; file systems in user space answer the latter
SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h: begin to write these pages, wait for nothing


class CachedWriter:
    """Through the page cache, straight from the caller's memory."""

    def __init__(self, descriptor: int, at: int = 0) -> None:
        self._descriptor = descriptor
        self._written = self._handed = at  # bytes that the file has; that the disk was asked to take

    def put(self, content: memoryview, is_stable: bool = True) -> None:
        """Writes. Raises OSError."""
        while content:
            written = os.pwrite(self._descriptor, content, self._written)
            content, self._written = content[written:], self._written + written
        if self._written - self._handed >= PIECE_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Nothing follows."""
        self._hand_over()

    def wait(self) -> None:
        """Returns at once: all is written."""

    def close(self) -> None:
        """There is nothing to stop."""

    def _hand_over(self) -> None:
        _begin_writeback(self._descriptor, self._handed, self._written - self._handed)
        self._handed = self._written


class DirectWriter:
    """Past the page cache; continues through it where that is refused.

    From the caller's memory, where the next block of the file begins with a page there; else by way of aligned buffers
    of PIECE_BYTES. From the second write on, a thread of its own writes, so that the caller prepares the next piece
    while the disk has this one.
    """

    def __init__(self, descriptor: int) -> None:
        self._file = _BlockFile(descriptor)
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None  # the newest of the writes that were handed to the thread
        self._has_begun = False
        self._buffers: deque[tuple[mmap.mmap, Future[None] | None]] = deque()  # and who still writes from it
        self._buffer: mmap.mmap | None = None  # the one that is being filled
        self._filled = 0

    def put(self, content: memoryview, is_stable: bool = False) -> None:
        """Writes, or keeps for a later write. `is_stable`: nobody changes the content before `end` or `close` returns.

        Raises OSError, also for a write before this one.
        """
        while content:
            if self._file.is_cached:
                self._flush(self._filled)
                self._write(content, is_stable)
                return
            if self._filled == 0 and len(content) >= BLOCK_BYTES and _begins_a_page(content):
                blocks = content[: len(content) - len(content) % BLOCK_BYTES]
                self._write(blocks, is_stable)
                content = content[len(blocks) :]
            else:
                content = content[self._keep(content) :]

    def finish(self) -> None:
        """Nothing follows: hands over what is kept; the last bytes, which fill no block, go through the cache."""
        self._flush(self._filled - self._filled % BLOCK_BYTES)
        rest = memoryview(self._buffer)[: self._filled] if self._buffer is not None else memoryview(b"")
        self._hand_over(self._file.end, rest)
        self._filled = 0

    def wait(self) -> None:
        """Returns when all that was handed over is written. Raises OSError."""
        if self._last is not None:
            self._last.result()  # a failure is every later write's too

    def end(self) -> None:
        """`finish` and `wait`."""
        self.finish()
        self.wait()

    def close(self) -> None:
        """Writes nothing more, also of what was handed over."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _write(self, content: memoryview, is_stable: bool) -> None:
        if is_stable:
            self._hand_over(self._file.write, content)
        else:
            self.wait()
            self._file.write(content)

    def _hand_over(self, write: Callable[[memoryview], None], content: memoryview) -> Future[None] | None:
        """Has the thread write it; None if it is written already."""
        if self._last is not None and self._last.done():
            self._last.result()
        if self._has_begun and self._thread is None:
            self._thread = ThreadPoolExecutor(1, "stepkeeper-write")
        self._has_begun = True
        if self._thread is not None:
            try:
                self._last = self._thread.submit(write, content)
            except RuntimeError:  # no thread can be started: a limit was reached, or the interpreter is at its end
                self.wait()
            else:
                return self._last
        write(content)
        return None

    def _keep(self, content: memoryview) -> int:
        """Takes as much as there is room for, and writes all if there is none left; how many bytes that was."""
        if self._buffer is None:
            self._buffer = self._free_buffer()
        taken = min(len(content), PIECE_BYTES - self._filled)
        self._buffer[self._filled : self._filled + taken] = content[:taken]
        self._filled += taken
        if self._filled == PIECE_BYTES:
            self._flush(PIECE_BYTES)
        return taken

    def _free_buffer(self) -> mmap.mmap:
        if len(self._buffers) < BUFFERS - 1:
            return mmap.mmap(-1, PIECE_BYTES)
        buffer, written = self._buffers.popleft()
        if written is not None:
            written.result()
        return buffer

    def _flush(self, count: int) -> None:
        """Writes the first `count` bytes of the buffer; the rest begins the next one."""
        if count == 0 or self._buffer is None:
            return
        full, rest = self._buffer, self._filled - count
        kept = full[count : self._filled]
        self._buffers.append((full, self._hand_over(self._file.write, memoryview(full)[:count])))
        self._buffer, self._filled = None, 0
        if rest:
            self._buffer = self._free_buffer()
            self._buffer[:rest] = kept
            self._filled = rest


class _BlockFile:
    """The file of a DirectWriter. One thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._written = 0
        self._cached: CachedWriter | None = None if _made_direct(descriptor) else CachedWriter(descriptor)
        self._failure: OSError | None = None

    @property
    def is_cached(self) -> bool:
        """Whether it goes through the page cache; then for good."""
        return self._cached is not None

    def write(self, content: memoryview) -> None:
        """Writes; whole blocks at addresses of whole blocks, unless it is cached. Raises OSError, and from then on."""
        with self._failing():
            done = self._write_blocks(content) if self._cached is None else 0
            if done < len(content):
                self._make_cached().put(content[done:])

    def end(self, rest: memoryview) -> None:
        """Writes the last bytes, any number of them."""
        with self._failing():
            cached = self._make_cached()
            cached.put(rest)
            cached.finish()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Nothing is written behind a gap."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

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

    def _make_cached(self) -> CachedWriter:
        if self._cached is None:
            _set_direct(self._descriptor, False)  # raises: what follows is not aligned
            self._cached = CachedWriter(self._descriptor, self._written)
        return self._cached


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
