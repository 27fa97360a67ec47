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


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


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

        with pytest.raises(Refused, match=r"x was told to stop, but that cannot be recorded in .* full") as refused:
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
        assert daemon.events("ledger.written_again") == ["ledger.written_again"]
        assert daemon.call("history", name="count")["attempts"][0]["cause"] == "crash"
        daemon.die()
        daemon.start()
        daemon.until_state("count", "RUNNING")
        assert daemon.status("x")["state"] == "STOPPED", "as its operator wanted"


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
        for each in (tmp_path / "state").glob("ledger.sqlite3*"):
            each.unlink() if how == "deleted" else each.write_bytes(b"no ledger" * 1000)

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
        for each in (tmp_path / "state").glob("ledger.sqlite3*"):
            each.unlink()

        daemon.call("stop", name="x")

        assert len(daemon.call("history", name="count")["attempts"]) == 1
        assert "was deleted" in (ledger_error(daemon) or "")
        pid = daemon.status("count")["pid"]
        daemon.die()
        daemon.start()
        assert daemon.until_state("count", "RUNNING")["pid"] == pid, "it is adopted"
        assert daemon.status("x")["state"] == "STOPPED"
