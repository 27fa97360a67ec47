"""GPUs that are not free or not well, through a whole daemon, without a GPU: NVIDIA's library is a stand-in.

That its calls and errors are named as nvidia-ml-py names them is checked where that is installed.
"""

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.core.fleet.gpus import Gpu
from supervisor.host.resources.gpus import Gpus
from tests.places import CHILDREN
from tests.system.harness import Daemon, job

STAND_IN = CHILDREN / "nvml"
ENDLESS = 100_000
LOST, RESET = 15, 16

pytestmark = pytest.mark.slow


def stand_in() -> Any:
    spec = importlib.util.spec_from_file_location("nvml_stand_in", STAND_IN / "pynvml.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Host:
    """A host with GPUs as they are told to be."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "gpus.json"
        self.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb"})

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(STAND_IN), os.environ.get("PYTHONPATH", "")])
        return {"PYTHONPATH": path, "NVML_STATE": str(self._file)}

    def are(self, *gpus: dict[str, Any]) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(gpus))
        new.rename(self._file)


def test_driver_errors_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = Host(tmp_path)
    monkeypatch.setenv("NVML_STATE", str(tmp_path / "gpus.json"))
    gpus = Gpus(stand_in)
    gpus.connect()
    assert gpus.is_connected

    host.are({"uuid": "GPU-a", "pids": [1, 2]}, {"uuid": "GPU-b", "error": LOST}, {"uuid": "GPU-c", "failed": True})
    first, second, third = gpus.list_gpus()

    assert first == Gpu(0, "GPU-a", frozenset({1, 2}))
    assert (second.uuid, second.trouble) == ("GPU-b", "GPU is lost")
    assert "row remapping failed" in (third.trouble or "")
    assert gpus.seen_uuids == {"GPU-a", "GPU-b", "GPU-c"}


def test_the_stand_in_has_the_names_of_the_real_one():
    real = pytest.importorskip("pynvml")
    standing = stand_in()

    for name in vars(standing):
        if name.startswith(("nvml", "NVML")):
            assert hasattr(real, name)
    assert (real.NVML_ERROR_GPU_IS_LOST, real.NVML_ERROR_RESET_REQUIRED) == (LOST, RESET)


def test_a_start_waits_until_the_memory_of_the_last_attempt_is_free(tmp_path: Path):
    host = Host(tmp_path)
    program = job("t", tmp_path, "gpu_wait=60", STEPS=ENDLESS, EVERY=10)
    with Daemon(tmp_path, program, environment=host.environment) as daemon:
        first = daemon.until_step("t", 15)["pid"]
        host.are({"uuid": "GPU-aaaa", "pids": [first]}, {"uuid": "GPU-bbbb"})
        os.kill(first, signal.SIGKILL)

        daemon.until(
            lambda: "to free its GPU memory" in daemon.status("t")["description"],
            "it waits",
        )
        assert daemon.status("t")["pid"] is None
        host.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb"})

        daemon.until_step("t", 20)
        assert [each["cause"] for each in daemon.call("history", name="t")["attempts"]] == ["crash", None]


def test_job_waiting_for_gpus_can_be_stopped_and_starts_after_the_timeout(tmp_path: Path):
    host = Host(tmp_path)
    keys = f"gpu_wait=3\nstop_command=/usr/bin/touch {tmp_path}/told"
    with Daemon(tmp_path, job("t", tmp_path, keys, STEPS=ENDLESS, EVERY=10), environment=host.environment) as daemon:
        for stops in (True, False):
            pid = daemon.until_step("t", 15)["pid"]
            host.are({"uuid": "GPU-aaaa", "pids": [pid]}, {"uuid": "GPU-bbbb"})
            os.kill(pid, signal.SIGKILL)
            if stops:
                daemon.until(
                    lambda: "to free its GPU memory" in daemon.status("t")["description"],
                    "it waits",
                )
                daemon.call("stop", name="t")
                assert daemon.status("t")["state"] == "STOPPED"
                assert not (tmp_path / "told").exists(), "there is no process that stop_command could stop"
                host.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb"})
                daemon.call("start", name="t")
        daemon.until(lambda: daemon.status("t")["pid"] not in (None, pid), "it starts anyway")
        daemon.until(lambda: daemon.events("gpu.not_free"), "it is said why that took so long")
        assert daemon.events("gpu.not_free") == ["gpu.not_free"]


def test_job_that_can_do_with_fewer_trains_without_a_lost_gpu_and_takes_it_back(tmp_path: Path):
    host = Host(tmp_path)
    program = job("t", tmp_path, "replicas_min=1\nstartretries=0", STEPS=ENDLESS, EVERY=10)
    with Daemon(tmp_path, program, environment=host.environment) as daemon:

        def visible() -> str | None:
            environment = Path(f"/proc/{daemon.until_step('t', 15)['pid']}/environ").read_text().split("\0")
            return next((each for each in environment if each.startswith("CUDA_VISIBLE_DEVICES=")), None)

        assert visible() is None
        host.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb", "error": LOST})
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        assert visible() == "CUDA_VISIBLE_DEVICES=GPU-aaaa"
        assert "without GPU 1 (GPU-bbbb): GPU is lost" in daemon.status("t")["description"]

        host.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb"})
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        assert visible() is None
        assert "without" not in daemon.status("t")["description"]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ([{"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb", "error": LOST}], "GPU 1 (GPU-bbbb): GPU is lost"),
        ([{"uuid": "GPU-aaaa"}], "GPU GPU-bbbb is gone"),
    ],
)
def test_a_gpu_in_error_is_told_and_counts_against_nothing(tmp_path: Path, gpus: list, words: str):
    host = Host(tmp_path)
    program = job("t", tmp_path, "startretries=0", STEPS=ENDLESS, EVERY=10)
    with Daemon(tmp_path, program, environment=host.environment) as daemon:
        daemon.until_step("t", 15)
        daemon.call("stop", name="t")
        host.are(*gpus)
        daemon.call("start", name="t", wait=False)

        waits = daemon.until_state("t", "BACKOFF")
        assert words in waits["description"] and "nvidia-smi" in waits["description"]
        host.are({"uuid": "GPU-aaaa"}, {"uuid": "GPU-bbbb"})
        daemon.call("start", name="t")

        daemon.until_state("t", "RUNNING")
        causes = [each["cause"] for each in daemon.call("history", name="t")["attempts"]]
        assert causes == ["stopped", None]
