"""What the batch script refuses before it starts anything, and when it starts nothing more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.config.several_nodes import training_nodes
from supervisor.protocol.allocation import AllocationError, StepExit
from tests.waiting import wait_until

GANG = "[program:a]\ncommand=x\ncheckpoint_dir=/c\nstrategy=multiworker\n"


def refusal(folder: Path, programs: str, nodes: int = 2, settings: str = "") -> str | None:
    conf = folder / "test.conf"
    conf.write_text(f"[supervisord]\n{settings}\n{programs}")
    try:
        training_nodes(load_config(conf, {}), nodes)
    except AllocationError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("programs", "settings", "named"),
    [
        ("[program:a]\ncommand=x\n", "", "strategy = multiworker"),
        ("[program:a]\ncommand=x\ncheckpoint_dir=/c\n", "", "strategy = multiworker"),
        (GANG + "workers=2\n", "", "workers"),
        (GANG + "[program:b]\ncommand=x\n", "", "2 programs"),
        (GANG + 'environment=TF_CONFIG="{}"\n', "", "TF_CONFIG"),
        (GANG, 'environment=TF_CONFIG="{}"', "TF_CONFIG"),
    ],
)
def test_several_nodes_need_one_job_that_can_use_them(tmp_path: Path, programs: str, settings: str, named: str):
    assert named in str(refusal(tmp_path, programs, settings=settings))
    assert refusal(tmp_path, programs, nodes=1, settings=settings) is None


def test_a_gang_is_accepted(tmp_path: Path):
    assert refusal(tmp_path, GANG) is None


COMMANDS = {
    "srun": 'case "$*" in *--clean*) echo clean >> {did};; *) echo step >> {did}; exit {status};; esac',
    "scontrol": 'case "$*" in *hostnames*) echo n1;; requeue*) echo requeue >> {did};; *) echo JobState=RUNNING; esac',
}


@pytest.mark.integration
def test_an_allocation_that_ends_between_two_steps_gets_no_other_one(tmp_path: Path):
    conf, did, errors = tmp_path / "test.conf", tmp_path / "did", tmp_path / "errors"
    conf.write_text(f"[supervisord]\n{GANG}")
    for name, script in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script.format(did=did, status=int(StepExit.STORAGE_AWAY))}\n")
        (tmp_path / name).chmod(0o755)
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"}
    with errors.open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "supervisor.slurm_batch", str(conf)],
            env={**os.environ, **allocation, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, stderr=output,
        )  # fmt: skip
    try:
        wait_until(
            lambda: "next: again" in errors.read_text(), "it waits before another step", details=errors.read_text
        )
        run.send_signal(signal.SIGUSR1)

        wait_until(lambda: "requeue" in did.read_text(), "the job is queued again", details=errors.read_text)
    finally:
        run.kill()  # as Slurm does with a job that is queued again
        run.wait()
    assert did.read_text().split() == ["step", "clean", "requeue"]
