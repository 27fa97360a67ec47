"""What a log file does with what can't be written: the loss is counted, and told in the file."""

from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.host.logs.files.file import OutputFile, rotate_unopened, truncate_with_backups


def at_once(file: OutputFile) -> OutputFile:
    """Has it try again without waiting for a bad disk to recover."""
    file.retry_every_s = 0.0
    return file


@pytest.mark.integration
def test_a_full_disk_costs_output_and_says_how_much(small_disk: Path) -> None:
    path, filler = small_disk / "out.log", small_disk / "filler"
    file = at_once(OutputFile(path, 0, 0))
    file.write(b"x" * 4095 + b"\n")  # whole blocks, so that the next byte needs another
    with suppress(OSError), filler.open("wb", buffering=0) as stuff:
        while stuff.write(b"x" * 4096):
            pass

    file.write(b"lost\n")
    trouble = file.error
    file.write(b"lost too\n")
    filler.unlink()
    file.write(b"after\n")

    assert trouble == f"cannot write {path}: No space left on device; the output of its program is dropped"
    assert path.read_bytes()[4096:] == b"[stepkeeper dropped 14 bytes: No space left on device]\nafter\n"
    assert file.error is None
    file.close()


def test_after_an_error_a_bad_disk_is_left_alone_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.log"
    file = OutputFile(path, 0, 0)
    file.retry_every_s = 3600.0
    file.write(b"lost\n")
    path.parent.mkdir()

    file.write(b"lost too\n")

    assert not path.exists()


def test_dropped_bytes_are_written_when_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "out.log"
    file = OutputFile(path, 0, 0)
    file.write(b"lost\n")
    path.parent.mkdir()

    file.finish()

    assert path.read_bytes() == b"[stepkeeper dropped 5 bytes: No such file or directory]\n"


def test_bytes_dropped_by_the_caller_are_written(tmp_path: Path) -> None:
    file = OutputFile(tmp_path / "out.log", 0, 0)
    file.write(b"half a li")

    file.record_loss(1000, "its disk did not answer")
    file.close()

    assert (
        tmp_path / "out.log"
    ).read_bytes() == b"half a li\n[stepkeeper dropped 1000 bytes: its disk did not answer]\n"


@pytest.mark.parametrize("is_linked", [True, False])
def test_what_a_process_has_open_is_neither_rotated_nor_emptied(tmp_path: Path, is_linked: bool) -> None:
    """Such as /dev/stdout of a daemon whose output goes to a file."""
    (tmp_path / "log").touch()
    with (tmp_path / "log").open("ab") as opened:
        stream = Path(f"/dev/fd/{opened.fileno()}")
        path = tmp_path / "link" if is_linked else stream
        if is_linked:
            path.symlink_to(stream)
        file = OutputFile(path, 8, 1)

        file.write(b"one two\nthree four\n")
        file.rotate()
        file.clear()
        file.close()
        truncate_with_backups(path)
        rotate_unopened(path, 1, compress=False)

        assert (tmp_path / "log").read_bytes() == b"one two\nthree four\n"
        assert path.is_symlink()


def test_a_file_that_can_not_be_rotated_takes_no_more_than_with_its_backups(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    file = OutputFile(path, 100, 2)
    (tmp_path / "out.log.2").mkdir()

    for number in range(50):
        file.write(b"%08d\n" % number)
        assert path.stat().st_size <= 300
    trouble = file.error
    (tmp_path / "out.log.2").rmdir()
    file.write(b"x" * 99 + b"\n")
    file.close()

    assert trouble is not None
    assert trouble.startswith(f"cannot rotate {path}: ")
    assert trouble.endswith("; it grows to 300 bytes, and is emptied then")
    assert path.with_name("out.log.1").read_bytes().startswith(b"[stepkeeper dropped 297 bytes: cannot rotate: ")
