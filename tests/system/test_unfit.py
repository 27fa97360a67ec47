"""Programs that hold too much memory or are not well, under a real daemon."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.host.processes import marks
from tests.system.harness import Daemon, job

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
EATER = "import time; x = bytearray(100 << 20); time.sleep(1000)"


@pytest.mark.slow
def test_over_its_memory_limit_it_starts_again_under_that_cause(tmp_path: Path) -> None:
    once = f"[ -e {tmp_path}/ate ] && exec sleep 1000; touch {tmp_path}/ate; exec {sys.executable} -c '{EATER}'"
    (tmp_path / "run.sh").write_text(once)
    with Daemon(
        tmp_path, f"[program:p]\ncommand=/bin/sh {tmp_path}/run.sh\nmemory_limit=64MB\nstartsecs=0\n"
    ) as daemon:
        daemon.until(lambda: len(daemon.call("history", name="p")["attempts"]) >= 2, "it starts again")
        first = daemon.call("history", name="p")["attempts"][0]

    assert first["cause"] == "memory-limit" and "more than memory_limit = 67108864" in first["text"]


GROWER = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); x = [bytearray(100 << 20)]\n"
    "while len(x) < 8: time.sleep(1); x.append(bytearray(64 << 20))\n"
    "time.sleep(1000)"
)


@pytest.mark.slow
def test_job_that_grows_instead_of_stopping_is_killed_early(tmp_path: Path) -> None:
    (tmp_path / "grow.py").write_text(GROWER)
    once = f"[ -e {tmp_path}/ate ] && exec sleep 1000; touch {tmp_path}/ate; exec {sys.executable} grow.py"
    (tmp_path / "run.sh").write_text(once)
    keys = f"directory={tmp_path}\nmemory_limit=64MB\nstartsecs=0\nstopwaitsecs=1000\n"
    with Daemon(tmp_path, f"[program:p]\ncommand=/bin/sh {tmp_path}/run.sh\n{keys}") as daemon:
        daemon.until(lambda: len(daemon.call("history", name="p")["attempts"]) >= 2, "it starts again")
        first = daemon.call("history", name="p")["attempts"][0]

    assert first["cause"] == "memory-limit"


@pytest.mark.slow
def test_unhealthy_program_is_seen_while_leftovers_of_another_end(tmp_path: Path) -> None:
    checked = f"healthcheck_command=/bin/sh -c 'test ! -e {tmp_path}/sick'\nhealthcheck_interval=0.2\nstartsecs=0\n"
    (tmp_path / "state").mkdir(mode=0o711)
    marked = {**os.environ, marks.VARIABLE: marks.mark_of_attempt(tmp_path / "state", "slow", 1)}
    stray = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, env=marked, start_new_session=True)
    assert stray.stdout is not None and stray.stdout.readline()
    programs = f"[program:p]\ncommand=/bin/sleep 1000\n{checked}[program:slow]\ncommand=/bin/true\nstopwaitsecs=1000\n"
    with Daemon(tmp_path, programs) as daemon:
        try:
            daemon.until_state("p", "RUNNING")
            (tmp_path / "sick").touch()
            daemon.until(lambda: len(daemon.call("history", name="p")["attempts"]) >= 2, "it starts again")
            first = daemon.call("history", name="p")["attempts"][0]
            assert "waiting for processes of an earlier daemon to exit" in daemon.status("slow")["description"]
        finally:
            stray.kill()
            stray.wait()

    assert first["cause"] == "unhealthy"


@pytest.mark.slow
def test_a_job_that_is_not_well_flushes_and_goes_on_from_there(tmp_path: Path) -> None:
    keys = (
        f"healthcheck_command=/bin/sh -c 'test ! -e {tmp_path}/sick && test -n \"$SUPERVISOR_PROGRAM_PID\"'\n"
        "healthcheck_interval=0.2\nhealthcheck_retries=2\n"
    )
    with Daemon(tmp_path, job("digits", tmp_path, keys, STEPS=1_000_000, EVERY=1_000_000)) as daemon:
        daemon.until_step("digits", 5)
        (tmp_path / "sick").touch()
        daemon.until(lambda: len(daemon.call("history", name="digits")["attempts"]) >= 2, "it starts again")
        (tmp_path / "sick").unlink()
        first, second = daemon.until(
            lambda: (
                (found := daemon.call("history", name="digits")["attempts"])[1]["from_step"] is not None and found[:2]
            ),
            "it trains again",
        )

    assert first["cause"] == "unhealthy"
    assert first["text"] == "healthcheck_command exited with status 1"
    assert second["from_step"] == first["to_step"] > 0


def test_a_check_that_can_not_be_run_ends_no_program(tmp_path: Path) -> None:
    """As when its file is gone; as for a user whose directory does not answer."""
    check = tmp_path / "check"
    check.write_text("#!/bin/sh\nexit 0\n")
    check.chmod(0o755)
    keys = f"healthcheck_command={check}\nhealthcheck_interval=0.1\nhealthcheck_retries=1\n"
    with Daemon(tmp_path, f"[program:p]\ncommand=/bin/sleep 100000\n{keys}") as daemon:
        pid = daemon.until_state("p", "RUNNING")["pid"]

        check.rename(tmp_path / "moved")

        daemon.until(lambda: "cannot run healthcheck_command" in daemon.status("p")["description"], "status says so")
        (tmp_path / "moved").rename(check)
        daemon.until(lambda: "healthcheck" not in daemon.status("p")["description"], "it is checked again")
        assert daemon.status("p")["pid"] == pid
        assert daemon.events("health.unknown") == ["health.unknown"]
