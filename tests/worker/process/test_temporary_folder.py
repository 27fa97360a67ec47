"""What killed workers have left is removed by the next one, and nothing of live ones."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worker.process.temporary_folder import PREFIX, temporary_folder

KILLED = """
import os, sys
from pathlib import Path
from worker.process.temporary_folder import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "model.keras").write_bytes(b"large")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.integration
def test_what_a_killed_worker_left_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))

    with temporary_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]

    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_what_is_of_a_live_worker_or_new_or_no_workers_stays(tmp_path: Path) -> None:
    live, new, other = tmp_path / f"{PREFIX}live", tmp_path / f"{PREFIX}new", tmp_path / "stepkeeper-other"
    for folder in (live, new, other):
        folder.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(other)
    os.utime(live, (0, 0))
    os.utime(other, (0, 0))
    descriptor = os.open(live, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with temporary_folder(tmp_path):
            assert all(folder.exists() for folder in (live, new, other))
    finally:
        os.close(descriptor)
