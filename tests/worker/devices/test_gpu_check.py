"""A job that was meant to train on GPUs and sees none says so, with the reason from TensorFlow's log."""

import os
import sys
from pathlib import Path

import pytest

from tests import forked
from worker.devices.gpu_check import VISIBLE, asked_gpus, reason_in

MISMATCH = (
    "2024-01-01 10:00:00.1: E external/xla/diagnostics.cc:244] kernel version 535.129.3 does not match DSO version "
    "550.54.15 -- cannot find working devices in this configuration"
)
NO_LIBRARY = (
    "2022-01-01 10:00:00.1: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic "
    "library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory"
)
NO_DRIVER = (
    "2024-01-01 10:00:00.1: I cudart_stub.cc:28] Could not find cuda drivers on your machine, GPU will not be used."
)


@pytest.mark.parametrize(
    ("visible", "there", "asked"),
    [
        (None, 0, 0),
        (None, 8, 8),
        ("", 8, 0),
        ("-1", 8, 0),
        ("0,1", 8, 2),
        ("0,-1,2", 8, 1),
        ("GPU-8932f937,MIG-1", 0, 2),
        (" 3 ", 8, 1),
    ],
)
def test_the_gpus_that_are_meant_are_those_that_cuda_would_show(visible: str | None, there: int, asked: int):
    assert asked_gpus(visible, there) == asked


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"{NO_DRIVER}\n{MISMATCH}", "kernel version 535.129.3 does not match DSO version 550.54.15"),
        (f"{NO_DRIVER}\n{NO_LIBRARY}", "Could not load dynamic library 'libcudart.so.11.0'"),
        (NO_DRIVER, "Could not find cuda drivers on your machine"),
    ],
)
def test_the_reason_is_the_most_telling_line_of_its_log(log: str, reason: str):
    assert (reason_in(log) or "").startswith(reason)


def test_a_log_without_a_reason_gives_none():
    assert reason_in("2024-01-01 10:00:00.1: I gpu_device.cc:1] Created device\n") is None


@pytest.mark.integration
@pytest.mark.slow  # the look imports TensorFlow anew: its reason is in what it says then
@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="needs a host without GPUs")
def test_a_process_that_is_to_use_two_gpus_of_none_says_so_and_replicas_min_makes_it_an_end(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "from supervisor.protocol.wire.launch import Launch\n"
        "from worker.devices.strategies import build_strategy\n"
        "build_strategy(Launch(replicas_min=2))\n"
    )

    ended = forked.run([sys.executable, str(script)], env={**os.environ, VISIBLE: "0,1"}, timeout=120)

    _, cause, reason = ended.stderr.partition("cannot train: asked for 2 GPUs, TensorFlow sees none: ")
    assert ended.returncode == 1
    assert cause
    assert "cuda" in reason.lower()
    assert "replicas_min is 2" in reason
