"""What one attempt printed is found again after rotations, compression and truncation, or is said to be gone."""

import gzip
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as some

from supervisor.host.logs.files import attempt_output
from supervisor.host.logs.files.attempt_output import OutputGone, open_attempt_output
from supervisor.host.logs.files.file import OutputFile
from supervisor.host.logs.files.positions import COMPRESSED_NAME, LogPosition

REMARK = b"[the beginning is gone]\n"


def position_of(file: OutputFile) -> LogPosition:
    found = file.position()
    assert found is not None
    return found


def read(path: Path, start: LogPosition, end: LogPosition | None, count: int = 1 << 20) -> bytes:
    output = open_attempt_output(path, start, end, REMARK)
    try:
        output.skip_to_last(count)
        return b"".join(iter(lambda: output.read(7), b""))
    finally:
        output.close()


def date_now(path: Path) -> None:
    """The kernel's clock for files is coarse: what happens in one tick would have one time."""
    os.utime(path, ns=(time.time_ns(), time.time_ns()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_output_lies_between_two_beginnings(path: Path):
    file = OutputFile(path, 0, 0)
    file.write(b"one\n")
    second = position_of(file)
    file.write(b"two\n")
    third = position_of(file)
    file.write(b"three\n")

    assert read(path, second, third) == b"two\n"
    assert read(path, third, None) == b"three\n"
    assert read(path, third, third) == b""


def test_only_the_last_bytes_are_read(path: Path):
    file = OutputFile(path, 6, 5)
    start = position_of(file)
    file.write(b"1234\n5678\n90\n")

    assert read(path, start, None, 5) == b"8\n90\n"


def test_compressed_backup_is_known_by_the_file_that_it_was(path: Path):
    file = OutputFile(path, 0, 3)
    file.write(b"before\n")
    start = position_of(file)
    file.write(b"first\n")
    file.rotate()
    file.write(b"second\n")
    end = position_of(file)
    file.rotate()
    file.compress_backups()

    assert sorted(each.name for each in path.parent.iterdir()) == ["log", "log.1.gz", "log.2.gz"]
    assert read(path, start, end) == b"first\nsecond\n"


def test_missing_beginning_is_said(path: Path):
    file = OutputFile(path, 0, 1)
    start = position_of(file)
    file.write(b"first\n")
    file.rotate()
    file.write(b"second\n")
    date_now(path)
    file.rotate()  # on many file systems the new file gets the inode of the first one
    file.write(b"third\n")

    assert read(path, start, None) == REMARK + b"second\nthird\n"
    assert read(path, start, None, 8) == b"d\nthird\n"


def test_output_that_was_rotated_away_is_gone(path: Path):
    file = OutputFile(path, 0, 1)
    first = position_of(file)
    file.write(b"first\n")
    second = position_of(file)
    for _ in range(2):
        file.write(b"second\n")
        file.rotate()

    with pytest.raises(OutputGone, match="rotated away"):
        read(path, first, second)


def test_file_that_was_emptied_and_has_grown_again_is_not_taken_for_what_it_was(path: Path):
    file = OutputFile(path, 0, 0)
    file.write(b"zero\n")
    first = position_of(file)
    file.write(b"one!\n")
    second = position_of(file)
    path.write_bytes(b"all of this is of the second attempt\n")

    with pytest.raises(OutputGone, match="cleared"):
        read(path, first, second)
    assert read(path, second, None) == REMARK + b"all of this is of the second attempt\n"


def test_damaged_backup_is_an_error(path: Path):
    file = OutputFile(path, 0, 1)
    start = position_of(file)
    file.write(b"first\n" * 1000)
    file.rotate()
    file.compress_backups()
    packed = path.with_name("log.1.gz")
    content = bytearray(packed.read_bytes())
    content[40] ^= 0xFF
    packed.write_bytes(content)

    with pytest.raises(OSError, match=r"damaged|CRC|Error -3"):
        read(path, start, None)


def test_backup_that_takes_too_long_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attempt_output, "SEEK_S", 0.0)
    file = OutputFile(path, 0, 1)
    file.write(b"0" * 5_000_000)
    start = position_of(file)
    file.write(b"mine\n")
    file.rotate()
    file.compress_backups()

    with pytest.raises(OSError, match="could not be read in"):
        read(path, start, None)


def test_backups_before_the_last_bytes_are_not_read(path: Path):
    file = OutputFile(path, 0, 2)
    start = position_of(file)
    file.write(b"0" * 5_000)
    file.rotate()
    file.compress_backups()
    packed = path.with_name("log.1.gz")
    packed.write_bytes(
        packed.read_bytes()[:-20] + bytes(16) + (5_000).to_bytes(4, "little")
    )  # damaged, but for its size
    file.write(b"mine\n")

    assert read(path, start, None, 5) == b"mine\n"


def test_foreign_files_beside_the_log_are_no_backups_of_it(path: Path):
    file = OutputFile(path, 0, 2)
    start = position_of(file)
    file.write(b"mine\n")
    path.with_name("log.1.gz").write_bytes(gzip.compress(b"foreign\n"))
    path.with_name("log.2").mkdir()

    assert read(path, start, None) == b"mine\n"


def test_inode_of_a_backup_that_was_compressed_may_be_that_of_the_log_now(path: Path):
    """It showed what earlier attempts had printed: before the first byte of a log there is nothing to compare."""
    file = OutputFile(path, 0, 2)
    start = position_of(file)
    name = COMPRESSED_NAME.format(start.inode)
    with path.with_name("log.1.gz").open("wb") as packed, gzip.GzipFile(name, "wb", fileobj=packed) as content:
        content.write(b"of an earlier attempt\n")
    os.utime(path.with_name("log.1.gz"), ns=(start.at_ns - 1, start.at_ns - 1))
    file.write(b"mine\n")

    assert read(path, start, None) == b"mine\n"


Step = tuple[str, bytes]
STEPS = some.lists(
    some.one_of(
        some.tuples(some.just("write"), some.binary(min_size=1, max_size=30)),
        some.tuples(some.sampled_from(["begin", "rotate", "compress", "clear", "reopen"]), some.just(b"")),
    ),
    max_size=40,
)


@given(steps=STEPS, maxbytes=some.sampled_from([0, 8, 20]), backups=some.integers(0, 3))
def test_every_attempt_gets_its_own_output_or_what_is_left_of_it(steps: list[Step], maxbytes: int, backups: int):
    with TemporaryDirectory() as name:
        path = Path(name) / "log"
        file = OutputFile(path, maxbytes, backups)
        begins = [position_of(file)]
        printed = [b""]
        for what, data in steps:
            match what:
                case "write":
                    file.write(data)
                    printed[-1] += data
                case "begin":
                    begins.append(position_of(file))
                    printed.append(b"")
                case "compress":
                    file.compress_backups()
                case _:
                    getattr(file, what)()
            if path.exists():
                date_now(path)
        for attempt, start in enumerate(begins):
            try:
                found = read(path, start, begins[attempt + 1] if attempt + 1 < len(begins) else None)
            except OutputGone:
                continue
            assert printed[attempt].endswith(found.removeprefix(REMARK))
            is_whole = backups == 3 and not maxbytes and not {"clear", "rotate"} & {what for what, _ in steps}
            assert found == printed[attempt] or not is_whole
        file.close()


def test_backup_of_which_nothing_comes_out_takes_no_longer(path: Path, monkeypatch: pytest.MonkeyPatch):
    file = OutputFile(path, 0, 1)
    file.write(b"one\n")
    start = position_of(file)
    packed = path.with_name("log.1.gz")
    name = COMPRESSED_NAME.format(start.inode).encode()
    packed.write_bytes(gzip.compress(b"")[:3] + b"\x08" + bytes(6) + name + b"\0" + gzip.compress(b"")[10:])
    with packed.open("ab") as members:
        members.write(gzip.compress(b"") * 500_000 + gzip.compress(b"one\n"))
    path.unlink()
    path.touch()
    monkeypatch.setattr(attempt_output, "SEEK_S", 0.2)

    began_at = time.monotonic()
    with pytest.raises(OSError, match="could not be read in"):
        read(path, start._replace(at_ns=time.time_ns()), None)

    assert time.monotonic() - began_at < 1.0
