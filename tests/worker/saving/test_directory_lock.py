"""One live worker per checkpoint directory, and no commit of one that was overtaken."""

from pathlib import Path

import pytest

from supervisor.protocol import layout
from worker.saving.directory import AttemptSuperseded, DirectoryLock, DirectoryLocked


def test_second_worker_is_refused_and_told_who_holds_the_directory(tmp_path: Path):
    first = DirectoryLock(tmp_path, 3)

    with pytest.raises(DirectoryLocked, match="attempt 3"):
        DirectoryLock(tmp_path, 4)

    first.release()
    DirectoryLock(tmp_path, 4).release()


def test_worker_alone_may_commit(tmp_path: Path):
    (tmp_path / "step-0000000010.a3").mkdir()
    lock = DirectoryLock(tmp_path, 3)

    lock.check_not_superseded()

    lock.release()


@pytest.mark.parametrize("name", ["step-0000000001.a4", "step-0000000001.a4.partial"])
def test_worker_does_not_commit_after_a_newer_attempt_began_to_write(tmp_path: Path, name: str):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / name).mkdir()

    with pytest.raises(AttemptSuperseded, match="attempt 4 has begun there, and this is attempt 3"):
        lock.check_not_superseded()

    lock.release()


def test_worker_does_not_commit_after_a_newer_attempt_has_the_lock(tmp_path: Path):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()
    newer = DirectoryLock(tmp_path, 4)

    with pytest.raises(AttemptSuperseded, match="attempt 4"):
        lock.check_not_superseded()

    newer.check_not_superseded()
    newer.release()
    lock.release()


def test_lost_file_of_the_lock_alone_overtakes_nobody(tmp_path: Path):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()

    lock.check_not_superseded()

    lock.release()
