"""On a GPU of NVIDIA's: what stand-ins for its driver and the kernel's log can't show. `make gpu-test`.

The faults are real: a kernel touches memory that is not mapped, so the driver reports it, and ends the program's use of
the GPU. Nothing is done that concerns other programs on it, but for its time and most of its memory.
"""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.gpu_guard.nvml import Nvml, list_of_kernel
from tests.places import CHILDREN, ROOT
from tests.reading import records
from tests.system.harness import Daemon
from tests.system.memory_jobs import FIT, START_S, HotPair, MemoryJob, die_at_random, figures, undisturbed
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no GPU of NVIDIA's"),
]

SCRIPT = CHILDREN / "gpu_training.py"
STEPS = 600
SHARED = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # tests run side by side, a standby beside its worker
FIT_EXACT = {**SHARED, "TF_DETERMINISTIC_OPS": "1"}  # that script calls no worker.strategy, which switches it on
UNKNOWN = ("gpu.log_unread", "gpu.nvml_unused", "gpu.silent", "gpu.not_free")


def seen_gpus() -> tuple[Any, ...]:
    """As NVML says it."""
    listed = Nvml(lambda name: None).list_gpus(with_pids=True)
    assert listed.is_from_nvml, listed.why
    return listed.gpus


@cache
def uuid() -> str:
    """Of the first GPU."""
    return str(seen_gpus()[0].uuid)


def gpu_job(folder: Path, keys: str = "standby=off\n", steps: int = STEPS, **variables: object) -> MemoryJob:
    return MemoryJob(folder, steps, SCRIPT, keys, **SHARED, **variables)


def control(daemon: Daemon, *words: str) -> str:
    """What supervisorctl prints. `status` ends with 3 if a job is done."""
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return done.stdout


def order(job: MemoryJob, trouble: str) -> None:
    new = job.folder / "trouble.new"
    new.write_text(trouble)
    new.rename(job.folder / "trouble")


def first_end(job: MemoryJob) -> dict[str, Any]:
    """How the first attempt ended."""

    def look() -> dict[str, Any] | None:
        attempts = job.daemon.call("history", name="job")["attempts"]
        return dict(attempts[0]) if attempts and attempts[0]["cause"] else None

    return dict(job.daemon.until(look, "the first attempt has ended", START_S))


def restarts_s(job: MemoryJob) -> list[float]:
    """From the last step of each attempt to the first of the next, in seconds."""
    steps = job.steps
    return [after.done_at - before.done_at for before, after in pairwise(steps) if before.pid != after.pid]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of STEPS steps that nobody disturbs, on the GPU."""
    folder = tmp_path_factory.mktemp("undisturbed")
    digest = undisturbed(folder, STEPS, SCRIPT, **SHARED)
    remedy = "TensorFlow sees no GPU; .venv/bin/pip install 'tensorflow[and-cuda]'"
    assert "GPU:0" in (folder / "device").read_text(), remedy
    return digest


def test_nvml_and_the_kernel_name_the_same_gpus_and_none_has_an_error():
    gpus = seen_gpus()
    print(*gpus, sep="\n")

    assert [(gpu.uuid, gpu.address, gpu.name) for gpu in gpus] == [
        (gpu.uuid, gpu.address, gpu.name) for gpu in list_of_kernel()
    ]
    assert not any(gpu.error for gpu in gpus)
    assert all(gpu.slow_bits is not None and gpu.recovery is not None for gpu in gpus)


def test_the_daemon_hears_both_sources_and_names_who_uses_a_gpu(tmp_path: Path):
    job = gpu_job(tmp_path, steps=1_000_000, CUDA_VISIBLE_DEVICES=uuid())
    with job.daemon as daemon:
        job.until_trains()
        daemon.until(lambda: uuid() in control(daemon, "gpus"), "the GPU is listed")
        shown = control(daemon, "gpus") + control(daemon, "status")
        print(shown, control(daemon, "--json", "gpus"), control(daemon, "--json", "status"))

        assert not daemon.events(*UNKNOWN), daemon.events(*UNKNOWN)
        assert "job" in control(daemon, "gpus")


def test_deaths_of_every_kind_on_a_gpu_cost_little_and_no_bit(tmp_path: Path, expected: str):
    job = gpu_job(tmp_path)
    with job.daemon as daemon:
        die_at_random(job, 5, seed=3, longest_s=3.0)
        job.hurry()
        digest = job.until_done(200.0)
        print(control(daemon, "history", "job"))
    print(figures(job.repeated), "from step to step:", [f"{seconds:.2f} s" for seconds in restarts_s(job)])

    assert digest == expected


def test_a_hot_standby_on_the_same_gpu_is_the_next_worker_and_ends_with_the_same_bits(tmp_path: Path):
    pair = HotPair(tmp_path, "deterministic=true\n", **SHARED)
    with pair.daemon as daemon:
        for attempt in (1, 2):
            before = pair.kill_when(lambda job: True, attempt)
            killed_at = time.monotonic()

            def goes_on(attempt: int = attempt, step: int = before["step"]) -> bool:
                job = pair.job()
                return bool(job["attempt"] == attempt + 1 and job["step"] and job["step"] > step)

            daemon.until(goes_on, "the next one has done a new step")
            print(f"a new step {time.monotonic() - killed_at:.2f} s later")
            assert daemon.status("killed")["pid"] == before["standby"]["pid"]
        hashes = pair.hashes()

    assert len(hashes) == 1


def test_fit_on_a_gpu_ends_with_the_same_bits(tmp_path: Path):
    job = MemoryJob(tmp_path / "killed", STEPS, FIT, **FIT_EXACT)
    with job.daemon:
        die_at_random(job, 3, seed=5, longest_s=3.0)
        job.hurry()
        digest = job.until_done(200.0)
    print(figures(job.repeated), "from step to step:", [f"{seconds:.2f} s" for seconds in restarts_s(job)])

    assert digest == undisturbed(tmp_path / "undisturbed", STEPS, FIT, **FIT_EXACT)


def test_a_page_fault_is_the_cause_of_death_and_training_goes_on_there(tmp_path: Path, expected: str):
    job = gpu_job(tmp_path)
    with job.daemon as daemon:
        job.until_copied()
        order(job, "fault")
        end = first_end(job)
        job.hurry()
        digest = job.until_done(200.0)
        print(control(daemon, "history", "job"), control(daemon, "gpus"), *job.logged("gpu.fault"), sep="\n")
        gpus = daemon.call("gpus")["gpus"]
        attempts = [attempt["cause"] for attempt in daemon.call("history", name="job")["attempts"]]

    assert (end["cause"], "memory that is not mapped" in end["text"]) == ("gpu-fault", True), end
    assert (digest, len(attempts)) == (expected, 2), attempts
    assert not any(gpu["left_out"] for gpu in gpus)


HANGS = "standby=off\nhang_timeout=auto\nhang_timeout_min=600\nhang_evidence=12\nstopwaitsecs=5\n"


def test_a_worker_that_waits_for_a_gpu_that_only_spins_hangs(tmp_path: Path, expected: str):
    job = gpu_job(tmp_path, HANGS, LASTS_S=90)
    with job.daemon as daemon:
        job.until_copied()
        order(job, "spin")
        end = first_end(job)
        job.hurry()
        digest = job.until_done(200.0)
        print(*job.logged("silence.judged"), control(daemon, "history", "job"), sep="\n")

    assert end["cause"] == "hang", end
    assert digest == expected


def test_a_worker_that_waits_for_a_gpu_that_computes_lives_on(tmp_path: Path, expected: str):
    job = gpu_job(tmp_path, HANGS, LASTS_S=30)
    with job.daemon as daemon:
        pid = job.until_copied()
        order(job, "compute")
        wait_until(lambda: job.logged("silence.judged"), "it is looked at", 60.0)
        job.hurry()
        digest = job.until_done(200.0)
        attempts = daemon.call("history", name="job")["attempts"]
        print(*job.logged("silence.judged"), sep="\n")

    assert {step.pid for step in job.steps} == {pid} and len(attempts) == 1, attempts
    assert digest == expected


def test_more_memory_than_the_gpu_has_is_told_from_other_failures(tmp_path: Path, expected: str):
    job = gpu_job(tmp_path)
    with job.daemon:
        job.until_copied()
        order(job, "full")
        end = first_end(job)
        job.hurry()
        digest = job.until_done(200.0)

    assert end["cause"] == "out-of-memory", end
    assert digest == expected


def test_the_next_worker_has_the_memory_of_one_that_was_killed(tmp_path: Path):
    """Both take all that there is, as TensorFlow does unless it is asked not to. Alone on the GPU."""
    job = MemoryJob(tmp_path, 1_000_000, SCRIPT, "standby=off\n", TF_FORCE_GPU_ALLOW_GROWTH="false")
    with job.daemon as daemon:
        for _ in range(3):
            pid = job.until_trains()
            os.kill(pid, signal.SIGKILL)
            job.until_trains(but=pid)
        attempts = daemon.call("history", name="job")["attempts"]
    print("from step to step:", [f"{seconds:.2f} s" for seconds in restarts_s(job)])
    print(*(record for record in records(tmp_path / "daemon.log") if str(record["event"]).startswith("gpu.")), sep="\n")

    assert [attempt["cause"] for attempt in attempts][:3] == ["crash"] * 3
    assert not job.logged("gpu.not_free")
