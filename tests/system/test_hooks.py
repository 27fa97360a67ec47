"""The daemon tells its hooks what becomes of a job."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.reading import records
from tests.system.harness import Daemon, job

pytestmark = pytest.mark.slow


def told(folder: Path) -> list[dict[str, Any]]:
    return records(folder / "told")


def keys(folder: Path) -> str:
    script = folder / "hook.sh"
    script.write_text(f"#!/bin/sh\ncat >> {folder}/told\n")
    script.chmod(0o755)
    return "".join(f"hook_{event}={script}\n" for event in ("failed", "relaunched", "refused", "done", "notice"))


def test_hooks_hear_of_a_crash_a_damaged_checkpoint_a_notice_and_the_end(tmp_path: Path):
    section = job("digits", tmp_path, STEPS=1_000_000, EVERY=20, STEP_S=0.01)
    with Daemon(tmp_path, section, keys(tmp_path)) as daemon:
        pid = daemon.until_step("digits", 45)["pid"]
        daemon.until(lambda: (daemon.status("digits")["job"]["checkpoint"] or {}).get("step", 0) >= 40, "it saves")
        os.kill(pid, signal.SIGSTOP)  # no further checkpoint
        daemon.until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")
        newest = daemon.call("checkpoints", name="digits", verify=False)["checkpoints"][0]["name"]
        (tmp_path / "digits" / newest / "count").write_text("damaged")
        os.kill(pid, signal.SIGKILL)
        daemon.until(lambda: len(told(tmp_path)) >= 2, "two are told")
        daemon.call("drill", name="digits", in_s=3600)
        daemon.until(lambda: len(told(tmp_path)) >= 3, "the notice is told")
        daemon.call("stop", name="digits")

        happened = {each["event"]: each for each in told(tmp_path)}
        assert sorted(happened) == ["notice", "refused", "relaunched"]
        assert happened["relaunched"]["cause"] == "crash"
        assert happened["relaunched"]["attempt"] == 2
        assert happened["refused"]["checkpoint"] == newest
        assert happened["notice"]["source"] == "drill"
        assert {each["program"] for each in happened.values()} == {"digits"}


def test_a_program_s_own_hook_wins_and_hears_of_the_end_of_training(tmp_path: Path):
    own = tmp_path / "own.sh"
    own.write_text(f"#!/bin/sh\ncat > {tmp_path}/own.new && mv {tmp_path}/own.new {tmp_path}/own\n")
    own.chmod(0o755)
    with Daemon(tmp_path, job("digits", tmp_path, f"hook_done={own}", STEPS=20, EVERY=10), keys(tmp_path)) as daemon:
        daemon.until((tmp_path / "own").exists, "it is told")

        done = json.loads((tmp_path / "own").read_text())
        assert (done["event"], done["state"], done["step"]) == ("done", "SUCCEEDED", 20)
        assert told(tmp_path) == []


def test_a_start_of_what_was_not_to_be_started_again_is_no_relaunch(tmp_path: Path):
    section = "[program:once]\ncommand=/bin/sh -c 'sleep 0.3; exit 3'\nstartsecs=0\nautorestart=false\n"
    with Daemon(tmp_path, section, keys(tmp_path)) as daemon:
        daemon.until_state("once", "EXITED")

        daemon.call("start", name="once")
        daemon.until(lambda: daemon.status("once")["state"] == "EXITED", "it has ended again")

        assert daemon.stop() == 0  # what is told is told before it leaves
    assert told(tmp_path) == []


def test_a_job_that_is_given_up_is_told_as_failed(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, FAIL="import"), keys(tmp_path)) as daemon:
        daemon.until(lambda: told(tmp_path), "it is told")

        (failed,) = told(tmp_path)
        assert failed["event"] == "failed"
        assert "No module named 'trian'" in failed["reason"]
        assert daemon.call("status")["hooks_error"] is None
