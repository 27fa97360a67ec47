"""Small disks that tests mount, take away and mount again. A test is skipped where root may not mount."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

FILES_JOB = """
import time
from worker.files import FilesRun

class Counting:
    versions = {"counting": "1"}
    topology = {}
    def write(self, folder):
        (folder / "count").write_text("1")
    def read(self, folder):
        pass

with FilesRun(Counting(), total_steps=1_000_000) as run:
    while run.step < 1_000_000:
        time.sleep(0.02)
        run.step_done(epoch=0, batch=run.step)
"""
"""A job that starts at once, as it trains nothing."""


def mount(kind: str, where: Path, *options: str) -> None:
    """Mounts, or skips the test with what the host says."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    done = subprocess.run(["mount", "-t", kind, *options, "none", where], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"this host does not let root mount: {done.stderr.strip()}")


def umount(where: Path) -> None:
    subprocess.run(["umount", "-l", where], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk that is mounted, and can be mounted again with what it holds."""
    (tmp_path / "keep").mkdir()
    mount("tmpfs", tmp_path / "keep", "-o", "size=4m")
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "--bind", tmp_path / "keep", where], check=True)
    yield where
    for point in (where, tmp_path / "keep"):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def mount_again(disk: Path) -> None:
    subprocess.run(["mount", "--bind", disk.parent / "keep", disk], check=True)


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, on which nothing can be changed between `freeze` and `thaw`: who tries to waits."""
    image, where = tmp_path / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, 32 << 20)
    where.mkdir()
    made = subprocess.run(["mkfs.ext4", "-q", image], check=False, capture_output=True)
    if os.geteuid() != 0 or made.returncode != 0:
        pytest.skip("only root can mount, and mkfs.ext4 is needed")
    if subprocess.run(["mount", "-o", "loop", image, where], check=False, capture_output=True).returncode != 0:
        pytest.skip("this host does not let root mount a file")
    yield where
    subprocess.run(["fsfreeze", "--unfreeze", where], check=False, capture_output=True)
    subprocess.run(["umount", "-l", where], check=True)


def freeze(disk: Path) -> None:
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)


def thaw(disk: Path) -> None:
    subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)


def waits_for_disk(pid: int) -> bool:
    """Whether a thread of a process, or of one that it has started, waits and can't even be killed."""
    process = psutil.Process(pid)
    for member in (process, *process.children(recursive=True)):
        for task in Path(f"/proc/{member.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                if task.read_text().rpartition(")")[2].split()[0] == "D":
                    return True
    return False
