"""Workers that die before or in the restore: only what began to be restored can be to blame."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.places import CHILDREN
from tests.system.harness import Daemon, job

pytestmark = pytest.mark.integration
ENDLESS = 100_000

NATIVE_CRASH = """
import os, signal
from pathlib import Path
import numpy as np
from worker.files import FilesRun

class State:
    versions, topology = {}, {}

    def write(self, folder):
        (folder / "value").write_text("x")

    def read(self, folder):
        if folder.name.startswith("step-0000000020."):
            os.kill(os.getpid(), signal.SIGSEGV)

    def read_foreign(self, prefix):
        raise ValueError(prefix)

with FilesRun(State(), total_steps=40, interval="10 steps") as run:
    while not run.reached:
        run.step_done(epoch=0, batch=run.step)
        if run.step == 25 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


OLD = {"reports-its-restore": {}, "older-worker": {"OLD": 1}}
"""By the job's name: the environment of a worker that says when it begins to restore, and of one that does not."""


def history(daemon: Daemon, name: str = "t") -> list[dict[str, Any]]:
    return list(daemon.call("history", name=name)["attempts"])


def kill_while_they_load(daemon: Daemon, times: int) -> None:
    """Kills so many attempts of each job in a row before they open their pipes, each once a checkpoint is selected."""
    for _ in range(times):
        ended = {name: ends_of(daemon, name) for name in OLD}
        for name in OLD:
            pid = daemon.until(lambda name=name: daemon.status(name)["pid"], "the next attempt has a process")
            os.kill(pid, signal.SIGKILL)
        for name in OLD:
            daemon.until(lambda name=name, before=ended[name]: ends_of(daemon, name) > before, "it ended")


def ends_of(daemon: Daemon, name: str) -> int:
    return len([attempt for attempt in history(daemon, name) if attempt["cause"] is not None])


@pytest.mark.slow
def test_workers_that_are_killed_while_they_import_blame_no_checkpoint(tmp_path: Path):
    sections = [job(name, tmp_path, STEPS=ENDLESS, EVERY=20, LOAD_S=1.5, **old) for name, old in OLD.items()]
    with Daemon(tmp_path, "".join(sections)) as daemon:
        newest = {}
        for name in OLD:
            daemon.until_step(name, 30)
            daemon.call("stop", name=name)
            newest[name] = daemon.status(name)["job"]["checkpoint"]["name"]
        for name in OLD:
            daemon.call("start", name=name, wait=False)
        kill_while_they_load(daemon, 4)

        for name in OLD:
            daemon.until_state(name, "RUNNING")

            told = history(daemon, name)
            assert [each["cause"] for each in told[1:5]] == ["crash"] * 4
            assert not any("suspect" in (each["text"] or "") for each in told)
            assert told[5]["restored"] == newest[name]


@pytest.mark.slow
def test_a_native_crash_in_the_restore_still_makes_the_checkpoint_suspect(tmp_path: Path):
    told = {"STEPS": ENDLESS, "EVERY": 10, "FAIL": "dies-restoring-20", "STEP_S": 0.05}
    sections = [job(name, tmp_path, "autostart=false", **told, **old) for name, old in OLD.items()]
    with Daemon(tmp_path, "".join(sections)) as daemon:
        for name in OLD:
            daemon.call("start", name=name, wait=False)
            os.kill(daemon.until_step(name, 24)["pid"], signal.SIGKILL)

        for name in OLD:
            found = daemon.until(lambda name=name: restored_one(daemon, name), "one restored")
            assert found["restored"] == "step-0000000010.a1"
            assert any("step-0000000020.a1 is suspect" in (attempt["text"] or "") for attempt in history(daemon, name))


def restored_one(daemon: Daemon, name: str) -> dict[str, Any] | None:
    return next((attempt for attempt in history(daemon, name) if attempt["restored"]), None)


@pytest.mark.slow
def test_a_real_worker_says_that_it_begins_to_restore_before_a_crash_there(tmp_path: Path):
    (tmp_path / "train.py").write_text(NATIVE_CRASH)
    section = (
        f"[program:t]\ncommand={sys.executable} train.py\ndirectory={tmp_path}\ncheckpoint_dir={tmp_path}/t\n"
        f"standby=off\n"
    )
    with Daemon(tmp_path, section, environment={"PYTHONPATH": str(CHILDREN.parents[1])}) as daemon:
        daemon.until_state("t", "SUCCEEDED")

        told = history(daemon)
        assert [each["restored"] for each in told if each["restored"]] == ["step-0000000010.a1"]
        assert len([each for each in told if each["signal"] == signal.SIGSEGV]) == 3
        assert "step-0000000020.a1 is suspect: 3 deaths" in told[-2]["text"]
