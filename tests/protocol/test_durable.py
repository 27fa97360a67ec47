"""Files appear whole or not at all."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import xxhash

from supervisor.protocol import durable
from tests import page_cache
from tests.waiting import wait_until


def test_write_file_replaces_the_old_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    durable.write_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state"]


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()  # a file can't replace a folder

    with pytest.raises(OSError, match="directory"):
        durable.write_file(path, b"new")

    assert os.listdir(tmp_path) == ["state"]


def test_a_file_gets_the_mode_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        durable.write_file(tmp_path / "state", b"new")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o640


def test_a_commit_never_overwrites_what_is_there(tmp_path: Path) -> None:
    partial, final = tmp_path / "new.partial", tmp_path / "new"
    partial.mkdir()
    final.mkdir()
    (final / "data").write_bytes(b"old")

    with pytest.raises(OSError, match="not empty"):
        durable.commit_folder(partial, final, ())

    assert (final / "data").read_bytes() == b"old"


def test_a_commit_of_a_file_that_is_missing_does_not_happen(tmp_path: Path) -> None:
    (tmp_path / "new.partial").mkdir()

    with pytest.raises(FileNotFoundError):
        durable.commit_folder(tmp_path / "new.partial", tmp_path / "new", ["data"])

    assert not (tmp_path / "new").exists()


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"a" * (durable.READ_BYTES + 1))
    (tmp_path / "same").write_bytes(b"a" * (durable.READ_BYTES + 1))
    (tmp_path / "empty").write_bytes(b"")

    assert durable.hash_file(tmp_path / "large") == durable.hash_file(tmp_path / "same")
    assert durable.hash_file(tmp_path / "empty") == (0, "xxh3_128:99aa06d3014798d86001c324468d497f")  # XXH3's own


def test_read_file_reads_no_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")

    assert durable.read_file(tmp_path / "file", 4) == b"0123"


@pytest.mark.timeout(10)  # a reader of the pipe would wait for ever
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")

    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=r"regular file|symbolic links"):
            durable.read_file(tmp_path / name, 10)
        with pytest.raises(OSError, match=r"regular file|symbolic links"):
            durable.hash_file(tmp_path / name)


@pytest.mark.parametrize("read", [durable.open_regular, partial(durable.read_file, limit=10), durable.hash_file])
@pytest.mark.parametrize("name", ["pipe", "link"])
def test_who_waits_for_the_other_end_of_a_pipe_is_not_released(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    """Root would do so to whoever the pipe belongs to, for whoever has put a link to it there."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"",), daemon=True)
    writer.start()

    with pytest.raises(OSError, match=r"regular file|symbolic links"):
        read(tmp_path / name)

    writer.join(0.1)
    assert writer.is_alive()
    (tmp_path / "pipe").read_bytes()
    writer.join()


@pytest.mark.integration
@pytest.mark.parametrize("read", ["durable.open_regular(terminal)", "durable.read_file(terminal, 10)"])
def test_a_terminal_in_a_files_place_does_not_become_the_readers(read: str) -> None:
    """Its Ctrl-C would end a daemon that leads a session and has no terminal."""
    ours, theirs = os.openpty()
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom supervisor.protocol import durable\n"
        f"terminal = Path({os.ttyname(theirs)!r})\n"
        f"try:\n {read}\nexcept OSError:\n pass\n"
        "try:\n os.open('/dev/tty', os.O_RDWR)\nexcept OSError:\n sys.exit(0)\nsys.exit(3)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False, timeout=60)

    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("size", [durable.PIECE_BYTES - 1, durable.AHEAD_BYTES, durable.AHEAD_BYTES + 4097])
def test_a_file_that_is_not_in_the_page_cache_has_the_same_hash(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    page_cache.drop(tmp_path / "file")

    assert durable.hash_file(tmp_path / "file") == (size, f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}")


def test_one_piece_is_read_ahead() -> None:
    with page_cache.folder_on_disk() as folder:
        path = folder / "file"
        path.write_bytes(bytes(3 * durable.PIECE_BYTES))
        page_cache.drop(path)

        with path.open("rb") as file:
            durable.read_ahead(file.fileno(), durable.PIECE_BYTES)

        wait_until(lambda: page_cache.cached_bytes(path) == durable.PIECE_BYTES, "the piece was read")
