"""The plain example, which imports nothing of stepkeeper, under a real daemon: killed, damaged, and the same bits."""

import contextlib
import fcntl
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.protocol.checkpoints import selection
from tests import forked
from tests.places import ROOT
from tests.system.harness import Daemon
from tests.waiting import wait_until

PLAIN = ROOT / "examples" / "plain.py"
EVERY = 100
SAVES = 50  # whose messages fill a pipe that holds some twenty lines
PATIENCE_S = 100.0  # of a machine that does other work


def section(name: str, folder: Path, steps: int, every: int = EVERY) -> str:
    return (
        f"[program:{name}]\ncommand={sys.executable} {PLAIN}\ncheckpoint_dir={folder}/{name}\nautostart=false\n"
        f"standby=off\ncheckpoint_interval={every} steps\n"
        f'environment=STEPS="{steps}",PYTHONUNBUFFERED="1",OMP_NUM_THREADS="1",OPENBLAS_NUM_THREADS="1"\n'
        f"stdout_logfile={folder}/{name}.log\nstdout_logfile_maxbytes=0\n"
    )


def lines(folder: Path, name: str, beginning: str) -> list[str]:
    text = (folder / f"{name}.log").read_text()
    return [line for line in text.splitlines() if line.startswith(beginning)]


@pytest.mark.slow
def test_killed_and_damaged_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    with Daemon(tmp_path, section("rough", tmp_path, steps=10**9), scripts_have=forked.SKLEARN) as daemon:
        daemon.call("start", name="rough")
        for step in (250, 600):
            killed = daemon.until_step("rough", step, patience_s=PATIENCE_S)
            os.kill(killed["pid"], signal.SIGKILL)
            daemon.until(lambda gone=killed["pid"]: daemon.status("rough")["pid"] != gone, "the kill is seen")
        daemon.until_step("rough", 1000, patience_s=PATIENCE_S)
        daemon.call("stop", name="rough")
        flushed = selection.committed_checkpoints(tmp_path / "rough")[0]
        (tmp_path / "rough" / str(flushed) / "state.npz").write_bytes(b"damaged")
        last = flushed.step + 300
        daemon.write(section("rough", tmp_path, last) + section("calm", tmp_path, last))
        daemon.call("update")
        for name in ("rough", "calm"):
            daemon.call("start", name=name)
            daemon.until_state(name, "SUCCEEDED", patience_s=PATIENCE_S)
        history = daemon.call("history", name="rough", limit=10)["attempts"]

    assert lines(tmp_path, "rough", "hash") == lines(tmp_path, "calm", "hash") != []
    assert history[0]["restored"] is None and history[-1]["restored"] is not None
    assert [name for name, _ in history[-1]["refused"]] == [str(flushed)]


@pytest.mark.slow
def test_job_that_ends_with_a_full_pipe_is_done_although_its_last_message_did_not_fit(tmp_path: Path) -> None:
    with Daemon(tmp_path, section("plain", tmp_path, steps=20_000), scripts_have=forked.SKLEARN) as daemon:
        daemon.call("start", name="plain")
        worker = psutil.Process(daemon.until_step("plain", 50, patience_s=PATIENCE_S)["pid"])
        pipe = os.open(tmp_path / "state/run/plain/a1/from-worker", os.O_RDWR)
        daemon.until(lambda: _shrinks(pipe), "there is room for some twenty lines")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)  # as on a host that has no time for it
        try:
            wait_until(lambda: worker.status() == psutil.STATUS_ZOMBIE or None, "the job has ended", PATIENCE_S)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            os.close(pipe)

        assert daemon.until_state("plain", "SUCCEEDED", patience_s=PATIENCE_S)["job"]["attempt"] == 1


def _shrinks(pipe: int) -> bool:
    """Not while there is more in it than it would hold."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
        return True
    return False


@pytest.mark.slow
def test_plain_job_trains_on_across_a_daemon_restart_and_without_one(tmp_path: Path) -> None:
    every = 20

    def saved() -> int:
        return selection.committed_checkpoints(tmp_path / "plain")[0].step

    with Daemon(tmp_path, section("plain", tmp_path, 10**9, every), scripts_have=forked.SKLEARN) as daemon:
        daemon.call("start", name="plain")
        first = daemon.until_step("plain", every + 50, patience_s=PATIENCE_S)
        daemon.die()
        daemon.start()

        adopted = daemon.until(
            lambda: (found := daemon.status("plain"))["state"] == "RUNNING" and found["job"]["step"] and found,
            "adopted",
        )
        after = daemon.until_step("plain", adopted["job"]["step"] + 300, patience_s=PATIENCE_S)
        assert (after["pid"], after["job"]["attempt"]) == (first["pid"], 1)

        pipe = os.open(tmp_path / "state/run/plain/a1/from-worker", os.O_RDWR)
        daemon.until(lambda: _shrinks(pipe), "there is room for some twenty lines")
        daemon.die()
        died = saved()

        daemon.until(lambda: saved() > died + SAVES * every, "it trains on", patience_s=PATIENCE_S)
        daemon.start()
        os.close(pipe)

        later = daemon.until_step("plain", saved(), patience_s=PATIENCE_S)
        assert later["pid"] == first["pid"]
        assert daemon.call("history", name="plain")["attempts"][0]["checkpoints"] > SAVES


@pytest.mark.slow
def test_its_last_save_that_fails_is_no_end(tmp_path: Path) -> None:
    steps = 10_000
    with Daemon(tmp_path, section("plain", tmp_path, steps), scripts_have=forked.SKLEARN) as daemon:
        daemon.call("start", name="plain", wait=False)
        daemon.until_step("plain", 150, patience_s=PATIENCE_S)
        (tmp_path / "plain" / f"step-{steps:010d}.a1").write_bytes(b"in the way of the first attempt's rename")
        daemon.until_state("plain", "SUCCEEDED", "FAILED", patience_s=PATIENCE_S)
        first, *_, last = daemon.call("history", name="plain")["attempts"]

    assert first["exit_code"] == 74 and "last save failed" in first["text"]
    assert (last["attempt"], last["cause"]) == (2, "done")
    assert str(selection.committed_checkpoints(tmp_path / "plain")[0]) == f"step-{steps:010d}.a2"


def test_plain_example_imports_nothing_of_stepkeeper() -> None:
    text = PLAIN.read_text()

    assert "import worker" not in text and "from worker" not in text
    assert "import supervisor" not in text and "from supervisor" not in text
