"""GPUs that are not free or not well when a job starts, through a whole daemon, on a stand-in for NVIDIA's library."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu_host import UUIDS, GpuDaemon, GpuHost
from tests.system.harness import job

ENDLESS = 100_000
LOST = "error=15"
OK = ""

pytestmark = pytest.mark.slow


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GpuHost]:
    with GpuHost(tmp_path) as made:
        yield made


def test_a_start_waits_until_the_memory_of_the_last_attempt_is_free(tmp_path: Path, host: GpuHost):
    program = job("t", tmp_path, "gpu_wait=60", STEPS=ENDLESS, EVERY=10)
    with GpuDaemon(host, tmp_path, program) as daemon:
        first = daemon.until_step("t", 15)["pid"]
        host.are(f"pids={first}")
        os.kill(first, signal.SIGKILL)

        daemon.until(
            lambda: "to free its GPU memory" in daemon.status("t")["description"],
            "it waits",
        )
        assert daemon.status("t")["pid"] is None
        host.are()

        daemon.until_step("t", 20)
        assert [attempt["cause"] for attempt in daemon.call("history", name="t")["attempts"]] == ["crash", None]


def test_job_waiting_for_gpus_can_be_stopped_and_starts_after_the_timeout(tmp_path: Path, host: GpuHost):
    keys = f"gpu_wait=3\nstop_command=/usr/bin/touch {tmp_path}/told"
    with GpuDaemon(host, tmp_path, job("t", tmp_path, keys, STEPS=ENDLESS, EVERY=10)) as daemon:
        for stops in (True, False):
            pid = daemon.until_step("t", 15)["pid"]
            host.are(f"pids={pid}")
            os.kill(pid, signal.SIGKILL)
            if stops:
                daemon.until(
                    lambda: "to free its GPU memory" in daemon.status("t")["description"],
                    "it waits",
                )
                daemon.call("stop", name="t")
                assert daemon.status("t")["state"] == "STOPPED"
                assert not (tmp_path / "told").exists(), "there is no process that stop_command could stop"
                host.are()
                daemon.call("start", name="t")
        daemon.until(lambda: daemon.status("t")["pid"] not in (None, pid), "it starts anyway")
        daemon.until(lambda: daemon.events("gpu.not_free"), "it is said why that took so long")
        assert daemon.events("gpu.not_free") == ["gpu.not_free"]


def test_job_that_can_do_with_fewer_trains_without_a_lost_gpu_and_takes_it_back(tmp_path: Path, host: GpuHost):
    program = job("t", tmp_path, "replicas_min=1\nstartretries=0", STEPS=ENDLESS, EVERY=10)
    with GpuDaemon(host, tmp_path, program) as daemon:

        def visible() -> str | None:
            environment = Path(f"/proc/{daemon.until_step('t', 15)['pid']}/environ").read_text().split("\0")
            return next((each for each in environment if each.startswith("CUDA_VISIBLE_DEVICES=")), None)

        assert visible() is None
        host.are(OK, LOST)
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        assert visible() == f"CUDA_VISIBLE_DEVICES={UUIDS[0]}"
        assert f"without GPU 1 ({UUIDS[1]}): GPU is lost" in daemon.status("t")["description"]

        host.are()
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        assert visible() is None
        assert "without" not in daemon.status("t")["description"]


@pytest.mark.parametrize(("count", "words"), [(2, f"GPU 1 ({UUIDS[1]}): GPU is lost"), (1, f"GPU {UUIDS[1]} is gone")])
def test_a_gpu_in_error_is_told_and_counts_against_nothing(tmp_path: Path, host: GpuHost, count: int, words: str):
    program = job("t", tmp_path, "startretries=0", STEPS=ENDLESS, EVERY=10)
    with GpuDaemon(host, tmp_path, program) as daemon:
        daemon.until_step("t", 15)
        daemon.call("stop", name="t")
        host.are(OK, LOST, count=count)
        daemon.call("start", name="t", wait=False)

        waits = daemon.until_state("t", "BACKOFF")
        assert words in waits["description"] and "nvidia-smi" in waits["description"]
        host.are()
        daemon.call("start", name="t")

        daemon.until_state("t", "RUNNING")
        causes = [attempt["cause"] for attempt in daemon.call("history", name="t")["attempts"]]
        assert causes == ["stopped", None]
