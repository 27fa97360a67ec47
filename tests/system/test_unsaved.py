"""What is said, and refused, when a command would end training that can't be saved. Real daemons, real disks."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.ctl.main import main
from supervisor.protocol.checkpoints import selection
from tests.system.harness import Daemon
from tests.system.test_faults import section
from tests.system.test_storage import disk, fill

__all__ = ["disk"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENDLESS = {"STEPS": 1_000_000, "STEP_S": 0.01}
FLUSH_TIMEOUT_S = 2


def endless(name: str, folder: Path, checkpoints: Path, keys: str = "") -> str:
    """A job that trains until it is told to stop, and saves by itself once at its first step."""
    told = section("none", folder, checkpoints, FAULT="none", MARKS=folder / "none.marks", **ENDLESS)
    told = told.replace("[program:none]", f"[program:{name}]").replace("interval=5 steps", "interval=20 steps")
    told = told.replace("standby=off", f"standby=off\nhang_timeout=60\nflush_timeout={FLUSH_TIMEOUT_S}\n{keys}")
    return told.replace("hang_timeout=8\n", "")


def ctl(capsys: pytest.CaptureFixture[str], daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    """The exit status and what was printed to both streams."""
    capsys.readouterr()
    status = main(["-s", f"unix://{daemon.socket}", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def trained_on_a_full_disk(daemon: Daemon, disk: Path, name: str = "j") -> int:
    """Has the job train steps that can't be saved; the step of its newest checkpoint."""
    daemon.until(lambda: daemon.status(name)["job"]["newest"], "the first checkpoint")
    fill(disk / "filler")
    daemon.until(lambda: daemon.status(name)["job"]["save_error"], "a save fails")
    newest = newest_step(disk / name)
    daemon.until_step(name, newest + 40)
    return newest


def newest_step(directory: Path) -> int:
    return selection.committed_checkpoints(directory)[0].step


def trained_and_stopped_still(daemon: Daemon, directory: Path, name: str = "j") -> int:
    """SIGSTOPs the worker after some steps that no checkpoint holds; the step of its newest checkpoint."""

    def look() -> int | None:
        os.kill(daemon.status(name)["pid"], signal.SIGSTOP)
        job = daemon.status(name)["job"]
        if job["newest"] is not None and job["step"] > newest_step(directory) + 5:
            return newest_step(directory)
        os.kill(daemon.status(name)["pid"], signal.SIGCONT)
        return None

    daemon.until_step(name, 30)
    newest: int = daemon.until(look, "it stands still after steps that are not saved")
    return newest


def last_attempt(daemon: Daemon) -> dict[str, Any]:
    return dict(daemon.call("history", name="j")["attempts"][-1])


def test_a_stop_that_can_not_save_names_the_steps_and_fails(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, disk / "j")) as daemon:
        newest = trained_on_a_full_disk(daemon, disk)

        status, out, _ = ctl(capsys, daemon, "stop", "j")

        assert status == 1
        attempt = last_attempt(daemon)
        lost = attempt["to_step"] - newest
        assert lost > 0
        assert out.startswith(
            f"j: stopped at step {attempt['to_step']}; the newest checkpoint is of step {newest}, as "
        )
        assert "No space left on device" in out
        assert out.endswith(f"; {lost} steps will be trained again\n")
        assert f"; the newest checkpoint is of step {newest}; {lost} steps will be trained again" in attempt["text"]
        assert daemon.status("j")["state"] == "STOPPED"
        assert daemon.events("training.not_saved") == ["training.not_saved"]


def test_a_stop_that_saves_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, tmp_path / "j")) as daemon:
        daemon.until_step("j", 30)

        status, out, _ = ctl(capsys, daemon, "stop", "j")

        step = newest_step(tmp_path / "j")
        assert (status, out) == (0, f"j: stopped at step {step}, saved in step-{step:010}.a1\n")


def test_a_stop_of_a_worker_that_stands_still_says_that_no_checkpoint_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, tmp_path / "j")) as daemon:
        newest = trained_and_stopped_still(daemon, tmp_path / "j")

        status, out, _ = ctl(capsys, daemon, "stop", "j")

        assert status == 1
        step = last_attempt(daemon)["to_step"]
        why = f"no checkpoint came within {FLUSH_TIMEOUT_S} s (flush_timeout)"
        told = f"the newest checkpoint is of step {newest}, as {why}; {step - newest} steps will be trained again"
        assert out == f"j: stopped at step {step}; {told}\n"


@pytest.mark.parametrize("how", ["full", "still"])
def test_a_restart_that_can_not_save_is_refused_and_the_job_trains_on(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    sections = endless("j", tmp_path, disk / "j") + "[program:p]\ncommand=sleep 600\nstartsecs=0\n"
    with Daemon(tmp_path, sections) as daemon:
        prepare = {"full": lambda: trained_on_a_full_disk(daemon, disk), "still": lambda: still(daemon, disk)}
        newest = prepare[how]()
        pids = [daemon.status(name)["pid"] for name in "jp"]

        status, out, err = ctl(capsys, daemon, "restart", "j", "p")

        why = "No space left on device" if how == "full" else "no checkpoint came within 2 s (flush_timeout)"
        assert status == 1
        assert {"j: ERROR (not saved)", "p: stopped", "p: started"} == set(out.splitlines())
        assert why in err
        assert f"j trains on; restart --discard restarts it from step {newest}" in err
        assert daemon.status("j")["pid"] == pids[0]
        assert daemon.status("p")["pid"] != pids[1]
        os.kill(pids[0], signal.SIGCONT)
        daemon.until_step("j", daemon.status("j")["job"]["step"] + 5)

        if how == "full":
            status, out, _ = ctl(capsys, daemon, "restart", "--discard", "j")
            assert status == 0
            assert "steps will be trained again\nj: started\n" in out
            assert last_attempt(daemon)["from_step"] == newest


def still(daemon: Daemon, disk: Path) -> int:
    return trained_and_stopped_still(daemon, disk / "j")
