"""What a log file does with what can't be written: the loss is counted, and told in the file."""

from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.host.logs.files.file import OutputFile


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
