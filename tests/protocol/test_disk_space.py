import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.protocol.disk_space import full_disk_reason
from tests.system.disks import mount, umount

pytestmark = pytest.mark.integration


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system with these options."""

    def make(options: str) -> Path:
        mount("tmpfs", tmp_path, "-o", options)
        return tmp_path

    yield make
    umount(tmp_path)


def error_of_filling(folder: Path, content: bytes) -> OSError:
    for number in range(1000):
        try:
            (folder / str(number)).write_bytes(content)
        except OSError as error:
            return error
    raise AssertionError("it is not full")


def test_a_disk_with_space_and_without_inodes_is_told_from_a_full_one(small: Callable[[str], Path]) -> None:
    disk = small("size=8m,nr_inodes=20")

    reason = full_disk_reason(error_of_filling(disk, b"x"), disk / "deeper" / "file")

    assert reason == "No space left on device: it has free space, but no inodes for more files (`df -i`)"


def test_a_disk_without_space_is_full(small: Callable[[str], Path]) -> None:
    disk = small("size=400k,nr_inodes=200")

    assert full_disk_reason(error_of_filling(disk, b"x" * 40_000), disk / "file") == "No space left on device"


def test_other_errors_keep_their_reason(tmp_path: Path) -> None:
    assert full_disk_reason(OSError(errno.EIO, "Input/output error"), tmp_path) == "Input/output error"
    assert full_disk_reason(OSError("odd"), tmp_path) == "odd"
