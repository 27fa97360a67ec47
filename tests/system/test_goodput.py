"""Where a job's time went, by a whole daemon: through deaths of its worker and of the daemon, and stops."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import Daemon, job

pytestmark = pytest.mark.slow


def goodput(daemon: Daemon, name: str = "digits") -> dict[str, Any]:
    return daemon.call("goodput", name=name)


def test_every_second_of_a_job_is_accounted_for_through_a_crash_and_a_stop(tmp_path: Path):
    began = time.time()
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=100_000, EVERY=100_000, STEP_S=0.02, LOAD_S=0.3)) as daemon:
        pid = daemon.until_step("digits", 35)["pid"]
        os.kill(pid, signal.SIGKILL)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the next attempt begins")
        daemon.until_step("digits", 60)
        asked = time.time()
        told, answered = goodput(daemon), time.time()

        spent_s, counted_s = told["spent_s"], sum(told["spent_s"].values())
        assert asked - told["since_wall_at"] - 0.1 <= counted_s <= answered - began + 0.1
        assert spent_s["starting"] >= 0.6  # twice LOAD_S
        assert spent_s["training"] > 0.5
        assert told["causes"] == {"crash": 1}
        assert told["goodput"] == pytest.approx(spent_s["training"] / told["wanted_s"], abs=0.01)
        assert told["lost_steps"] >= 35
        assert spent_s["replaying"] >= 0.6  # 35 steps

        daemon.call("stop", name="digits")
        stopped = goodput(daemon)
        daemon.until(lambda: goodput(daemon)["spent_s"]["stopped"] > stopped["spent_s"]["stopped"] + 0.5, "time passes")
        assert goodput(daemon)["wanted_s"] == stopped["wanted_s"]


def test_time_before_the_first_attempt_is_within_the_account(tmp_path: Path):
    began = time.time()
    with Daemon(tmp_path, job("digits", tmp_path, "autostart=false", STEPS=30, EVERY=10)) as daemon:
        waited_s = 2.0
        time.sleep(waited_s)
        daemon.call("start", name="digits")
        daemon.until_state("digits", "SUCCEEDED")
        asked = time.time()
        told, answered = goodput(daemon), time.time()

        assert told["spent_s"]["stopped"] >= waited_s - 0.5
        assert began <= told["since_wall_at"] <= asked - waited_s
        counted_s = sum(told["spent_s"].values())
        assert asked - told["since_wall_at"] - 0.2 <= counted_s <= answered - told["since_wall_at"] + 0.2


def test_the_sums_of_attempts_are_in_the_history(tmp_path: Path):
    began = time.time()
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=30, EVERY=10)) as daemon:
        daemon.until_state("digits", "SUCCEEDED")
        (attempt,) = daemon.call("history", name="digits")["attempts"]

        lasted_s = attempt["ended_wall_at"] - attempt["started_wall_at"]
        counted_s = sum(span_s for spent, span_s in attempt["spent_s"].items() if spent != "stopped")
        assert lasted_s - 0.1 <= counted_s <= time.time() - began + 0.1


def test_a_worker_trains_on_while_its_daemon_is_away_and_that_is_training(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=100_000, EVERY=50, STEP_S=0.01)) as daemon:
        daemon.until_step("digits", 10)
        before = goodput(daemon)
        daemon.die()
        time.sleep(2)  # what is measured is time
        daemon.start()
        step = daemon.until_state("digits", "RUNNING")["job"]["step"] or 0
        daemon.until_step("digits", step + 50)

        after = goodput(daemon)
        assert after["attempts"] == 1
        assert after["spent_s"]["training"] >= before["spent_s"]["training"] + 1.8
        assert after["spent_s"]["down"] == before["spent_s"]["down"]


def test_a_worker_that_dies_with_its_daemon_was_down(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=100_000, EVERY=1_000_000, STEP_S=0.01)) as daemon:
        pid = daemon.until_step("digits", 10)["pid"]
        goodput(daemon)  # reads the ledger, so the account is written down
        daemon.die()
        os.kill(pid, signal.SIGKILL)
        time.sleep(2)  # what is measured is time
        daemon.start()
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the next attempt begins")
        daemon.until_step("digits", 5)

        assert goodput(daemon)["spent_s"]["down"] >= 1.8
