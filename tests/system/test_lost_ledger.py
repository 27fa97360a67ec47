"""The ledger can't be written, is deleted or damaged: said at once, and what the operator wants is not forgotten."""

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.reading import alive
from tests.system.harness import Daemon, Refused, job

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000
SLEEPER = "[program:x]\ncommand=/bin/sleep 100000\n"
OTHER = "[program:y]\ncommand=/bin/sleep 100000\n"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a small disk of its own."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o711)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "stepkeeper-test", folder]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A state folder on a disk whose new blocks can't be written (EIO) while the second folder is full."""
    below, folder = tmp_path / "below", tmp_path / "state"
    below.mkdir()
    folder.mkdir(mode=0o711)
    image = below / "image"
    commands = [
        ["mount", "-t", "tmpfs", "-o", "size=4m", "stepkeeper-test", below],
        ["truncate", "-s", "64m", image],
        ["mkfs.ext4", "-q", "-O", "^has_journal", "-N", "64", "-b", "4096", "-F", image],
        ["mount", "-o", "loop,errors=remount-ro", image, folder],
    ]
    if os.geteuid() != 0:
        pytest.skip("mounting a failing disk takes root")
    for command in commands:
        if subprocess.run(command, check=False, capture_output=True).returncode:
            subprocess.run(["umount", "-l", below], check=False, capture_output=True)
            pytest.skip(f"{command[0]} does not work here")
    yield folder, below
    subprocess.run(["umount", "-l", folder], check=True)
    subprocess.run(["umount", "-l", below], check=True)


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


def make_read_only(folder: Path) -> None:
    """What the kernel does with an ext4 whose metadata it finds damaged."""
    device = subprocess.run(["findmnt", "-no", "SOURCE", folder], check=True, capture_output=True, text=True).stdout
    Path("/sys/fs/ext4", Path(device.strip()).name, "trigger_fs_error").write_text("a test\n")


def ledger_error(daemon: Daemon) -> str | None:
    found = daemon.call("status")["ledger_error"]
    return None if found is None else str(found)


def test_stop_that_a_full_disk_forgets_is_no_success_and_is_recorded_when_there_is_room(tmp_path: Path, state: Path):
    with Daemon(tmp_path, SLEEPER + OTHER + job("count", tmp_path, STEPS=ENDLESS)) as daemon:
        daemon.until_state("x", "RUNNING")
        pid = daemon.until_step("count", 25)["pid"]
        fill(state)
        with suppress(Refused):
            daemon.call("stop", name="y")  # may take the last bit of room, that of the file it replaces
        fill(state)

        with pytest.raises(Refused, match=r"x was stopped, but that cannot be recorded in .* full") as refused:
            daemon.call("stop", name="x")

        assert refused.value.code == "FAILED"
        assert daemon.status("x")["state"] == "STOPPED", "it is stopped all the same"
        assert "full" in (ledger_error(daemon) or "")
        assert daemon.events("ledger.not_written") == ["ledger.not_written"]
        with pytest.raises(Refused, match="cannot be recorded"):
            daemon.call("stop", name="x")
        os.kill(pid, signal.SIGKILL)
        daemon.until(
            lambda: daemon.status("count")["pid"] not in (None, pid), "it is started again"
        )  # it is supervised as ever

        (state / "filler").unlink()
        daemon.until(lambda: ledger_error(daemon) is None, "status says that all is well again")
        daemon.until(lambda: daemon.events("ledger.written_again") == ["ledger.written_again"], "the log says so too")
        assert daemon.call("history", name="count")["attempts"][0]["cause"] == "crash"
        daemon.die()
        daemon.start()
        daemon.until_state("count", "RUNNING")
        assert daemon.status("x")["state"] == "STOPPED", "as its operator wanted"


def test_a_reload_on_a_full_disk_is_refused_as_the_next_daemon_would_not_know_what_runs(tmp_path: Path, state: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS), f"runtime_dir={tmp_path}/run") as daemon:
        pid = daemon.until_step("count", 25)["pid"]
        fill(state)
        os.kill(pid, signal.SIGKILL)
        pid = daemon.until(
            lambda: (found := daemon.status("count")["pid"]) != pid and found, "an attempt that no disk knows of"
        )

        with pytest.raises(Refused, match=r"cannot reload: .* full.*; the next daemon would not know") as refused:
            daemon.call("reload")

        assert refused.value.code == "FAILED"
        (state / "filler").unlink()
        daemon.until(lambda: ledger_error(daemon) is None, "status says that all is well again")
        daemon.call("reload")
        daemon.until(lambda: daemon.events("daemon.ready")[1:], "the next daemon")
        assert daemon.until_state("count", "RUNNING")["pid"] == pid


def test_disk_that_becomes_read_only_is_said_and_update_add_and_remove_are_no_success(
    tmp_path: Path, failing: tuple[Path, Path]
):
    with Daemon(tmp_path, SLEEPER + OTHER) as daemon:
        daemon.until_state("x", "RUNNING")
        daemon.call("stop", name="y")
        make_read_only(failing[0])
        refused = "but that cannot be recorded in .*state: .*make its disk work and writable"

        with pytest.raises(Refused, match=f"y was removed, {refused}.*would supervise it again"):
            daemon.call("remove", name="y")
        with pytest.raises(Refused, match=f"y was added, {refused}"):
            daemon.call("add", name="y")
        daemon.write(SLEEPER)
        with pytest.raises(Refused, match=f"y updated, {refused}"):
            daemon.call("update")

        assert "cannot write the ledger" in (ledger_error(daemon) or "")
        assert daemon.status("x")["state"] == "RUNNING"
        assert daemon.call("update")["actions"] == []
    assert daemon.events("changes.not_written") == ["changes.not_written"], "said once, and in the log that is written"


def test_disk_that_fails_is_said_and_nothing_is_forgotten_when_it_works_again(
    tmp_path: Path, failing: tuple[Path, Path]
):
    _, below = failing
    with Daemon(tmp_path, SLEEPER + job("count", tmp_path, STEPS=ENDLESS)) as daemon:
        daemon.until_step("count", 25)
        fill(below)

        def is_refused() -> bool:
            try:
                daemon.call("stop", name="x")
                daemon.call("start", name="x")
            except Refused as error:
                return "cannot be recorded" in str(error)
            return False

        daemon.until(is_refused, "blocks that are written already are used up")
        assert "I/O error" in (ledger_error(daemon) or "")
        assert daemon.status("count")["state"] == "RUNNING", "it is supervised as ever"

        (below / "filler").unlink()
        daemon.until(lambda: ledger_error(daemon) is None, "all is recorded")
        with suppress(Refused):
            daemon.call("stop", name="x")
        daemon.die()
        daemon.start()
        daemon.until_state("count", "RUNNING")
        assert daemon.status("x")["state"] == "STOPPED"


def test_stop_while_another_process_locks_the_ledger_is_remembered(tmp_path: Path):
    with Daemon(tmp_path, SLEEPER) as daemon:
        daemon.until_state("x", "RUNNING")
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            daemon.call("stop", name="x")
            daemon.until(lambda: "locked" in (ledger_error(daemon) or ""), "status says that it is locked")
            assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL

        daemon.start()

        daemon.call("history", name="x")
        assert daemon.status("x")["state"] == "STOPPED"


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_ledger_that_is_lost_while_no_daemon_runs_is_said_and_a_stop_is_remembered(tmp_path: Path, how: str):
    programs = SLEEPER + job("count", tmp_path, "autostart=false", STEPS=ENDLESS)
    with Daemon(tmp_path, programs) as daemon:
        daemon.call("start", name="count")
        daemon.call("stop", name="x")
        worker = daemon.until_step("count", 25)["pid"]
        daemon.die()
        for path in (tmp_path / "state").glob("ledger.sqlite3*"):
            path.unlink() if how == "deleted" else path.write_bytes(b"no ledger" * 1000)

        daemon.start()

        daemon.until_step("count", 30)
        assert not alive(worker), "never two workers"
        assert daemon.status("x")["state"] == "STOPPED"
        assert how in (ledger_error(daemon) or "")
        assert daemon.events("ledger.lost", "ledger.set_aside") == [
            "ledger.lost" if how == "deleted" else "ledger.set_aside"
        ]


def test_ledger_that_is_deleted_under_a_daemon_is_made_again(tmp_path: Path):
    with Daemon(tmp_path, SLEEPER + job("count", tmp_path, STEPS=ENDLESS)) as daemon:
        daemon.until_step("count", 25)
        for path in (tmp_path / "state").glob("ledger.sqlite3*"):
            path.unlink()

        daemon.call("stop", name="x")

        assert len(daemon.call("history", name="count")["attempts"]) == 1
        assert "was deleted" in (ledger_error(daemon) or "")
        pid = daemon.status("count")["pid"]
        daemon.die()
        daemon.start()
        assert daemon.until_state("count", "RUNNING")["pid"] == pid, "it is adopted"
        assert daemon.status("x")["state"] == "STOPPED"
