"""What a person sees of how exact and how dear the checkpoints of a job are."""

import os
import signal
from pathlib import Path

from supervisor.core.failures.reliability import PRIOR_S
from tests.system.harness import Daemon, job


def test_workers_are_told_how_often_their_job_failed(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=1_000_000)) as daemon:
        first = daemon.until_step("digits", 30)
        os.kill(first["pid"], signal.SIGKILL)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the second attempt")
        second = daemon.until(lambda: (found := daemon.status("digits"))["job"]["interval_s"] and found, "it trains")
        daemon.stop()
        daemon.start()
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 3, "the third attempt")
        third = daemon.until(lambda: (found := daemon.status("digits"))["job"]["interval_s"] and found, "it trains")

    assert first["job"]["interval_s"] == PRIOR_S  # this trainer says back what it was told
    assert "saves every 3600 s" in first["description"]
    assert PRIOR_S / 5 < second["job"]["interval_s"] < PRIOR_S / 5 + 300
    assert PRIOR_S / 5 < third["job"]["interval_s"] < PRIOR_S / 5 + 300, "a stop is no failure; the ledger remembers"


def test_status_says_what_keeps_training_from_being_exact(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=1_000_000, EVERY=5, FAIL="elsewhere")) as daemon:
        found = daemon.until(lambda: (found := daemon.status("digits"))["job"]["left_out"] and found, "it was told")

        (attempt,) = daemon.call("history", name="digits")["attempts"]

    assert "conditions changed since the checkpoint: cores is 1, was 2" in found["description"]
    assert attempt["changed"] == ["cores is 1, was 2"]
    assert "not saved in checkpoints: teacher/kernel" in found["description"]
