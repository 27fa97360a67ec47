"""Checkpoint directories that vanish, come back, can't be written, or are another job's. Real daemons, real mounts."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.system.disks import FILES_JOB, disk, mount_again, umount
from tests.system.harness import TRAINER, Daemon, Refused, job
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
__all__ = ["disk"]

SLOW = {"STEPS": 100_000, "STEP_S": 0.01, "EVERY": 10}


def fill(file: Path) -> None:
    """Takes every block that is free."""
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))


def kill_if_alive(daemon: Daemon, name: str) -> None:
    if pid := daemon.status(name)["pid"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def kill_worker(daemon: Daemon, name: str) -> None:
    if (pid := daemon.status(name)["pid"]) is not None:  # else a save that found its disk gone has ended it
        os.kill(pid, 9)


def until_waiting(daemon: Daemon, name: str, text: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        found = daemon.status(name)
        return found if found["state"] == "BACKOFF" and text in (found["reason"] or "") else None

    found: dict[str, object] = daemon.until(look, f"{name} waits with {text!r}")
    return found


@pytest.mark.slow
def test_an_unmounted_disk_is_not_trained_on_and_is_gone_on_with_once_it_is_back(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, job("j", disk, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        umount(disk)
        kill_worker(daemon, "j")

        found = until_waiting(daemon, "j", "was committed in")
        newest = selection.committed_checkpoints(tmp_path / "keep" / "j")[0]
        assert f"step {newest.step} ({newest})" in str(found["reason"])
        assert "supervisorctl start --from-scratch j" in str(found["reason"])
        assert found["job"]["waits_for_storage"]  # type: ignore[index]
        assert os.listdir(disk) == [], "nothing was made below the mount point"
        with pytest.raises(Refused, match="was committed in"):
            daemon.call("start", name="j")
        mount_again(disk)
        daemon.until_step("j", newest.step + 1)

        history = daemon.call("history", name="j")["attempts"]
        assert "storage" in [attempt["cause"] for attempt in history]
        assert history[-1]["from_step"] == newest.step


@pytest.mark.slow
def test_an_unmounted_disk_is_waited_for_also_if_a_mirror_has_all_until_an_operator_chooses_that(
    tmp_path: Path, disk: Path
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "keep").touch()  # an empty one is taken for a mount point
    keys = f"mirror = file://{tmp_path}/store"
    with Daemon(tmp_path, job("j", disk, keys, STEPS=100_000, STEP_S=0.05, EVERY=60)) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["mirror"]["newest_step"] == 60, "its newest is in the store")
        umount(disk)
        kill_worker(daemon, "j")
        until_waiting(daemon, "j", "but the folder is now on")

        with pytest.raises(Refused, match="fetched from its mirror to where the folder is now"):
            daemon.call("start", name="j")
        assert os.listdir(disk) == [], "nothing was made below the mount point"
        daemon.call("start", name="j", from_step=60)
        daemon.until_step("j", 61)
        assert daemon.call("history", name="j")["attempts"][-1]["from_step"] == 60


@pytest.mark.slow
def test_a_daemon_that_starts_before_the_disk_is_mounted_waits_too(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, job("j", disk, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.stop()
        umount(disk)
        (disk / "j" / "step-0000000010.a1").mkdir(parents=True)  # an old copy below the mount point
        shutil.copytree(
            tmp_path / "keep" / "j" / "step-0000000010.a1", disk / "j" / "step-0000000010.a1", dirs_exist_ok=True
        )

        daemon.start()
        until_waiting(daemon, "j", "its newest checkpoint is of step 10")
        mount_again(disk)

        assert daemon.until_step("j", 31)["job"]["restored"] != "step-0000000010.a1"


@pytest.mark.slow
def test_deleted_checkpoints_need_from_scratch_which_holds_until_it_has_begun_and_no_longer(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        shutil.rmtree(tmp_path / "j")
        with pytest.raises(Refused, match="no checkpoint is there now"):
            daemon.call("start", name="j")

        daemon.call("start", name="j", from_scratch=True)
        assert daemon.status("j")["job"]["restored"] is None
        first = daemon.until_step("j", 30)["job"]["attempt"]
        kill_worker(daemon, "j")
        daemon.until(lambda: daemon.status("j")["job"]["attempt"] > first, "the next attempt")
        found = daemon.until(lambda: daemon.status("j")["job"]["restored"], "it restores")

        assert found.startswith("step-")
        assert not (tmp_path / "j" / layout.ABANDONED).exists(), "there was nothing to set aside"


@pytest.mark.slow
def test_from_scratch_sets_whole_and_bad_checkpoints_aside_and_deletes_none(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        before = {str(checkpoint) for checkpoint in selection.committed_checkpoints(tmp_path / "j")}
        (tmp_path / "j" / layout.QUARANTINE / "step-0000000001.a1").mkdir(parents=True)

        daemon.call("start", name="j", from_scratch=True)

        aside = tmp_path / "j" / layout.ABANDONED / "1"
        assert before <= {path.name for path in aside.iterdir()}
        assert (aside / layout.QUARANTINE / "step-0000000001.a1").is_dir()
        assert daemon.status("j")["job"]["restored"] is None
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="j", from_scratch=True)
        assert refused.value.code == "ALREADY_STARTED"


@pytest.mark.slow
def test_from_scratch_outlives_the_daemon_that_was_told(tmp_path: Path, disk: Path) -> None:
    """The directory can't be read when it is given, and the daemon is killed before that ends."""
    with Daemon(tmp_path, job("j", disk, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        umount(disk)
        (disk / "j").touch()  # in place of the folder
        with pytest.raises(Refused):
            daemon.call("start", name="j", from_scratch=True)
        daemon.die()
        (disk / "j").unlink()
        mount_again(disk)

        daemon.start()

        daemon.until_step("j", 1)
        assert daemon.status("j")["job"]["restored"] is None
        assert (disk / "j" / layout.ABANDONED / "1").is_dir()


def test_a_plain_program_has_nothing_to_begin_from(tmp_path: Path) -> None:
    with Daemon(tmp_path, "[program:p]\ncommand=sleep 600\nautostart=false\n") as daemon:
        with pytest.raises(Refused) as refused:
            daemon.call("start", name="p", from_scratch=True)

        assert refused.value.code == "NOT_A_JOB"


@pytest.mark.slow
def test_a_disk_that_turns_read_only_or_full_is_waited_for(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, job("j", disk, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        with pytest.raises(Refused, match="Read-only file system"):
            daemon.call("start", name="j")
        until_waiting(daemon, "j", "Read-only file system")
        subprocess.run(["mount", "-o", "remount,bind,rw", disk], check=True)
        daemon.until_step("j", 31)

        daemon.call("stop", name="j")
        (disk / "j" / layout.LOCK).unlink()
        fill(disk / "filler")
        with pytest.raises(Refused, match="No space left on device"):
            daemon.call("start", name="j")
        until_waiting(daemon, "j", "No space left on device")
        (disk / "filler").unlink()

        daemon.until_state("j", "RUNNING")


@pytest.mark.slow
def test_a_fuse_file_system_that_dies_is_waited_for(tmp_path: Path) -> None:
    """Every access then fails with ENOTCONN, until somebody mounts it again."""
    program = shutil.which("bindfs")
    if program is None or os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root, /dev/fuse and the program bindfs")
    (tmp_path / "keep").mkdir()
    (tmp_path / "disk").mkdir()

    def mount_fuse() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([program, "-f", tmp_path / "keep", tmp_path / "disk"], stderr=subprocess.DEVNULL)
        wait_until(lambda: os.path.ismount(tmp_path / "disk") or process.poll() is not None, "it is mounted")
        if process.returncode is not None:
            pytest.skip("this host does not let bindfs mount")
        return process

    server = mount_fuse()
    try:
        with Daemon(tmp_path, job("j", tmp_path / "disk", **SLOW)) as daemon:
            daemon.until_step("j", 30)
            server.kill()
            server.wait()
            kill_if_alive(daemon, "j")
            until_waiting(daemon, "j", "Transport endpoint is not connected")
            umount(tmp_path / "disk")
            until_waiting(daemon, "j", "was committed in")
            server = mount_fuse()

            daemon.until_step("j", 31)
            daemon.call("stop", name="j")
    finally:
        umount(tmp_path / "disk")
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_checkpoint_of_another_job_is_not_restored_without_being_told_to(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("first", tmp_path, STEPS=50, EVERY=10)) as daemon:
        daemon.until_state("first", "SUCCEEDED")
        shutil.move(tmp_path / "first", tmp_path / "second")
        daemon.write(job("second", tmp_path, STEPS=60, EVERY=10))
        daemon.call("update")

        reason = daemon.until_state("second", "FAILED")["reason"]
        assert "job 'first' saved it, and this is second" in reason
        daemon.write(job("second", tmp_path, "restore_from_jobs = first", STEPS=60, EVERY=10))
        daemon.call("update")

        assert daemon.until_state("second", "SUCCEEDED")["job"]["restored"] == "step-0000000050.a1"


def test_one_that_was_deleted_on_purpose_is_gone_back_behind_and_that_is_said(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("j", tmp_path, **SLOW)) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        newest, older, *_ = selection.committed_checkpoints(tmp_path / "j")
        shutil.rmtree(tmp_path / "j" / str(newest))

        daemon.call("start", name="j")

        found = daemon.status("j")
        assert found["job"]["restored"] == str(older)
        assert f"step {newest.step} ({newest}) was committed" in found["description"]
        assert found["job"]["older_because"] == "deleted"
        assert daemon.events("checkpoint.older") == ["checkpoint.older"]
        assert daemon.call("history", name="j")["attempts"][-1]["older_because"] == "deleted"


def test_a_file_system_on_which_checkpoints_can_be_lost_is_remarked_upon(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, job("j", disk, **SLOW)) as daemon:
        daemon.until_step("j", 1)

        assert "it is in memory" in daemon.status("j")["description"]
        assert daemon.events("checkpoint_dir.remark") == ["checkpoint_dir.remark"]


@pytest.mark.slow
def test_a_worker_whose_disk_is_unmounted_below_it_commits_nothing_out_of_sight(tmp_path: Path, disk: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FILES_JOB)
    section = f"[program:j]\ncommand={sys.executable} {script}\ncheckpoint_dir={disk}/j\nstandby=off\n"
    with Daemon(tmp_path, f"{section}checkpoint_interval=5 steps\n") as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["newest"], "it commits")
        umount(disk)
        (disk / "j").mkdir()  # as an automatic unit or an eager script would
        found = daemon.until(lambda: daemon.status("j")["job"]["save_error"], "a save fails")

        assert "mount its disk again" in found
        assert selection.committed_checkpoints(disk / "j") == []
        mount_again(disk)
        newest = daemon.status("j")["job"]["newest"]["step"]
        daemon.until(lambda: daemon.status("j")["job"]["newest"]["step"] > newest, "it commits again")


# --- what a program is started from is on the disk ---


def section_on(disk: Path, checkpoints: Path) -> str:
    """A job whose directory and interpreter are on the disk, and a plain program; their checkpoints are elsewhere."""
    interpreter = disk / "bin" / "python3"
    interpreter.parent.mkdir()
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    (disk / "run").mkdir()
    variables = ",".join(f'{key}="{value}"' for key, value in SLOW.items())
    return (
        f"[program:j]\ncommand={interpreter} {TRAINER}\ndirectory={disk}/run\ncheckpoint_dir={checkpoints}/j\n"
        f"environment={variables}\nstandby=off\nstartretries=1\n"
        f"[program:p]\ncommand=/bin/sleep 100000\ndirectory={disk}/run\nstartsecs=0\nautorestart=true\n"
    )


@pytest.mark.slow
def test_a_directory_and_an_interpreter_on_a_disk_that_went_away_are_waited_for(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, section_on(disk, tmp_path)) as daemon:
        daemon.until_step("j", 30)
        umount(disk)
        kill_worker(daemon, "j")
        os.kill(daemon.status("p")["pid"], 9)

        found = until_waiting(daemon, "j", f"its directory {disk}/run does not exist")
        until_waiting(daemon, "p", "it was started from there before")
        assert found["job"]["waits_for_storage"]  # type: ignore[index]
        with pytest.raises(Refused, match="once the disk is back, it starts by itself"):
            daemon.call("start", name="j")
        mount_again(disk)

        daemon.until_step("j", 40)
        daemon.until_state("p", "RUNNING")
        causes = [attempt["cause"] for attempt in daemon.call("history", name="j")["attempts"]]
        assert causes[0] == "crash" and set(causes[1:-1]) == {"storage"}


@pytest.mark.slow
def test_a_daemon_that_starts_before_the_disk_of_its_programs_waits_for_it(tmp_path: Path, disk: Path) -> None:
    with Daemon(tmp_path, section_on(disk, tmp_path)) as daemon:
        daemon.until_step("j", 30)
        daemon.until_state("p", "RUNNING")
        daemon.stop()
        umount(disk)

        daemon.start()

        until_waiting(daemon, "j", "once the disk is back, it starts by itself")
        until_waiting(daemon, "p", "once the disk is back, it starts by itself")
        mount_again(disk)
        daemon.until_step("j", 31)
        daemon.until_state("p", "RUNNING")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("command=/no/such/python {trainer}\n", "there is no command '/no/such/python'"),
        ("command={python} {trainer}\ndirectory=/no/such/folder\n", "its directory /no/such/folder does not exist"),
        ("command={python} /no/such/train.py\n", "there is no /no/such/train.py"),
    ],
)
def test_a_path_that_never_worked_fails_the_job_at_once(tmp_path: Path, keys: str, says: str) -> None:
    section = keys.format(python=sys.executable, trainer=TRAINER)
    with Daemon(tmp_path, f"[program:j]\n{section}checkpoint_dir={tmp_path}/j\nstandby=off\n") as daemon:
        found = daemon.until_state("j", "FAILED")

        assert says in found["reason"]
        assert len(daemon.call("history", name="j")["attempts"]) == 1
