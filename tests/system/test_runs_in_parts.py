"""A script that trains in two runs, one after the other: the end of the first is not the end of the job."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.places import CHILDREN
from tests.system.harness import Daemon
from tests.system.test_adoption import history, orphans

__all__ = ["orphans"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = CHILDREN / "in_parts.py"


def section(folder: Path, keys: str = "", **environment: object) -> str:
    variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
    return (
        f"[program:j]\ncommand={sys.executable} {SCRIPT}\ncheckpoint_dir={folder}/j\nstandby=off\n"
        f"environment={variables}\ncheckpoint_interval=10 steps\n{keys}\n"
    )


@pytest.mark.parametrize("dies", ["after it was adopted", "without a daemon"])
def test_a_second_run_that_is_killed_is_not_done(tmp_path: Path, orphans: Callable[[int], int], dies: str) -> None:
    """Nobody knows its exit status, as the daemon that started it is gone."""
    with Daemon(tmp_path, section(tmp_path, STEPS=20), scripts_have=None) as daemon:
        pid = daemon.until_step("j", 60)["pid"]
        daemon.die()
        if dies == "after it was adopted":
            daemon.start()
            daemon.until_state("j", "RUNNING")
        reaper = threading.Thread(target=orphans, args=(pid,))
        reaper.start()  # at once, as the first process of a host does
        os.kill(pid, signal.SIGKILL)
        reaper.join()
        if dies == "without a daemon":
            daemon.start()

        daemon.until(lambda: history(daemon, "j")[0]["cause"], "its end is known")

        assert history(daemon, "j")[0]["cause"] != "done"
        assert daemon.status("j")["wanted"]
        assert daemon.until_step("j", 80)["job"]["attempt"] == 2


def test_a_second_run_saves_before_it_is_told_to_stop(tmp_path: Path) -> None:
    with Daemon(tmp_path, section(tmp_path, STEPS=20), scripts_have=None) as daemon:
        daemon.until_step("j", 60)

        daemon.call("stop", name="j")

        (attempt,) = history(daemon, "j")
        assert attempt["cause"] == "stopped"
        assert daemon.events("flush.asked", "worker.told_to_stop") == ["flush.asked"]


@pytest.mark.parametrize("end", ["stop", "shutdown"])
def test_a_script_that_swallows_the_exit_of_a_stop_is_not_done(tmp_path: Path, end: str) -> None:
    with Daemon(tmp_path, section(tmp_path, STEPS=100_000, SECOND=0, SWALLOWS=1), scripts_have=None) as daemon:
        daemon.until_step("j", 30)
        if end == "stop":
            daemon.call("stop", name="j")
            assert daemon.status("j")["state"] == "STOPPED"
        else:
            daemon.stop()
            daemon.start()
            assert daemon.until_step("j", 60)["job"]["attempt"] == 2
        assert history(daemon, "j")[0]["cause"] == "stopped"


def test_a_second_run_goes_back_after_it_diverged_whatever_the_first_one_failed_of(tmp_path: Path) -> None:
    keys = "on_nan=rollback"
    with Daemon(tmp_path, section(tmp_path, keys, STEPS=100, FAILS_AT=15, NAN_AT=60), scripts_have=None) as daemon:
        daemon.until(lambda: daemon.status("j")["job"]["attempt"] == 2, "it is started again")

        assert daemon.until_step("j", 80)["job"]["restored"] == "step-0000000050.a1"
        assert history(daemon, "j")[0]["cause"] == "divergence"
