"""A folder filled and committed as one: hashed while written, durable before it is there."""

import errno
import itertools
import mmap
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as some

from supervisor.protocol import durable
from supervisor.protocol.checkpoints import new_folder
from supervisor.protocol.checkpoints.direct_write import PIECE_BYTES
from supervisor.protocol.checkpoints.new_folder import NewFolder
from tests.fuzzing import cases
from tests.reading import descriptors


@cases(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=some.lists(
        some.sampled_from([0, 1, 700, new_folder.SMALL_BYTES - 1, new_folder.SMALL_BYTES, 5 << 20]), max_size=6
    )
)
def test_the_hash_taken_while_writing_is_that_of_the_file(sizes: list[int], tmp_path: Path) -> None:
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    where = tmp_path / os.urandom(8).hex()
    with NewFolder(where) as folder:
        file = folder.create("data")
        for part in parts:
            file.write(part)
        (file_hash,) = folder.end().values()

    assert (where / "data").read_bytes() == b"".join(parts)
    assert file_hash == durable.hash_file(where / "data")


def test_numbers_of_any_width_are_written_as_they_lie_in_memory(tmp_path: Path) -> None:
    content = memoryview(bytes(range(200)) * 4).cast("I")
    with NewFolder(tmp_path / "new.partial") as folder:
        folder.create("data").write(content)
        (file_hash,) = folder.end().values()

    assert (tmp_path / "new.partial" / "data").read_bytes() == bytes(range(200)) * 4
    assert file_hash == durable.hash_file(tmp_path / "new.partial" / "data")


def test_a_file_of_somebody_else_is_committed_with_its_hash(tmp_path: Path) -> None:
    with NewFolder(tmp_path / "new.partial") as folder:
        folder.add("own", b"a")
        (folder.path / "theirs").write_bytes(b"b")
        folder.adopt("theirs")
        hashes = folder.end()
        folder.commit(tmp_path / "new")

    assert hashes == {name: durable.hash_file(tmp_path / "new" / name) for name in ("own", "theirs")}
    assert not (tmp_path / "new.partial").exists()


def test_a_commit_never_overwrites_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "data").write_bytes(b"old")
    with NewFolder(tmp_path / "new.partial") as folder, pytest.raises(OSError, match="not empty"):
        folder.add("data", b"new")
        folder.commit(tmp_path / "new")

    assert (tmp_path / "new" / "data").read_bytes() == b"old"


def test_a_check_that_refuses_comes_after_the_syncs_and_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_ino), real(descriptor)))

    def refuse() -> None:
        assert synced == [(tmp_path / "new.partial" / "data").stat().st_ino, (tmp_path / "new.partial").stat().st_ino]
        raise PermissionError("another one is in charge")

    with NewFolder(tmp_path / "new.partial") as folder, pytest.raises(PermissionError, match="in charge"):
        folder.add("data", b"new")
        folder.commit(tmp_path / "new", refuse)

    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("size", [1 << 20, 3 << 20, 9 << 20])
def test_an_error_of_a_write_names_the_file(tmp_path: Path, size: int) -> None:
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limits[1]))
    try:
        with NewFolder(tmp_path / "new.partial") as folder, pytest.raises(OSError, match="data") as refused:
            folder.create("data").write(bytes(size))
            folder.end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)

    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(tmp_path / "new.partial" / "data"))


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with NewFolder(tmp_path / "new.partial") as folder:
        (folder.path / "data").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(FileExistsError):
            folder.create("data")

    assert not (tmp_path / "elsewhere").exists()


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = descriptors()
    with NewFolder(tmp_path / "new.partial") as folder, pytest.raises(FileNotFoundError):
        folder.add("one", b"1")
        folder.add("two", b"2")
        folder.adopt("three")

    assert descriptors() == before


def test_a_file_whose_end_failed_never_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its last bytes are missing: a second try would give the hash of a file that is not there."""

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with NewFolder(tmp_path / "new.partial") as folder:
        folder.add("data", b"abc")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            with pytest.raises(OSError, match="No space left"):
                folder.end()
        with pytest.raises(OSError, match="No space left"):
            folder.commit(tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_a_write_that_fails_on_the_way_is_an_error_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwrite, itertools.count(1)

    def fail(descriptor: int, content: memoryview, at: int) -> int:
        if next(calls) == 3:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", fail)
    with NewFolder(tmp_path / "new.partial") as folder, pytest.raises(OSError, match="data"):
        file = folder.create("data")
        for _ in range(4):
            file.write(mmap.mmap(-1, PIECE_BYTES), is_stable=True)
        folder.commit(tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_nothing_is_written_once_the_folder_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file may have the descriptor by then."""
    real, written, may_go_on = os.pwrite, [], threading.Event()

    def slow(descriptor: int, content: memoryview, at: int) -> int:
        if written:
            assert may_go_on.wait(20)
        written.append(at)
        return real(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", slow)
    with NewFolder(tmp_path / "new.partial") as folder:
        file = folder.create("data")
        for _ in range(4):
            file.write(mmap.mmap(-1, PIECE_BYTES), is_stable=True)
        threading.Timer(0.1, may_go_on.set).start()

    assert written == [0, PIECE_BYTES]
