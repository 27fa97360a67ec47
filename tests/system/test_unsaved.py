"""What is said, and refused, when a command would end training that can't be saved. Real daemons, real disks."""

import json
import os
import re
import signal
import subprocess
import sys
import xmlrpc.client
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.ctl.main import main
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.reading import records
from tests.system.both import UnixTransport
from tests.system.harness import Daemon, Refused, job
from tests.system.test_faults import section
from tests.system.test_storage import disk, fill, kill_worker, umount
from tests.waiting import wait_until

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
    daemon.until(lambda: filled_between_saves(disk, daemon.status(name)["pid"]), "the disk is full")
    daemon.until(lambda: daemon.status(name)["job"]["save_error"], "a save fails")
    newest = newest_step(disk / name)
    daemon.until_step(name, newest + 40)
    return newest


def filled_between_saves(disk: Path, pid: int) -> bool:
    """Takes every free block while the worker saves nothing: a save that failed would give back what it had taken."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the worker stands still")
    is_between = not any(layout.is_partial(path.name) for path in disk.glob("*/step-*"))
    if is_between:
        fill(disk / "filler")
    os.kill(pid, signal.SIGCONT)
    return is_between


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
        daemon.until(lambda: daemon.events("training.not_saved"), "it is in the log")


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


def test_a_restart_whose_terminal_closes_during_the_save_leaves_the_job_training(tmp_path: Path) -> None:
    section = (
        endless("j", tmp_path, tmp_path / "data" / "j")
        .replace("STEP_S=0.01", "STEP_S=1")
        .replace('STEP_S="0.01"', 'STEP_S="1"')
    )
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("j", 1)
        client = subprocess.Popen(
            [sys.executable, "-m", "supervisor.ctl.main", "-s", f"unix://{daemon.socket}", "restart", "j"]
        )
        daemon.until_state("j", "FLUSHING")

        client.send_signal(signal.SIGHUP)

        assert client.wait(20) == -signal.SIGHUP
        daemon.until(lambda: daemon.status("j")["job"]["attempt"] == 2, "it is started again")
        daemon.until_state("j", "RUNNING")


@pytest.mark.parametrize("how", ["full", "still", "removed"])
def test_an_update_of_a_job_that_can_not_save_is_refused_and_others_are_applied(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    section, plain = endless("j", tmp_path, disk / "j"), "[program:p]\ncommand=sleep 600\n"
    with Daemon(tmp_path, section + plain) as daemon:
        newest = still(daemon, disk) if how == "still" else trained_on_a_full_disk(daemon, disk)
        pids = [daemon.status(name)["pid"] for name in "jp"]
        changed = "" if how == "removed" else section + "priority=5\n"
        daemon.write(changed + plain + "priority=5\n")

        status, out, _ = ctl(capsys, daemon, "update")

        refused, why, *others = out.splitlines()
        assert (status, refused) == (1, "j: ERROR (not applied)")
        assert ("No space left" if how != "still" else "no checkpoint came within 2 s (flush_timeout)") in why
        assert why.endswith(
            f"; j goes on under its old section; update --discard j applies it and goes on from step {newest}"
        )
        assert others == ["p: stopped", "p: updated process group"]
        found = daemon.status("j")
        assert (found["pid"], daemon.status("p")["pid"] != pids[1]) == (pids[0], True)
        assert found["not_applied"] == why.strip()
        assert f"its section is not applied: {why.strip()}" in found["description"]
        assert daemon.events("configuration.not_applied") == ["configuration.not_applied"]
        word = "disappeared" if how == "removed" else "changed"
        _, out, err = ctl(capsys, daemon, "reread")
        assert (out, err) == (
            f"j: {word}\n",
            f"remark: the last update did not apply the section of j: {why.strip()}\n",
        )

        if how == "full":
            status, out, _ = ctl(capsys, daemon, "update", "--discard")
            assert (status, out.splitlines()[1]) == (0, "j: updated process group")
            assert "steps will be trained again" in out
        else:
            os.kill(pids[0], signal.SIGCONT)
            daemon.write(section + plain)
            ctl(capsys, daemon, "reread")
            assert daemon.status("j")["not_applied"] is None


@pytest.mark.parametrize("runs", [True, False], ids=["running", "stopped"])
def test_an_update_to_a_directory_without_the_newest_checkpoint_is_refused_before_anything_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: bool
) -> None:
    section = endless("j", tmp_path, tmp_path / "data" / "j")
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("j", 30)
        if not runs:
            daemon.call("stop", name="j")
        before = daemon.status("j")
        daemon.write(section.replace("data/j", "data/jj"))

        status, out, _ = ctl(capsys, daemon, "update")

        assert (status, out.splitlines()[0]) == (1, "j: ERROR (not applied)")
        assert re.search(r"cannot apply the section of j: step \d+ \(step-\d+\.a1\) was committed in ", out)
        assert f"checkpoint_dir is now {tmp_path}/data/jj, which holds no checkpoint; set checkpoint_dir back" in out
        assert "; j goes on under its old section; update --discard j applies it as it is" in out
        after = daemon.status("j")
        assert (after["pid"], after["job"]["attempt"]) == (before["pid"], before["job"]["attempt"])
        assert after["job"]["checkpoint_dir"] == f"{tmp_path}/data/j"

        checked = [sys.executable, "-m", "supervisor.daemon", "--check-config", "-c", str(daemon.conf)]
        said = subprocess.run(checked, capture_output=True, text=True, check=False)
        assert (said.returncode, said.stderr) == (0, "")
        assert "[program:j] checkpoint_dir: cannot go on with j: step" in said.stdout
        assert "which holds no checkpoint" in said.stdout

        if runs:
            assert ctl(capsys, daemon, "update", "--discard")[0] == 0
            daemon.until(lambda: "checkpoint_dir is now" in (daemon.status("j")["reason"] or ""), "j waits")


def test_an_update_to_what_can_not_be_started_leaves_a_job_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = endless("j", tmp_path, tmp_path / "data" / "j")
    command = next(line for line in section.splitlines() if line.startswith("command"))
    with Daemon(tmp_path, section) as daemon:
        pid = daemon.until_step("j", 3)["pid"]
        for wrong, words in (
            (f"command = {sys.executable} {tmp_path}/tarin.py", f"there is no {tmp_path}/tarin.py; correct the path"),
            ("command = pyhton train.py", "there is no command 'pyhton' in PATH"),
            (f"{command}\ndirectory = {tmp_path}/nope", f"its directory {tmp_path}/nope does not exist; create it"),
        ):
            daemon.write(section.replace(command, wrong))

            status, out, _ = ctl(capsys, daemon, "update")

            assert (status, out.splitlines()[0]) == (1, "j: ERROR (not applied)")
            assert f"cannot apply the section of j: cannot start j: {words}" in out
            assert "; j goes on under its old section; update --discard j applies it as it is" in out
            assert daemon.status("j")["pid"] == pid

        assert ctl(capsys, daemon, "update", "--discard")[0] == 0
        daemon.until_state("j", "FAILED")
        daemon.write(section)
        assert ctl(capsys, daemon, "update")[0] == 0  # nothing trains that could be lost


def test_an_update_to_a_directory_that_holds_the_newest_checkpoint_is_applied(tmp_path: Path) -> None:
    section = endless("j", tmp_path, tmp_path / "data" / "j")
    with Daemon(tmp_path, section) as daemon:
        daemon.until_step("j", 30)
        step = daemon.call("stop", name="j")["safe_step"]
        (tmp_path / "data" / "j").rename(tmp_path / "data" / "jj")
        daemon.write(section.replace("data/j", "data/jj"))

        actions = daemon.call("update")["actions"]

        assert [action["action"] for action in actions] == ["stopped", "updated"]
        daemon.call("start", name="j")
        assert daemon.status("j")["job"]["older_because"] is None
        daemon.until_step("j", step + 1)


def test_supervisors_clients_get_a_fault_with_the_words(tmp_path: Path, disk: Path) -> None:
    sections = endless("j", tmp_path, disk / "j") + endless("k", tmp_path, disk / "k")
    with Daemon(tmp_path, sections) as daemon:
        daemon.until(lambda: daemon.status("k")["job"]["newest"], "the first checkpoint")
        newest = trained_on_a_full_disk(daemon, disk)
        daemon.until(lambda: daemon.status("k")["job"]["save_error"], "a save fails")
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy:
            with pytest.raises(xmlrpc.client.Fault, match="FAILED: j: stopped at step") as fault:
                proxy.supervisor.stopProcess("j")
            (other,) = proxy.supervisor.stopAllProcesses()
            described = proxy.supervisor.getProcessInfo("j")["description"]

    assert fault.value.faultCode == 30
    assert f"the newest checkpoint is of step {newest}, as " in fault.value.faultString
    assert (other["name"], other["status"]) == ("k", 30)
    assert other["description"].startswith("FAILED: k: stopped at step ")
    assert "steps will be trained again" in described


def test_a_shutdown_names_the_jobs_that_lose_steps_and_a_hook_is_told(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat >> {tmp_path}/told\n")
    hook.chmod(0o755)
    sections = endless("j", tmp_path, disk / "j", f"hook_unsaved={hook}") + endless("k", tmp_path, tmp_path / "k")
    with Daemon(tmp_path, sections) as daemon:
        daemon.until_step("k", 5)
        newest = trained_on_a_full_disk(daemon, disk)

        status, out, _ = ctl(capsys, daemon, "shutdown")

        lost, last = out.splitlines()
        assert (status, last) == (1, "Shut down")
        assert lost.startswith("j: stopped at step ")
        assert f"; the newest checkpoint is of step {newest}, as " in lost
        assert lost.endswith(" steps will be trained again")
        assert daemon.process is not None
        assert daemon.process.wait(20) == 0
        (told,) = records(tmp_path / "told")
        assert (told["event"], told["program"], told["safe_step"]) == ("unsaved", "j", newest)
        assert f"j: {told['text']}" == lost


def test_a_job_that_cannot_save_under_its_old_name_is_not_begun_under_its_new_one(tmp_path: Path, disk: Path):
    section = endless("j", tmp_path, disk / "j")
    with Daemon(tmp_path, section) as daemon:
        trained_on_a_full_disk(daemon, disk)
        pid = daemon.status("j")["pid"]
        daemon.write(section.replace("[program:j]", "[program:k]\nrestore_from_jobs=j"))

        actions = {action["name"]: action["action"] for action in daemon.call("update")["actions"]}

        assert actions == {"j": "refused", "k": "refused"}
        assert [(program["name"], program["pid"]) for program in daemon.call("status")["programs"]] == [("j", pid)]
        (disk / "filler").unlink()
        actions = {action["name"]: action["action"] for action in daemon.call("update")["actions"]}
        assert actions == {"j": "removed", "k": "added"}
        assert daemon.until_step("k", 1)["job"]["restored"] is not None


def test_a_reload_names_the_jobs_whose_changed_sections_would_lose_steps(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = endless("j", tmp_path, disk / "j")
    with Daemon(tmp_path, section) as daemon:
        trained_on_a_full_disk(daemon, disk)
        assert ctl(capsys, daemon, "reload")[:2] == (0, "Restarted supervisord\n")
        daemon.until(daemon._answers, "the next daemon answers")
        daemon.until_state("j", "RUNNING")
        daemon.write(section + "priority=5\n")

        status, out, _ = ctl(capsys, daemon, "reload")

        assert (status, out.splitlines()[-1]) == (1, "Restarted supervisord")
        assert out.startswith("j: the save failed: ")
        assert "No space left on device" in out
        assert "; the next daemon applies its section and goes on from step " in out
        daemon.until(daemon._answers, "the next daemon answers")


def test_a_signal_and_a_removal_say_what_is_known(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, disk / "j", "autorestart=false")) as daemon:
        newest = trained_on_a_full_disk(daemon, disk)
        assert ctl(capsys, daemon, "signal", "CONT", "j")[1] == "j: signalled\n"

        status, out, _ = ctl(capsys, daemon, "signal", "TERM", "j")

        assert (status, out.startswith("j: signalled; it is at step ")) == (0, True)
        assert f"; the newest checkpoint is of step {newest}, " in out
        assert " steps behind; the save failed: " in out
        daemon.until_state("j", "EXITED")
        with pytest.raises(Refused, match="NOT_RUNNING"):
            daemon.call("stop", name="j")  # so that the next daemon does not start it
        daemon.stop()
        daemon.start()
        status, out, err = ctl(capsys, daemon, "remove", "j")
        assert (status, out) == (0, "j: removed process group\n")
        assert "remark: j ended at step" in err
        assert f"the newest checkpoint is of step {newest}" in err


def test_a_worker_that_has_not_answered_the_next_daemon_may_have_lost_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, tmp_path / "j")) as daemon:
        newest = trained_and_stopped_still(daemon, tmp_path / "j")
        daemon.die()
        daemon.start()
        daemon.until_state("j", "ADOPTING")

        status, out, _ = ctl(capsys, daemon, "stop", "j")

        assert status == 1
        assert out.startswith(f"j: stopped; the newest checkpoint is of step {newest}, as no checkpoint came within ")
        assert out.endswith("; what it did since then will be trained again\n")


def test_stops_that_lose_nothing_are_no_failure(tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loading = job("s", tmp_path, LOAD_S=60)
    with Daemon(tmp_path, endless("j", tmp_path, disk / "j") + loading) as daemon:
        daemon.until_step("j", 30)
        daemon.until_state("s", "STARTING")
        assert ctl(capsys, daemon, "stop", "s")[:2] == (0, "s: stopped\n")
        umount(disk)
        kill_worker(daemon, "j")
        daemon.until_state("j", "BACKOFF")

        status, out, _ = ctl(capsys, daemon, "stop", "j")

        assert status == 0
        assert out.startswith("j: stopped; its newest checkpoint is of step ")


def test_what_was_said_to_be_saved_is_on_the_disk_before_it_is_said(tmp_path: Path) -> None:
    with Daemon(tmp_path, endless("j", tmp_path, tmp_path / "j")) as daemon:
        daemon.until_step("j", 30)

        told = daemon.call("stop", name="j")

        recorded = json.loads((tmp_path / "state" / "wanted.json").read_text())["progress"]["j"]["newest"]
        assert (recorded["step"], recorded["name"]) == (told["safe_step"], told["checkpoint"])


def test_a_stop_that_can_not_be_recorded_either_says_both(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (disk / "state").mkdir()
    (tmp_path / "state").symlink_to(disk / "state")
    with Daemon(tmp_path, endless("j", tmp_path, disk / "j")) as daemon:
        newest = trained_on_a_full_disk(daemon, disk)

        status, out, err = ctl(capsys, daemon, "stop", "j")

        assert (status, out) == (1, "j: ERROR (failed)\n")
        assert f"; the newest checkpoint is of step {newest}, as the save failed: " in err
        assert " steps will be trained again, but that cannot be recorded in " in err
        (disk / "filler").unlink()
