"""Volumes that are mounted late, at a checkpoint directory of which the daemon knows nothing. Real mounts."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.host.checkpoint_calls import CheckpointRequest, Order, Question
from supervisor.host.checkpoint_process import answer_as
from supervisor.host.processes.credentials import find_credentials
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.system.disks import FILES_JOB, disk, freeze, mount_again, slow_disk, thaw, umount, waits_for_disk
from tests.system.harness import Daemon, Refused
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
__all__ = ["disk", "slow_disk"]


@pytest.fixture
def fstab(tmp_path: Path, disk: Path) -> Iterator[Path]:
    """What the host's /etc/fstab is while the test runs: as before, and with the disk, which is not mounted."""
    table = Path("/etc/fstab")
    if not table.exists():
        pytest.skip("this host has no /etc/fstab to mount another one over")
    ours = tmp_path / "fstab"
    ours.write_text(f"{table.read_text()}\nUUID=none {disk} ext4 nofail 0 2\n")
    umount(disk)
    subprocess.run(["mount", "--bind", ours, table], check=True)
    yield ours
    subprocess.run(["umount", "-l", table], check=True)


def section(tmp_path: Path, disk: Path, *keys: str, script_text: str = FILES_JOB) -> str:
    script = tmp_path / "train.py"
    script.write_text(script_text)
    lines = (f"command={sys.executable} {script}", f"checkpoint_dir={disk}/j", "standby=off", *keys)
    return "[program:j]\n" + "\n".join(lines) + "\ncheckpoint_interval=5 steps\n"


def lose_state(tmp_path: Path) -> None:
    """As on a host whose own disk is new."""
    shutil.rmtree(tmp_path / "state")


def trained_before(tmp_path: Path, disk: Path) -> int:
    """Trains on the disk, ends the daemon, and gives the step of its newest checkpoint."""
    with Daemon(tmp_path, section(tmp_path, disk)) as daemon:
        daemon.until_step("j", 30)
    return selection.committed_checkpoints(disk / "j")[0].step


@pytest.mark.slow
def test_first_start_waits_for_a_volume_that_fstab_names_and_goes_on_from_what_it_holds(
    tmp_path: Path, disk: Path, fstab: Path
) -> None:
    mount_again(disk)
    newest = trained_before(tmp_path, disk)
    umount(disk)
    lose_state(tmp_path)

    with Daemon(tmp_path, section(tmp_path, disk)) as daemon:
        status = daemon.until_state("j", "BACKOFF")
        assert f"{disk} is in /etc/fstab and not mounted" in status["reason"]
        assert "mount it, and the job starts by itself" in status["reason"]
        assert status["job"]["waits_for_storage"]
        with pytest.raises(Refused, match="not mounted"):
            daemon.call("start", name="j", from_scratch=True)
        daemon.call("stop", name="j")  # which withdraws that
        with pytest.raises(Refused, match="not mounted"):
            daemon.call("start", name="j", from_step=newest)
        assert os.listdir(disk) == [], "nothing was made below the mount point"
        mount_again(disk)

        daemon.until_step("j", newest + 1)
        assert daemon.status("j")["job"]["restored"].startswith(f"step-{newest:010d}")


def test_worker_without_a_daemon_refuses_a_directory_whose_volume_is_away(
    tmp_path: Path, disk: Path, fstab: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FILES_JOB.replace("Counting(), ", f"Counting(), directory={str(disk / 'j')!r}, "))

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 73
    assert f"{disk} is in /etc/fstab and not mounted" in done.stderr
    assert os.listdir(disk) == []


@pytest.mark.slow
def test_job_that_has_trained_below_the_mount_point_all_along_goes_on_there_with_a_remark(
    tmp_path: Path, disk: Path, fstab: Path
) -> None:
    kept = fstab.read_text()
    fstab.write_text("")
    with Daemon(tmp_path, section(tmp_path, disk)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["newest"], "it commits")
        fstab.write_text(kept)
        daemon.call("stop", name="j")
        daemon.call("start", name="j")

        daemon.until(lambda: daemon.status("j")["job"]["restored"], "it restores")
        assert "what is saved here now is out of sight" in daemon.status("j")["description"]


@pytest.mark.slow
def test_volume_that_is_mounted_over_a_run_that_began_below_it_is_what_training_goes_on_from(
    tmp_path: Path, disk: Path
) -> None:
    """No table names it. The old run has a checkpoint of the same name as one that the new run is about to save: that
    one waits amid its second interval, or on a busy machine it would come further than the old one first."""
    newest = trained_before(tmp_path, disk)
    before = {str(name) for name in selection.committed_checkpoints(disk / "j")}
    umount(disk)
    lose_state(tmp_path)
    mounted = tmp_path / "mounted"
    waits = f"        while run.step == 7 and not os.path.exists({str(mounted)!r}):\n            time.sleep(0.01)\n"
    text = f"import os\n{FILES_JOB}".replace("        run.step_done", f"{waits}        run.step_done")

    with Daemon(tmp_path, section(tmp_path, disk, "checkpoint_keep=100", script_text=text)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["newest"], "it saves below the mount point")
        mount_again(disk)
        mounted.touch()
        daemon.until_step("j", newest + 1)

        status = daemon.status("j")
        assert status["job"]["restored"].startswith(f"step-{newest:010d}")
        kept = {str(name) for name in selection.committed_checkpoints(disk / "j")}
        assert before <= kept, "a save that was refused deleted what it found"
        history = daemon.call("history", name="j")["attempts"]
        assert history[0]["cause"] == "storage"
        assert "which was mounted meanwhile" in history[0]["text"]


@pytest.mark.slow
def test_volume_that_is_mounted_over_a_run_and_lacks_its_checkpoints_is_not_saved_on(
    tmp_path: Path, disk: Path
) -> None:
    umount(disk)
    with Daemon(tmp_path, section(tmp_path, disk)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["newest"], "it saves below the mount point")
        attempt = daemon.status("j")["job"]["attempt"]
        (disk.parent / "keep" / "j").mkdir()  # before the worker can look there
        mount_again(disk)
        said = daemon.until(lambda: daemon.status("j")["job"]["save_error"], "a save is refused")
        assert "was mounted over it" in said and f"unmount {disk}" in said
        assert selection.committed_checkpoints(disk / "j") == []
        step = daemon.status("j")["job"]["newest"]["step"]
        umount(disk)

        daemon.until(lambda: daemon.status("j")["job"]["newest"]["step"] > step, "it saves again")
        assert daemon.status("j")["job"]["attempt"] == attempt
        with contextlib.suppress(Refused):
            daemon.call("stop", name="j")


@pytest.mark.slow
def test_stop_withdraws_from_scratch_that_a_disk_keeps_waiting(tmp_path: Path, slow_disk: Path) -> None:
    with Daemon(tmp_path, section(tmp_path, slow_disk)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["newest"], "it commits")
        daemon.call("stop", name="j")
        newest = selection.committed_checkpoints(slow_disk / "j")[0]
        assert daemon.process is not None
        pid = daemon.process.pid
        freeze(slow_disk)
        try:
            daemon.call("start", name="j", from_scratch=True, wait=False)
            daemon.until(lambda: waits_for_disk(pid), "the daemon waits for the disk")
            daemon.call("stop", name="j", wait=False)
            daemon.until_state("j", "STOPPED")
        finally:
            thaw(slow_disk)
        daemon.call("start", name="j")

        assert daemon.until(lambda: daemon.status("j")["job"]["restored"], "it restores") == str(newest)


@pytest.mark.parametrize("moment", ["before", "while the disk keeps it waiting"])
def test_order_of_another_user_is_withdrawn_with_its_process(slow_disk: Path, moment: str) -> None:
    nobody = find_credentials("nobody").identity
    names = [layout.CheckpointName(step, 1) for step in (5, 15)]
    for name in names:
        (slow_disk / str(name)).mkdir()
    os.chown(slow_disk, nobody.uid, nobody.gid)
    for folder in slow_disk.parents[:3]:
        folder.chmod(0o755)
    order, request = Order(), CheckpointRequest(Question.BEGIN_AT, slow_disk)
    with ThreadPoolExecutor(1) as threads:
        if moment == "before":
            order.withdraw()
        freeze(slow_disk)
        try:
            answer = threads.submit(answer_as, nobody, request, order)
            if moment != "before":
                wait_until(lambda: waits_for_disk(os.getpid()), "it waits for the disk")
                order.withdraw()
        finally:
            thaw(slow_disk)

        with pytest.raises(OSError, match=r"withdrawn|ended without an answer"):
            answer.result(60)
    assert selection.committed_checkpoints(slow_disk) == names[::-1]
