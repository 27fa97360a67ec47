"""A project folder that is copied or moved: a daemon takes over the workers of its own state folder, and no others."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from supervisor.host.processes import marks
from tests.reading import alive, records
from tests.system.harness import Daemon, job
from tests.waiting import wait_until

pytestmark = pytest.mark.integration
ENDLESS = 100_000
NO_LOGS = "stdout_logfile=NONE\nstderr_logfile=NONE"  # their paths are below the state folder, and part of the program
PLAIN = f"[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n{NO_LOGS}\n"
BARE = f"[program:bare]\ncommand=/usr/bin/env -i /bin/sleep 100000\nstartsecs=0\n{NO_LOGS}\n"


def programs(folder: Path, keys: str = "") -> str:
    return job("count", folder, f"{keys}\n{NO_LOGS}", STEPS=ENDLESS, EVERY=10, STEP_S=0.05) + PLAIN + BARE


def copied(original: Path, copy: Path) -> None:
    subprocess.run(
        ["/bin/cp", "-a", str(original), str(copy)], check=False
    )  # sockets and vanishing files are no matter
    (copy / "daemon.log").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_daemon_in_a_copied_folder_leaves_the_processes_of_the_original_alone(tmp_path: Path):
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    with Daemon(original, programs(original)) as first:
        worker = first.until_step("count", 15)["pid"]
        theirs = {name: first.until_state(name, "RUNNING")["pid"] for name in ("sleeper", "bare")}
        first.until(lambda: marks.read_mark(theirs["bare"]) is None, "it has cleared its environment")
        copied(original, copy)
        first.until_step("count", first.status("count")["job"]["step"] + 25)  # what it commits now is its own alone
        second = Daemon(copy, programs(copy, "startup_timeout=10"))
        with second:
            mine = second.until_step("count", 20)["pid"]
            others = {name: second.until_state(name, "RUNNING")["pid"] for name in theirs}
            told = [record for record in records(copy / "daemon.log") if record["event"] == "worker.not_ours"]
            lost = second.call("history", name="count")["attempts"][0]

        now = first.status("count")
        first.until_step("count", now["job"]["step"] + 5)
        assert (now["pid"], now["job"]["attempt"]) == (worker, 1)
        assert all(alive(pid) for pid in (worker, *theirs.values()))
        assert mine != worker and not set(theirs.values()) & set(others.values())
        assert {(each["program"], each["pid"]) for each in told} == {("count", worker), *theirs.items()}
        assert lost["cause"] == "lost"


@pytest.mark.slow
def test_a_copy_is_not_held_to_what_the_original_has_saved_since_also_if_that_has_ended(tmp_path: Path):
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    with Daemon(original, job("count", original, NO_LOGS, STEPS=ENDLESS, EVERY=10, STEP_S=0.05)) as first:
        first.until_step("count", 15)
        copied(original, copy)
        first.until_step("count", first.status("count")["job"]["step"] + 25)
    second = Daemon(copy, job("count", copy, NO_LOGS, STEPS=ENDLESS, EVERY=10, STEP_S=0.05))

    with second:
        now = second.until_step("count", 20)

    assert now["job"]["older_because"] is None and now["job"]["attempt"] == 2


@pytest.mark.slow
def test_a_state_folder_that_was_renamed_keeps_its_workers(tmp_path: Path):
    with Daemon(tmp_path, programs(tmp_path)) as daemon:
        worker = daemon.until_step("count", 15)["pid"]
        theirs = {name: daemon.until_state(name, "RUNNING")["pid"] for name in ("sleeper", "bare")}
        daemon.die()
        (tmp_path / "state").rename(tmp_path / "elsewhere")
        daemon.conf.write_text(daemon.conf.read_text().replace(f"{tmp_path}/state", f"{tmp_path}/elsewhere"))

        daemon.start()

        assert daemon.until_state("count", "RUNNING")["pid"] == worker
        assert {name: daemon.until_state(name, "RUNNING")["pid"] for name in theirs} == theirs
        daemon.call("stop", name="count")
        assert [attempt["cause"] for attempt in daemon.call("history", name="count")["attempts"]] == ["stopped"]


@pytest.mark.slow
def test_a_worker_that_still_loads_is_that_of_the_original_and_not_of_the_copy(tmp_path: Path):
    """It has not opened its pipes yet, so nothing but its mark says whose it is."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    section = job("count", original, NO_LOGS, STEPS=ENDLESS, LOAD_S=4)
    with Daemon(original, section) as daemon:
        worker = daemon.until(lambda: daemon.status("count")["pid"], "it was started")
        os.kill(worker, signal.SIGSTOP)  # however long the daemons take
        daemon.die()
        copied(original, copy)
        second = Daemon(copy, job("count", copy, STEPS=ENDLESS))
        with second:
            assert second.until_step("count", 1)["pid"] != worker
        assert alive(worker)

        daemon.start()

        os.kill(worker, signal.SIGCONT)
        assert daemon.until_step("count", 3)["pid"] == worker
        wait_until(lambda: daemon.status("count")["state"] == "RUNNING", "it trains")


@pytest.mark.slow
@pytest.mark.parametrize("is_apart", [True, False])
def test_a_state_folder_that_comes_back_from_a_backup_has_the_workers_of_the_one_before(tmp_path: Path, is_apart: bool):
    """With their pipes elsewhere they are adopted; otherwise those are gone, and they save and leave."""
    settings = f"runtime_dir={tmp_path}/run" if is_apart else ""
    with Daemon(tmp_path, programs(tmp_path), settings) as daemon:
        worker = daemon.until_step("count", 15)["pid"]
        daemon.until_state("sleeper", "RUNNING")
        daemon.die()
        (tmp_path / "state").rename(tmp_path / "backup")
        subprocess.run(["/bin/cp", "-a", f"{tmp_path}/backup", f"{tmp_path}/state"], check=True)

        daemon.start()

        now = daemon.until_step("count", 40)
        assert (now["pid"] == worker, now["job"]["attempt"]) == ((True, 1) if is_apart else (False, 2))
        assert now["job"]["older_because"] is None
        assert "folder.replaced" in daemon.events("folder.replaced")


@pytest.mark.slow
def test_a_worker_whose_state_folder_was_deleted_is_named_with_what_ends_it(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, NO_LOGS, STEPS=ENDLESS)) as daemon:
        worker = daemon.until_step("count", 15)["pid"]
        daemon.die()
        shutil.rmtree(tmp_path / "state")

        daemon.start()

        waiting = daemon.until_state("count", "BACKOFF")["description"]
        assert "before it was deleted or replaced" in waiting and waiting.endswith(f"kill {worker}")
        os.kill(worker, signal.SIGTERM)
        assert daemon.until_step("count", 16)["job"]["older_because"] is None
