"""Rotated logs are compressed beside the output, and whatever interrupts that loses none."""

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.logs.files import compression
from supervisor.host.logs.files.file import OutputFile, rotate_unopened, truncate_with_backups
from tests.waiting import wait_until

Held = tuple[threading.Event, threading.Event]


def log_file(path: Path, backups: int = 3) -> OutputFile:
    file = OutputFile(path, 0, backups)
    file.compress = True
    return file


def rotated(file: OutputFile, *texts: str) -> None:
    """Writes each text, and rotates behind it."""
    for text in texts:
        file.write(f"{text}\n".encode())
        file.rotate()


def until_done(path: Path) -> None:
    """What was scheduled for this log is done."""
    done = threading.Event()
    compression.schedule(done.set, path)
    assert done.wait(60)


def packed(path: Path) -> dict[str, str]:
    """The content of all compressed backups, by what follows the log's name."""
    return {
        each.name.removeprefix(path.name): gzip.decompress(each.read_bytes()).decode().strip()
        for each in sorted(path.parent.glob("*.gz"))
    }


def others(path: Path) -> list[str]:
    return sorted(each.name.removeprefix(path.name) for each in path.parent.iterdir() if each.suffix != ".gz")


def test_backups_are_compressed_and_no_more_stay_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    file = log_file(path)

    rotated(file, "one", "two")
    until_done(path)
    rotated(file, "three", "four", "five")
    until_done(path)

    assert packed(path) == {".1.gz": "five", ".2.gz": "four", ".3.gz": "three"}
    assert others(path) == [""]
    file.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """The first compression stops at its end, says so with the one, and goes on with the other."""
    copy, is_there, may_go_on = compression._copy, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Iterator[None]:
        yield from copy(*arguments)
        if not is_there.is_set():
            is_there.set()
            may_go_on.wait(60)

    monkeypatch.setattr(compression, "_copy", slow)
    return is_there, may_go_on


def test_backup_that_is_renamed_meanwhile_keeps_its_place(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "out.log"
    file = log_file(path)

    rotated(file, "one")
    assert held[0].wait(60)
    rotated(file, "two")
    held[1].set()
    until_done(path)

    assert packed(path) == {".1.gz": "two", ".2.gz": "one"}
    assert others(path) == [""]
    file.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_backup_that_is_deleted_meanwhile_does_not_come_back(tmp_path: Path, held: Held, is_open: bool) -> None:
    path = tmp_path / "out.log"
    file = log_file(path)

    rotated(file, "one")
    assert held[0].wait(60)
    if is_open:
        file.clear()
    else:
        truncate_with_backups(path)
    held[1].set()
    until_done(path)

    assert (packed(path), others(path)) == ({}, [""])
    assert file.error is None
    file.close()


def test_next_rotation_goes_on_where_a_crash_left_it(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    (tmp_path / "out.log.gz-partial").write_bytes(b"half of it, and longer than what follows" * 100)
    (tmp_path / "out.log.1").write_text("one")
    (tmp_path / "out.log.1.gz").write_bytes(gzip.compress(b"one"))
    path.write_text("two")

    rotate_unopened(path, 3, compress=True)

    assert packed(path) == {".1.gz": "two", ".2.gz": "one"}
    assert others(path) == [""]


@pytest.mark.integration
def test_backup_stays_as_it_is_where_the_disk_is_full_and_the_file_says_so(small_disk: Path) -> None:
    path, filler = small_disk / "out.log", small_disk / "filler"
    file = log_file(path)
    file.write(b"x" * 4096)
    with suppress(OSError), filler.open("wb", buffering=0) as stuff:
        while stuff.write(b"x" * 4096):
            pass

    file.rotate()
    until_done(path)
    filler.unlink()
    file.write(b"after")
    error = file.error
    file.rotate()
    until_done(path)
    file.write(b"")

    assert error == (
        f"cannot compress a backup of {path}: No space left on device; it stays as it is until the next rotation"
    )
    assert [len(each) for each in packed(path).values()] == [5, 4096]
    assert file.error is None
    file.close()


def test_clear_deletes_backups_of_a_time_when_there_were_more(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    file = log_file(path, backups=1)
    for number in range(1, 5):
        (tmp_path / f"out.log.{number}").touch()
        (tmp_path / f"out.log.{number}.gz").touch()
    file.write(b"x")

    file.clear()

    assert [each.name for each in tmp_path.iterdir()] == ["out.log"]
    file.close()


# --- in a folder of a user's ------------------------------------------------------------------------------------------

HUGE = 10 << 40
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes into other users' folders")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A log in the folder of a user who may do anything there."""
    folder = tmp_path / "alice"
    folder.mkdir()
    os.chown(folder, 41001, 41001)
    return folder / "out.log"


def made_huge(path: Path) -> None:
    """As the user would: it takes no room."""
    with path.open("ab") as file:
        file.truncate(HUGE)
    os.chown(path, 41001, 41001)


@pytest.mark.hostile
@needs_root
def test_a_file_in_the_place_of_a_backup_is_left_alone_and_others_are_compressed(theirs: Path, tmp_path: Path) -> None:
    file, other = log_file(theirs), log_file(tmp_path / "other.log")
    made_huge(theirs.with_name("out.log.1"))

    rotated(file, "one")
    rotated(other, "two")
    until_done(theirs)
    until_done(other.path)

    assert packed(theirs) == {".1.gz": "one"}
    assert packed(tmp_path / "other.log") == {".1.gz": "two"}
    assert others(theirs) == ["", ".2"]
    assert file.error is None


@pytest.mark.hostile
@needs_root
@pytest.mark.parametrize("maxbytes", [0, 1000])
def test_a_backup_that_has_grown_stays_as_it_is_and_the_file_says_why(
    theirs: Path, maxbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = log_file(theirs)
    file.maxbytes = maxbytes
    monkeypatch.setattr(compression, "schedule", lambda work, key=None: made_huge(theirs.with_name("out.log.1")))
    rotated(file, "one")

    file.compress_backups()
    file.write(b"")

    assert file.error is not None and f"it has {HUGE} bytes, and the log may have had 4" in file.error
    assert (packed(theirs), others(theirs)) == ({}, ["", ".1"])


@pytest.mark.hostile
@needs_root
@pytest.mark.parametrize(("maxbytes", "says"), [(0, "it has holes"), (1000, "the log may have had 66536")])
def test_a_log_that_its_user_made_huge_before_it_was_rotated_is_not_compressed(
    theirs: Path, maxbytes: int, says: str
) -> None:
    file = log_file(theirs)
    file.maxbytes = maxbytes
    file.write(b"one\n")
    made_huge(theirs)

    file.rotate()
    until_done(theirs)
    file.write(b"")

    assert file.error is not None and says in file.error
    assert packed(theirs) == {}


@pytest.mark.hostile
def test_a_large_one_keeps_no_other_waiting_and_ends_with_its_deletion(tmp_path: Path) -> None:
    """The large one is as large as can be: it is in a folder of root's, where nothing is refused."""
    large, small = log_file(tmp_path / "a" / "large.log"), log_file(tmp_path / "b" / "small.log")
    for each in (large, small):
        each.path.parent.mkdir()
    with large.path.open("wb") as content:
        content.truncate(HUGE)
    large.rotate()

    rotated(small, "one")
    wait_until(lambda: packed(small.path) == {".1.gz": "one"}, "the small one is compressed")
    is_compressing = (large.path.parent / "large.log.gz-partial").exists()
    large.clear()
    wait_until(lambda: others(large.path) == [""], "the large one has ended")

    assert is_compressing
    assert (packed(large.path), large.error) == ({}, None)


def test_one_log_after_the_other_of_the_same_name_and_all_in_turn() -> None:
    seen: list[str] = []

    def work(name: str, turns: int) -> Iterator[None]:
        for number in range(turns):
            seen.append(f"{name}{number}")
            yield
        seen.append(f"{name} over")

    begun = threading.Event()
    compression.schedule(lambda: begun.wait(60) and None)
    compression.schedule(lambda: work("a", 3), "a")
    compression.schedule(lambda: work("A", 1), "a")
    compression.schedule(lambda: work("b", 1), "b")
    compression.schedule(lambda: work("c", 9), "c")
    begun.set()
    wait_until(lambda: "c over" in seen and "A over" in seen, "all is done")

    assert seen.index("a over") < seen.index("A0")
    assert seen.index("b over") < seen.index("a over")
    assert seen.index("A over") < seen.index("c over")
