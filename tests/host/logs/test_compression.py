"""Rotated logs are compressed beside the output, and whatever interrupts that loses none."""

import gzip
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.logs.files import compression
from supervisor.host.logs.files.file import LogFile, rotate_unopened, truncate_with_backups

Held = tuple[threading.Event, threading.Event]


def log_file(path: Path, backups: int = 3) -> LogFile:
    file = LogFile(path, 0, backups)
    file.compress = True
    return file


def rotated(file: LogFile, *texts: str) -> None:
    """Writes each text, and rotates behind it."""
    for text in texts:
        file.write(f"{text}\n".encode())
        file.rotate()


def until_done() -> None:
    """What was scheduled is done."""
    done = threading.Event()
    compression.schedule(done.set)
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
    until_done()
    rotated(file, "three", "four", "five")
    until_done()

    assert packed(path) == {".1.gz": "five", ".2.gz": "four", ".3.gz": "three"}
    assert others(path) == [""]
    file.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """The first compression stops at its end, says so with the one, and goes on with the other."""
    copy, is_there, may_go_on = shutil.copyfileobj, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        copy(*arguments)
        if not is_there.is_set():
            is_there.set()
            may_go_on.wait(60)

    monkeypatch.setattr(shutil, "copyfileobj", slow)
    return is_there, may_go_on


def test_backup_that_is_renamed_meanwhile_keeps_its_place(tmp_path: Path, held: Held) -> None:
    path = tmp_path / "out.log"
    file = log_file(path)

    rotated(file, "one")
    assert held[0].wait(60)
    rotated(file, "two")
    held[1].set()
    until_done()

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
    until_done()

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
    until_done()
    filler.unlink()
    file.write(b"after")
    error = file.error
    file.rotate()
    until_done()
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
