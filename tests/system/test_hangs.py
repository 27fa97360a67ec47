"""Workers that hang, in every way there is, and checkpoints that kill: detected, explained, relaunched."""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.system.harness import Daemon, job

SEEN = {
    "stop": "T (stopped)",
    "spin": "in hang_once",
    "data": "in hang_once",
    "save": "in hang_once",
}
"""By the way to hang: what the file with the stacks must hold."""


def ends_well(daemon: Daemon, name: str) -> None:
    found = daemon.until_state(name, "SUCCEEDED", "FAILED", patience_s=90)
    assert found["state"] == "SUCCEEDED", found["reason"]


def attempts(daemon: Daemon, name: str) -> list[dict]:
    return daemon.call("history", name=name)["attempts"]


@pytest.mark.slow
def test_each_way_to_hang_is_seen_explained_and_survived(tmp_path: Path):
    keys = "hang_timeout=3\nstopwaitsecs=4"
    programs = "".join(job(name, tmp_path, keys, STEPS=30, EVERY=10, FAIL=name) for name in SEEN)
    with Daemon(tmp_path, programs) as daemon:
        for name, seen in SEEN.items():
            ends_well(daemon, name)

            texts = [attempt["text"] for attempt in attempts(daemon, name) if attempt["cause"] == "hang"]
            kept = [Path(found[1]) for text in texts if (found := re.search(r"; stacks: (\S+)", text))]
            assert any(seen in path.read_text() for path in kept), (
                name,
                texts,
                [checkpoint.read_text() for checkpoint in kept],
            )


@pytest.mark.slow
def test_a_learned_limit_knows_in_which_section_the_worker_hangs(tmp_path: Path):
    keys = "hang_timeout=auto\nhang_timeout_min=4\nstopwaitsecs=4"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=30, EVERY=10, FAIL="data")) as daemon:
        ends_well(daemon, "count")

        texts = [attempt["text"] for attempt in attempts(daemon, "count")]
        assert any("in section data (hang_timeout = auto) after step 5" in text for text in texts), texts


@pytest.mark.slow
def test_a_save_that_never_ends_beside_training_is_a_hang_with_a_fixed_limit_too(tmp_path: Path):
    """As with an interval in seconds: the next save is put off for ever, and the steps go on."""
    keys = "hang_timeout=2\nflush_timeout=1\nstopwaitsecs=4\ncheckpoint_interval=1 seconds"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=60, EVERY=10, FAIL="save-beside")) as daemon:
        ends_well(daemon, "count")

        first = attempts(daemon, "count")[0]
        assert first["cause"] == "hang"
        assert first["text"].startswith(
            "a checkpoint was not on the disk within 8 s (4 times the longer of hang_timeout"
        )


BESIDE = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("py-spy", path=BESIDE) is None, reason="py-spy is not installed")
def test_py_spy_is_asked_where_it_is_installed(tmp_path: Path):
    keys = "hang_timeout=3\nstopwaitsecs=20"
    programs = job("count", tmp_path, keys, STEPS=30, EVERY=10, FAIL="spin")
    with Daemon(tmp_path, programs, environment={"PATH": BESIDE}) as daemon:
        ends_well(daemon, "count")

    kept = (tmp_path / "state" / "stacks" / "count").glob("*.txt")
    assert any("stacks, from py-spy:\nProcess " in checkpoint.read_text() for checkpoint in kept)


def test_a_checkpoint_that_kills_is_passed_over_and_training_ends_well(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=40, EVERY=10, FAIL="dies-from-20")) as daemon:
        ends_well(daemon, "count")

        told = attempts(daemon, "count")
        restored = [each["restored"] for each in told]
        assert restored == [None, *["step-0000000020.a1"] * 3, "step-0000000010.a1"]
        assert "step-0000000020.a1 is suspect" in told[3]["text"]
        assert (tmp_path / "count" / "step-0000000020.a1").is_dir(), "it is neither deleted nor set aside"


def test_a_step_that_kills_is_named(tmp_path: Path):
    keys = "startretries=5"
    with Daemon(tmp_path, job("count", tmp_path, keys, STEPS=40, EVERY=10, FAIL="dies-at-27")) as daemon:
        found = daemon.until_state("count", "FAILED", patience_s=60)

        assert any("step 27 kills it" in attempt["text"] for attempt in attempts(daemon, "count")), found


@pytest.mark.slow
def test_daemon_that_stood_still_finds_no_hang_in_workers_that_trained_on(tmp_path: Path):
    names = ("count", "often", "slow")
    keys = "hang_timeout=3\nstopwaitsecs=2"
    programs = job("count", tmp_path, keys, STEPS=1_000_000, EVERY=1_000_000)
    programs += job("often", tmp_path, keys, STEPS=1_000_000, FLUSH_S=2) + job("slow", tmp_path, keys, STEP_S=2.5)
    with Daemon(tmp_path, programs) as daemon:
        workers = [daemon.until_step(name, 1)["pid"] for name in names]
        assert daemon.process is not None
        for _ in range(2):
            time.sleep(0.7)  # until it waits, with nothing to do
            os.kill(daemon.process.pid, signal.SIGSTOP)
            time.sleep(4)  # over hang_timeout, and too short to be taken for a suspended host
            os.kill(daemon.process.pid, signal.SIGCONT)
            daemon.until_step("slow", daemon.status("slow")["job"]["step"] + 1)

        assert [daemon.status(name)["pid"] for name in names] == workers
        assert daemon.events("worker.aborted", "worker.exited") == []


@pytest.mark.slow  # a freeze has to outlast the limit and what a busy host may be late
def test_a_host_that_was_frozen_has_no_hanging_worker(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, "hang_timeout=6", STEPS=1_000_000, EVERY=1_000_000)) as daemon:
        worker = daemon.until_step("count", 5)["pid"]
        assert daemon.process is not None
        both = (worker, daemon.process.pid)
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(15)
        os.kill(daemon.process.pid, signal.SIGCONT)
        step = daemon.status("count")["job"]["step"]  # it runs, and can't have heard of a new step
        os.kill(worker, signal.SIGCONT)

        now = daemon.until_step("count", step + 20)

        assert now["pid"] == worker
        daemon.until(lambda: daemon.events("host.stood_still"), "it is said")
        assert daemon.events("host.stood_still", "worker.exited") == ["host.stood_still"]
