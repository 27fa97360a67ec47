"""One live worker per checkpoint directory, and no commit of one that was overtaken."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.protocol import layout, mounts
from worker.saving.directory_lock import AttemptSuperseded, DirectoryLock, DirectoryLocked


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
    (tmp_path / layout.LOCK).write_text("pid 4711 attempt 4 on elsewhere\n")  # where directories have no locks

    with pytest.raises(AttemptSuperseded, match="attempt 4"):
        lock.check_not_superseded()

    lock.release()


def test_second_worker_is_refused_after_the_file_of_the_lock_was_deleted(tmp_path: Path):
    first = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()

    with pytest.raises(DirectoryLocked):
        DirectoryLock(tmp_path, 4)

    first.release()
    DirectoryLock(tmp_path, 4).release()


def test_deleted_file_of_the_lock_is_made_again_and_names_the_holder(tmp_path: Path):
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()

    lock.check_not_superseded()

    with pytest.raises(DirectoryLocked, match="attempt 3"):
        DirectoryLock(tmp_path, 4)
    lock.release()


@pytest.mark.integration
def test_process_that_locks_only_the_file_is_seen_after_that_was_deleted(tmp_path: Path):
    """As on a network file system: the directory can't be locked, so the file made again has to be."""
    lock = DirectoryLock(tmp_path, 3)
    (tmp_path / layout.LOCK).unlink()
    lock.check_not_superseded()

    assert subprocess.run(["flock", "-n", tmp_path / layout.LOCK, "true"], check=False).returncode == 1

    lock.release()
    assert subprocess.run(["flock", "-n", tmp_path / layout.LOCK, "true"], check=False).returncode == 0


def test_replaced_directory_is_locked_too(tmp_path: Path):
    folder = tmp_path / "c"
    folder.mkdir()
    lock = DirectoryLock(folder, 3)
    folder.rename(tmp_path / "aside")
    folder.mkdir()

    lock.check_not_superseded()

    (folder / layout.LOCK).unlink()
    with pytest.raises(DirectoryLocked):
        DirectoryLock(folder, 4)
    lock.release()


def test_worker_does_not_commit_to_a_replaced_directory_that_another_one_holds(tmp_path: Path):
    folder = tmp_path / "c"
    folder.mkdir()
    lock = DirectoryLock(folder, 3)
    folder.rename(tmp_path / "aside")
    folder.mkdir()
    other = DirectoryLock(folder, 1)

    with pytest.raises(AttemptSuperseded, match="attempt 1"):
        lock.check_not_superseded()

    other.release()
    lock.release()


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two volumes of one type."""
    folders = tmp_path / "first", tmp_path / "second"
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    for folder in folders:
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False)
        if done.returncode != 0:
            pytest.skip("this host does not let root mount")
    yield folders
    for folder in folders:
        subprocess.run(["umount", "-l", folder], check=False)


@pytest.mark.integration
def test_another_volume_of_the_same_type_at_the_same_point_is_refused_and_the_same_one_is_not(
    tmp_path: Path, volumes: tuple[Path, Path]
) -> None:
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mount", "--bind", volumes[0], point], check=True)
    lock = DirectoryLock(point, 3)
    try:
        subprocess.run(["mount", "--bind", volumes[1], point], check=True)
        with pytest.raises(OSError, match="another volume than when this attempt began") as raised:
            lock.check_not_superseded()
        assert raised.value.errno == errno.ENODEV
        assert os.listdir(volumes[1]) == []
        subprocess.run(["umount", "-l", point], check=True)
        lock.check_not_superseded()
    finally:
        lock.release()
        subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.integration
def test_volume_that_comes_back_with_another_number_is_known_by_the_locks_file(
    tmp_path: Path, volumes: tuple[Path, Path]
) -> None:
    """As NFS gives another one at each mount."""
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mount", "--bind", volumes[0], point], check=True)
    lock = DirectoryLock(point, 3)
    try:
        (volumes[1] / layout.LOCK).write_bytes((point / layout.LOCK).read_bytes())
        subprocess.run(["mount", "--bind", volumes[1], point], check=True)

        lock.check_not_superseded()
    finally:
        lock.release()
        for _ in range(2):
            subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.parametrize("attempt", [3, 4])
def test_a_worker_that_no_lock_has_kept_out_is_noticed_before_the_next_commit(tmp_path: Path, attempt: int) -> None:
    """As on two hosts that have mounted a directory with locks of their own. Both daemons may have the same number."""
    lock = DirectoryLock(tmp_path, 3)
    lock.check_not_superseded()
    (tmp_path / layout.LOCK).write_text(f"pid 7 attempt {attempt} on elsewhere\n")  # the very file

    with pytest.raises(AttemptSuperseded, match=r"elsewhere|attempt 4 has begun there"):
        lock.check_not_superseded()

    (tmp_path / layout.LOCK).write_text("pid 7 attempt 2 on elsewhere\n")  # as from a backup
    lock.check_not_superseded()
    lock.release()


def test_nothing_newer_was_committed_since_the_checkpoint_was_chosen(tmp_path: Path) -> None:
    """As by the last save of a job that had another name, or another daemon's."""
    (tmp_path / "step-0000000120.a1").mkdir()
    for highest_step in (None, 120, 130):
        DirectoryLock(tmp_path, 2, highest_step).release()

    with pytest.raises(OSError, match="step 120 was committed after the checkpoint to restore was chosen") as raised:
        DirectoryLock(tmp_path, 3, 100)

    assert raised.value.errno == errno.EBUSY
    assert "attempt 2" in (tmp_path / layout.LOCK).read_text(), "who trains on there is not disturbed"
    DirectoryLock(tmp_path, 4, 120).release()


def test_directory_is_where_the_checkpoint_was_chosen_by_its_mount_or_by_its_number(tmp_path: Path) -> None:
    lock, mount, device = DirectoryLock(tmp_path, 3), str(mounts.mount_of(tmp_path)), tmp_path.stat().st_dev

    for words, number in ((None, None), (mount, device), (mount, device + 1), ("xfs at /in/a/container", device)):
        lock.check_place(words, number)
    with pytest.raises(OSError, match="it was on xfs at /data when the checkpoint was chosen") as raised:
        lock.check_place("xfs at /data", device + 1)

    assert raised.value.errno == errno.ENODEV
    lock.release()
