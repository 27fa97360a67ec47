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


def history(daemon: Daemon, name: str = "t") -> list[dict[str, Any]]:
    return list(daemon.call("history", name=name)["attempts"])


def kill_while_it_loads(daemon: Daemon, times: int) -> None:
    """Kills so many attempts in a row before they open their pipes, each once its checkpoint is selected."""
    for _ in range(times):
        ended = len([each for each in history(daemon) if each["cause"] is not None])
        pid = daemon.until(lambda: daemon.status("t")["pid"], "the next attempt has a process")
        os.kill(pid, signal.SIGKILL)
        daemon.until(
            lambda ended=ended: len([each for each in history(daemon) if each["cause"] is not None]) > ended, "it ended"
        )


@pytest.mark.slow
@pytest.mark.parametrize("old", [{}, {"OLD": 1}], ids=["reports-its-restore", "older-worker"])
def test_workers_that_are_killed_while_they_import_blame_no_checkpoint(tmp_path: Path, old: dict[str, int]):
    section = job("t", tmp_path, STEPS=ENDLESS, EVERY=20, LOAD_S=1.5, **old)
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("t", 30)
        daemon.call("stop", name="t")
        newest = daemon.status("t")["job"]["checkpoint"]["name"]
        daemon.call("start", name="t", wait=False)
        kill_while_it_loads(daemon, 4)

        daemon.until_state("t", "RUNNING")

        told = history(daemon)
        assert [each["cause"] for each in told[1:5]] == ["crash"] * 4
        assert not any("suspect" in (each["text"] or "") for each in told)
        assert told[5]["restored"] == newest


@pytest.mark.slow
@pytest.mark.parametrize("old", [{}, {"OLD": 1}], ids=["reports-its-restore", "older-worker"])
def test_a_native_crash_in_the_restore_still_makes_the_checkpoint_suspect(tmp_path: Path, old: dict[str, int]):
    section = job("t", tmp_path, STEPS=ENDLESS, EVERY=10, FAIL="dies-restoring-20", STEP_S=0.05, **old)
    with Daemon(tmp_path, section) as daemon:
        os.kill(daemon.until_step("t", 24)["pid"], signal.SIGKILL)

        found = daemon.until(lambda: next((each for each in history(daemon) if each["restored"]), None), "one restored")

        assert found["restored"] == "step-0000000010.a1"
        assert any("step-0000000020.a1 is suspect" in (each["text"] or "") for each in history(daemon))


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
