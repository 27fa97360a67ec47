"""A worker whose node has a folder of its own: a save that the mirror did not get is none, and what is restored is one
checkpoint for all."""

import errno
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError, verify_checkpoint
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import DaemonIdentity, Launch
from supervisor.protocol.wire.messages import Failed, Mirrored, PartsWritten
from tests.worker.daemon_end import DaemonEnd
from worker.checkpoint.save_link import SaveLink
from worker.checkpoint.written_shares import ChiefShare, ShareReport
from worker.data.collectives import Gang
from worker.process.attempt import Attempt, DeliberateExit
from worker.process.control_pipe import WorkerChannel
from worker.process.requests import PendingRequests
from worker.run import own_folders
from worker.saving.commit import (
    CheckpointCommitter,
    CheckpointOrigin,
    OtherDiskFull,
    Retention,
    SaveError,
    is_disk_full,
)
from worker.saving.directory import open_checkpoint_directory

pytestmark = pytest.mark.tensorflow

NAME = CheckpointName(100, 1)


@pytest.fixture
def attempt(daemon: DaemonEnd, tmp_path: Path) -> Iterator[Attempt]:
    requests = PendingRequests()
    channel = WorkerChannel(daemon.control(), requests)
    channel.start()
    launch = Launch(checkpoint_dir=tmp_path / "ckpt", checkpoint_dir_shared=False, generation=1)
    yield Attempt(launch, requests, channel, channel)
    channel.close()


def committer(attempt: Attempt, directory: Path) -> CheckpointCommitter:
    directory.mkdir()
    retention = Retention(directory, RetentionPolicy(), make_room=False)
    return CheckpointCommitter(
        directory,
        CheckpointOrigin("j", 1, {}, {}),
        retention,
        lambda: None,
        lambda error: str(error) if isinstance(error, OSError) else None,
        publish=lambda manifest, part: own_folders.publish(attempt, manifest, part),
    )


def fill(is_divided: bool) -> Callable[[NewFolder], None]:
    def write(folder: NewFolder) -> None:
        folder.add("ckpt.index", b"index")
        if is_divided:
            folder.record_elsewhere("ckpt.data-00001-of-00002", 5, "xxh3_128:0")

    return write


class Save(threading.Thread):
    """One commit beside the test. `outcome`: the manifest, or the error."""

    def __init__(self, writes: CheckpointCommitter, is_divided: bool) -> None:
        super().__init__()
        self._commit, self._is_divided = writes.commit, is_divided
        self.outcome: Manifest | SaveError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._commit(NAME, {}, fill(self._is_divided))
        except SaveError as error:
            self.outcome = error


@pytest.mark.parametrize("is_divided", [False, True])
def test_save_has_ended_once_the_mirror_has_it_and_not_before(
    daemon: DaemonEnd, attempt: Attempt, tmp_path: Path, is_divided: bool
) -> None:
    directory = tmp_path / "ckpt"
    save = Save(committer(attempt, directory), is_divided)

    assert daemon.wait_for(PartsWritten) == PartsWritten(1, 100, str(NAME), is_divided)
    assert save.outcome is None and save.is_alive()
    assert [path.name for path in directory.iterdir()] == [NAME.part]
    assert (directory / NAME.part / layout.MANIFEST).exists()
    daemon.send(Mirrored(1, str(CheckpointName(99, 1)), "of another one"))
    daemon.send(Mirrored(1, str(NAME)))
    save.join()
    assert isinstance(save.outcome, Manifest)
    with pytest.raises(ManifestError):
        verify_checkpoint(directory / NAME.part)


def test_save_that_the_mirror_does_not_get_fails_and_leaves_nothing(
    daemon: DaemonEnd, attempt: Attempt, tmp_path: Path
) -> None:
    directory = tmp_path / "ckpt"
    save = Save(committer(attempt, directory), is_divided=True)
    daemon.wait_for(PartsWritten)
    daemon.send(Mirrored(1, str(NAME), "node 1: its disk is gone"))
    save.join()

    assert isinstance(save.outcome, SaveError)
    assert "node 1: its disk is gone; earlier checkpoints are untouched" in str(save.outcome)
    assert list(directory.iterdir()) == []


@pytest.mark.integration
def test_save_of_a_worker_whose_daemon_is_gone_fails(daemon: DaemonEnd, attempt: Attempt, tmp_path: Path) -> None:
    """Nobody would answer it; it would hold its directory until it is ended."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        attempt.launch = replace(attempt.launch, leaves_with=DaemonIdentity(other.pid, read_start_time(other.pid) or 0))
        save = Save(committer(attempt, tmp_path / "ckpt"), is_divided=True)
        daemon.wait_for(PartsWritten)
        assert save.is_alive()
        other.kill()
    save.join()

    assert isinstance(save.outcome, SaveError)
    assert "is gone" in str(save.outcome)


def gang(rank: int, others: int = 0) -> Gang:
    """Of two; `others`: what the other one adds to each sum."""
    return Gang(rank, 2, lambda numbers: np.array(numbers) + others)


def checkpoint(folder: Path, content: bytes = b"manifest") -> Path:
    path = folder / str(NAME)
    path.mkdir(parents=True)
    (path / layout.MANIFEST).write_bytes(content)
    return path


def test_all_restore_the_very_checkpoint_of_the_chief(attempt: Attempt, tmp_path: Path) -> None:
    chiefs = own_folders.proof_of(checkpoint(tmp_path / "chief"))

    own_folders.require_same(checkpoint(tmp_path / "other"), chiefs, gang(1), attempt)
    own_folders.require_same(None, own_folders.proof_of(None), gang(1), attempt)


@pytest.mark.parametrize("mine", ["of other content", "none", "of another name"])
def test_worker_that_would_restore_another_one_trains_not_a_step(
    daemon: DaemonEnd, attempt: Attempt, tmp_path: Path, mine: str
) -> None:
    chiefs = own_folders.proof_of(checkpoint(tmp_path / "chief"))
    other: Path | None = checkpoint(tmp_path / "other", b"another" if mine == "of other content" else b"manifest")
    if mine == "of another name":
        other = (tmp_path / "other" / str(NAME)).rename(tmp_path / "other" / str(CheckpointName(99, 1)))
    with pytest.raises(DeliberateExit) as ended:
        own_folders.require_same(None if mine == "none" else other, chiefs, gang(1), attempt)

    assert ended.value.code == WorkerExit.DIRECTORY_UNUSABLE
    assert "would restore another checkpoint than the chief's step-0000000100.a1" in daemon.wait_for(Failed).error


def test_chief_ends_too_where_another_one_differs(attempt: Attempt, tmp_path: Path) -> None:
    mine = checkpoint(tmp_path / "chief")
    with pytest.raises(DeliberateExit):
        own_folders.require_same(mine, own_folders.proof_of(mine), gang(0, others=1), attempt)


def test_run_that_can_not_save_so_is_refused(daemon: DaemonEnd, attempt: Attempt, tmp_path: Path) -> None:
    """It would commit on one node's disk what the others can't get."""
    with pytest.raises(DeliberateExit) as ended:
        open_checkpoint_directory(attempt, tmp_path / "ckpt")

    assert ended.value.code == WorkerExit.BAD_LAUNCH
    assert "only worker.Run and worker.keras.fit on several workers save so" in daemon.wait_for(Failed).error
    assert not (tmp_path / "ckpt").exists()


def test_old_parts_are_deleted_once_a_newer_checkpoint_exists(tmp_path: Path) -> None:
    names = [CheckpointName(step, 1) for step in (80, 90, 100, 110)]
    for name in names:
        (tmp_path / name.part).mkdir()
        (tmp_path / str(name)).mkdir()

    own_folders.delete_old_parts(tmp_path, NAME)

    kept = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith(layout.PART))
    assert kept == [names[2].part, names[3].part]
    assert all((tmp_path / str(name)).exists() for name in names)


def test_job_that_trains_on_one_node_again_deletes_its_parts_once_it_has_saved(tmp_path: Path) -> None:
    """Those of before, and what an earlier attempt of several nodes had written beyond where all went back to."""
    names = [CheckpointName(80, 1), CheckpointName(100, 1), CheckpointName(200, 1)]
    for name in names:
        (tmp_path / name.part).mkdir()
        (tmp_path / name.part / "ckpt.index").write_bytes(b"index")
    retention = Retention(tmp_path, RetentionPolicy(), make_room=False)
    write = CheckpointCommitter(tmp_path, CheckpointOrigin("j", 2, {}, {}), retention, lambda: None, str)
    saved = write.commit(CheckpointName(120, 2), {}, lambda folder: folder.add("ckpt.index", b"index"))
    assert all((tmp_path / name.part).exists() for name in names), "nothing goes before there is a newer one"

    retention.apply_policy(saved.name)

    assert [path.name for path in tmp_path.iterdir()] == [str(saved.name)]


def test_part_of_the_newest_checkpoint_and_of_the_save_under_way_stay(tmp_path: Path) -> None:
    parts = [CheckpointName(100, 2), CheckpointName(120, 2)]
    for name in parts:
        (tmp_path / name.part).mkdir()

    own_folders.delete_old_parts(tmp_path, parts[0])

    assert sorted(path.name for path in tmp_path.iterdir()) == [name.part for name in parts]


@pytest.mark.parametrize("has_own_folders", [True, False])
def test_full_disk_of_another_node_costs_no_checkpoint_of_the_chiefs(has_own_folders: bool) -> None:
    share = ChiefShare(NAME, None, None, SaveLink(0, [("worker", 2)]), has_own_folders)  # type: ignore[arg-type]
    report = ShareReport(error="No space left on device", errno=errno.ENOSPC, file="/local/ckpt/ckpt.data-00001")

    with pytest.raises(OtherDiskFull if has_own_folders else OSError, match="No space left on device") as failure:
        share._accepted(1, json.dumps(asdict(report)))

    assert is_disk_full(failure.value) is not has_own_folders, "then room is made in the folder that all share"
    assert not is_disk_full(failure.value.__cause__)
