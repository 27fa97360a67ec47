"""Bytes written past the page cache are those that were given, whatever the file system says to it and when."""

import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as some

from supervisor.protocol.checkpoints import direct_write
from supervisor.protocol.checkpoints.direct_write import BLOCK_BYTES, PIECE_BYTES, DirectWriter
from tests.fuzzing import cases

Write = Callable[[int, memoryview, int], int]
SIZES = some.sampled_from(
    [0, 1, 700, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, PIECE_BYTES - 1, PIECE_BYTES, 5 << 20]
)
PWRITE: Write = os.pwrite


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def content(size: int, begins_a_page: bool) -> memoryview:
    """Bytes that can be written to, as memory is that a direct write can take them from; or such as it can't."""
    content = os.urandom(1024) * (size // 1024) + os.urandom(size % 1024)
    if not begins_a_page:
        return memoryview(content)
    page = memoryview(mmap.mmap(-1, max(size, 1)))[:size]
    page[:] = content
    return page


def refused_at(nth: int, number: int = errno.EINVAL) -> Write:
    """A file system that refuses at the n-th direct write."""
    left = [nth]

    def write(descriptor: int, content: memoryview, at: int) -> int:
        if is_direct(descriptor):
            assert len(content) % BLOCK_BYTES == at % BLOCK_BYTES == 0
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(number, os.strerror(number))
        return PWRITE(descriptor, content, at)

    return write


def short(most: int) -> Write:
    """One that takes so many bytes at most."""
    return lambda descriptor, content, at: PWRITE(descriptor, content[: min(most, len(content))], at)


WAYS: dict[str, Callable[[], Write]] = {
    "as it is": lambda: PWRITE,
    "refused at once": lambda: refused_at(1),
    "refused later": lambda: refused_at(2),
    "not supported": lambda: refused_at(1, errno.EOPNOTSUPP),
    "short, whole blocks": lambda: short(10 * BLOCK_BYTES),
    "short, no whole blocks": lambda: short(3 * BLOCK_BYTES + 5),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@cases(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=some.lists(some.tuples(SIZES, some.booleans()), max_size=5))
def test_the_file_has_what_was_given(
    sizes: list[tuple[int, bool]], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [content(size, begins_a_page) for size, begins_a_page in sizes]
    path = tmp_path / os.urandom(8).hex()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", WAYS[way]())
        direct = DirectWriter(descriptor)
        for part in parts:
            direct.put(part)
        direct.end()
    os.close(descriptor)

    assert path.read_bytes() == b"".join(parts)


def test_page_aligned_data_is_written_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, written = content(2 * PIECE_BYTES + 5, begins_a_page=True), []
    place = ctypes.addressof(ctypes.c_char.from_buffer(given))

    def write(descriptor: int, blocks: memoryview, at: int) -> int:
        if is_direct(descriptor):
            written.append((ctypes.addressof(ctypes.c_char.from_buffer(blocks)) - place, len(blocks)))
        return PWRITE(descriptor, blocks, at)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(direct_write, "_made_direct", lambda descriptor: True)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    direct_write._set_direct(descriptor, True)
    direct = DirectWriter(descriptor)
    direct.put(given)
    direct.end()
    os.close(descriptor)

    assert written == [(0, 2 * PIECE_BYTES)]
    assert (tmp_path / "file").read_bytes() == given


def test_without_direct_writes_the_page_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_write, "_made_direct", lambda descriptor: False)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    direct = DirectWriter(descriptor)
    direct.put(memoryview(b"x" * (PIECE_BYTES + 10)))
    direct.end()
    os.close(descriptor)

    assert (tmp_path / "file").read_bytes() == b"x" * (PIECE_BYTES + 10)


def test_an_error_of_the_disk_is_none_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, content: memoryview, at: int) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EIO, "Input/output error")
        return PWRITE(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", fail)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    direct = DirectWriter(descriptor)
    with pytest.raises(OSError, match="Input/output"):
        direct.put(memoryview(bytes(PIECE_BYTES)))
    os.close(descriptor)


def test_the_cache_stays_as_it_was() -> None:
    """Asked of the kernel: without waiting, only what is in the cache can be read (RWF_NOWAIT, preadv2(2))."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        path = Path(folder) / "file"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
        except OSError:
            pytest.skip("this file system has no O_DIRECT")
        direct = DirectWriter(descriptor)
        direct.put(memoryview(bytes(2 * PIECE_BYTES)))
        direct.end()
        os.fsync(descriptor)
        try:
            with pytest.raises(BlockingIOError):
                os.preadv(descriptor, [bytearray(BLOCK_BYTES)], PIECE_BYTES, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"nothing can be asked here: {error}")
        finally:
            os.close(descriptor)


def test_a_file_that_can_not_go_back_to_the_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that are not aligned would be refused, or worse, there."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        descriptor = os.open(Path(folder) / "file", os.O_WRONLY | os.O_CREAT)
        direct = DirectWriter(descriptor)
        direct.put(memoryview(bytes(700)))

        def refuse(descriptor: int, command: int, *value: int) -> int:
            if command == fcntl.F_SETFL:
                raise OSError(errno.EPERM, "Operation not permitted")
            return real(descriptor, command, *value)

        real = fcntl.fcntl
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "fcntl", refuse)
            with pytest.raises(OSError, match="not permitted"):
                direct.end()
        os.close(descriptor)
