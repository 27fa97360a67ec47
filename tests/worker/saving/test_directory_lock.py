"""One live worker per checkpoint directory, and no commit of one that was overtaken."""

from pathlib import Path

import pytest

from supervisor.protocol import layout
from worker.saving.directory_lock import DirectoryLock, Locked, Overtaken


def test_second_worker_is_refused_and_told_who_holds_the_directory(tmp_path: Path):
    first = DirectoryLock(tmp_path, 3)

    with pytest.raises(Locked, match="attempt 3"):
        DirectoryLock(tmp_path, 4)

    first.release()
    DirectoryLock(tmp_path, 4).release()


def test_worker_alone_may_commit(tmp_path: Path):
    (tmp_path / "step-0000000010.a3").mkdir()
    lock = DirectoryLock(tmp_path, 3)

    lock.check()

    lock.release()


@pytest.mark.parametrize("name", ["step-0000000001.a4", "step-0000000001.a4.partial"])
def test_worker_does_not_commit_after_a_newer_attempt_began_to_write(tmp_path: Path, name: str):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / name).mkdir()

    with pytest.raises(Overtaken, match="attempt 4 has begun there, and this is attempt 3"):
        lock.check()

    lock.release()


def test_worker_does_not_commit_after_a_newer_attempt_has_the_lock(tmp_path: Path):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()
    newer = DirectoryLock(tmp_path, 4)

    with pytest.raises(Overtaken, match="attempt 4"):
        lock.check()

    newer.check()
    newer.release()
    lock.release()


def test_lost_file_of_the_lock_alone_overtakes_nobody(tmp_path: Path):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()

    lock.check()

    lock.release()
