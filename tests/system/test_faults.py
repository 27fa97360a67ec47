"""Every way in which a worker or its disk may fail, with real processes and real file systems.

After each: the exact final state, never two workers, no process left, no descriptor leaked.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from supervisor.host.processes import marks
from supervisor.protocol import layout
from supervisor.protocol.wire.exits import WorkerExit
from tests.places import CHILDREN, ROOT
from tests.system.harness import Daemon, job

CHILD = CHILDREN / "faulty.py"
STEPS = 40
SPARE = 6  # descriptors: a question being answered, the ledger being read; a leak would be one for each attempt
PATIENCE_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CAUSES = {
    "kill": "crash",
    "stop": "hang",
    "segfault": "crash",
    "raise": "crash",
    "hang": "hang",
    "exit-0": "crash",
    "exit-in-save": "crash",
    "hang-in-save": "hang",
    "nan": "divergence",
    "family": "crash",
    "flood": "done",
    "garbage": "done",
    "close-pipes": None,  # whatever becomes of it, it must end well
}
"""By the fault: how its first attempt ends."""


def section(name: str, folder: Path, checkpoints: Path, **environment: object) -> str:
    """A job that goes wrong as its name says."""
    (folder / f"{name}.marks").mkdir(exist_ok=True)
    known = {"FAULT": name, "MARKS": folder / f"{name}.marks", "STEPS": STEPS, **environment}
    variables = ",".join(f'{key}="{value}"' for key, value in known.items())
    return (
        f"[program:{name}]\ncommand={sys.executable} {CHILD}\ncheckpoint_dir={checkpoints}\n"
        f"checkpoint_interval=5 steps\nhang_timeout=8\nstopwaitsecs=4\non_nan=rollback\nstdout_logfile_maxbytes=1MB\n"
        f"standby=off\nenvironment={variables}\n"
    )


def expected(steps: int) -> list[float]:
    """What an undisturbed training comes to."""
    numbers, total = np.random.RandomState(7), np.zeros(1)
    for _ in range(steps):
        total += numbers.rand()
    return [steps, float(total[0])]


def result(folder: Path, name: str) -> list[float]:
    return list(json.loads((folder / f"{name}.marks" / "result").read_text()))


def history(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    return list(daemon.call("history", name=name)["attempts"])


def ends_well(daemon: Daemon, name: str, steps: int = STEPS) -> None:
    found = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=PATIENCE_S)
    assert found["state"] == "SUCCEEDED", found["reason"]
    assert result(daemon.folder, name) == expected(steps), "the state at the end is another one"
    assert not (daemon.folder / f"{name}.marks" / "two").exists(), "two workers at once"


def hurry(daemon: Daemon, name: str) -> None:
    """From now on a step takes no longer than it has to."""
    (daemon.folder / f"{name}.marks" / "hurry").touch()


def left(folder: Path) -> list[int]:
    """What runs of this daemon's programs."""
    return [each.pid for found in marks.processes_of_daemon(folder / "state").values() for each in found]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon with a job for each fault, side by side; what is left of it in the end is looked at."""
    folder = tmp_path_factory.mktemp("faults")
    programs = "".join(section(name, folder, folder / name) for name in CAUSES)
    with Daemon(folder, programs) as daemon:
        busy = daemon.until(daemon.descriptors, "it runs")
        yield daemon
        for name in CAUSES:
            daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=PATIENCE_S)
        daemon.until(lambda: daemon.descriptors() <= busy + SPARE, f"it has no more than {busy + SPARE} descriptors")
        daemon.until(lambda: not left(folder), f"nothing is left of {left(folder)}")


@pytest.mark.parametrize("name", CAUSES)
def test_fault_is_survived(daemon: Daemon, name: str):
    ends_well(daemon, name)

    first = history(daemon, name)[0]
    if CAUSES[name] is not None:
        assert first["cause"] == CAUSES[name], first["text"]
    if name in ("hang", "stop", "hang-in-save"):
        stacks = re.search(r"stacks: (\S+)", first["text"])
        assert stacks is not None and Path(stacks[1]).read_text()
    if name == "flood":
        log = Path(daemon.status(name)["stdout_logfile"])
        assert log.stat().st_size <= 2 << 20, "the log is not kept to its size"
    if name == "garbage":
        assert "worker.message_refused" in daemon.events("worker.message_refused")


def test_a_checkpoint_that_does_not_fit_is_passed_over_and_set_aside_once_an_older_one_did(tmp_path: Path):
    program = section("unfit", tmp_path, tmp_path / "c", FAULT="kill", MISFIT="step-0000000010.a1")
    with Daemon(tmp_path, program.replace("faulty.py", "other_files.py")) as daemon:
        ends_well(daemon, "unfit")

        found = history(daemon, "unfit")
        assert [each["cause"] for each in found] == ["crash", "bad-checkpoint", "done"]
        assert "its layers are others" in found[1]["text"]
        assert found[2]["restored"] == "step-0000000005.a1"
        aside = daemon.until(lambda: os.listdir(tmp_path / "c" / "quarantine"), "it is set aside")
        assert aside == ["step-0000000010.a1"]


def test_job_without_a_fitting_checkpoint_fails_and_moves_nothing(tmp_path: Path):
    with Daemon(tmp_path, section("none", tmp_path, tmp_path / "c")) as daemon:
        ends_well(daemon, "none")
        before = sorted(os.listdir(tmp_path / "c"))
    for path in (tmp_path / "c").glob("step-*/state.json"):
        assert path.is_file()
    renamed = section("none", tmp_path, tmp_path / "c", MISFIT="all").replace("faulty.py", "other_files.py")
    with Daemon(tmp_path, renamed) as daemon:
        daemon.call("start", name="none", wait=False)
        found = daemon.until_state("none", "FAILED", patience_s=PATIENCE_S)

        assert "a checkpoint of State" in found["reason"]
        assert {attempt["cause"] for attempt in history(daemon, "none")[1:]} <= {"bad-checkpoint", "setup"}
        assert sorted(set(os.listdir(tmp_path / "c")) - {"worker.lock"}) == sorted(set(before) - {"worker.lock"})


def test_a_hang_in_each_section_is_seen_as_that(tmp_path: Path):
    keys = "hang_timeout=auto\nhang_timeout_min=5\nstopwaitsecs=4"
    sections = {"start-up": "in start-up", "tracing": "in tracing", "evaluation": "in section evaluation"}
    programs = "".join(job(name, tmp_path, keys, STEPS=30, EVERY=10, FAIL=name) for name in sections)
    with Daemon(tmp_path, programs) as daemon:
        for name, words in sections.items():
            found = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=PATIENCE_S)
            assert found["state"] == "SUCCEEDED", found["reason"]
            assert any(words in attempt["text"] for attempt in history(daemon, name)), history(daemon, name)


# --- the file system of its checkpoints -------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; skips where nothing can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


LONG = 150
SLOW = {"STEP_S": "0.1", "FAULT": "none", "STEPS": LONG}


def trains_past(daemon: Daemon, name: str, trouble: str) -> None:
    """It says that it can't save, and trains on."""
    found = daemon.until(
        lambda: (now := daemon.status(name))["job"]["save_error"] and now, f"a save fails: {trouble}", PATIENCE_S
    )
    assert trouble in found["job"]["save_error"]
    assert found["state"] == "RUNNING"


def test_full_disk(tmp_path: Path, disk: Path):
    with Daemon(tmp_path, section("full", tmp_path, disk / "c", SIZE=1000, **SLOW)) as daemon:
        daemon.until_step("full", 6, PATIENCE_S)
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(filler, bytes(4096))
        os.close(filler)
        trains_past(daemon, "full", "No space left on device")
        (disk / "filler").unlink()
        hurry(daemon, "full")

        ends_well(daemon, "full", LONG)
        assert [attempt["cause"] for attempt in history(daemon, "full")] == ["done"]


def test_read_only_file_system(tmp_path: Path, disk: Path):
    with Daemon(tmp_path, section("readonly", tmp_path, disk / "c", **SLOW)) as daemon:
        daemon.until_step("readonly", 12, PATIENCE_S)
        daemon.call("stop", name="readonly")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)  # refused while a worker holds its lock there
        daemon.call("start", name="readonly", wait=False)
        found = daemon.until_state("readonly", "BACKOFF", "FAILED", "SUCCEEDED", patience_s=PATIENCE_S)
        assert found["state"] == "BACKOFF" and "Read-only file system" in found["reason"]
        assert len(history(daemon, "readonly")) == 2, "it is not tried again and again"

        hurry(daemon, "readonly")
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)  # it goes on by itself
        ends_well(daemon, "readonly", LONG)


def test_deleted_checkpoint_directory(tmp_path: Path):
    folder = tmp_path / "c"
    with Daemon(tmp_path, section("deleted", tmp_path, folder, **SLOW)) as daemon:
        daemon.until_step("deleted", 12, PATIENCE_S)
        folder.rename(tmp_path / "away")
        shutil.rmtree(tmp_path / "away")
        trains_past(daemon, "deleted", "No such file or directory")
        hurry(daemon, "deleted")

        found = daemon.until_state("deleted", "BACKOFF", "SUCCEEDED", patience_s=LONG)
        assert "no checkpoint is there now" in found["reason"], "it does not begin anew in silence"
        daemon.call("start", name="deleted", wait=False, from_scratch=True)
        ends_well(daemon, "deleted", LONG)


def test_deleted_lock_lets_no_second_worker_in(tmp_path: Path):
    folder = tmp_path / "c"
    with Daemon(tmp_path, section("none", tmp_path, folder, **SLOW)) as daemon:
        daemon.until_step("none", 12, PATIENCE_S)
        (folder / layout.LOCK).unlink()

        by_hand = [sys.executable, CHILDREN / "by_hand.py", folder]
        begun = subprocess.run(by_hand, cwd=ROOT, capture_output=True, check=False)

        assert begun.returncode == WorkerExit.LOCKED, begun.stderr
        hurry(daemon, "none")
        ends_well(daemon, "none", LONG)
        assert len(history(daemon, "none")) == 1


def test_nothing_is_left_by_any_of_them(tmp_path: Path):
    """A worker with stubborn grandchildren, and a daemon that is told to leave."""
    with Daemon(tmp_path, section("family", tmp_path, tmp_path / "c", STEPS=100_000)) as daemon:
        daemon.until(lambda: len(history(daemon, "family")) == 2, "it went wrong", PATIENCE_S)
        daemon.until_state("family", "RUNNING", patience_s=PATIENCE_S)
        pid = daemon.status("family")["pid"]
        assert psutil.pid_exists(pid)
        daemon.stop()

    assert left(tmp_path) == []
    assert os.path.exists(tmp_path / "family.marks" / "happened")
