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


@pytest.mark.parametrize("nodes", [1, 2])
def test_fewer_nodes_than_train_are_refused(tmp_path: Path, nodes: int):
    text = str(refusal(tmp_path, GANG + "nodes=3\n", nodes))
    assert f"cannot train on {nodes} node" in text and "nodes = 3" in text and "sbatch --nodes=3 or more" in text


def test_nodes_beyond_those_that_train_are_spare(tmp_path: Path):
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n{GANG}nodes=3\n")
    assert [training_nodes(load_config(conf, {}), nodes) for nodes in (3, 5)] == [3, 3]
    conf.write_text(f"[supervisord]\n{GANG}")
    assert [training_nodes(load_config(conf, {}), nodes) for nodes in (1, 3, 5)] == [1, 3, 5]


def test_a_jobset_may_have_spare_pods_if_all_see_the_checkpoints(tmp_path: Path):
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\nengine=jobset\nstate_dir=/var/s\n{GANG}nodes=2\n")
    assert [training_nodes(load_config(conf, {}), pods) for pods in (2, 3)] == [2, 2]

    own = (GANG + "nodes=2\n").replace("checkpoint_dir=/c", "checkpoint_dir=/var/s/c")
    text = str(refusal(tmp_path, own, 3, "engine=jobset\nstate_dir=/var/s"))
    assert "cannot keep spare pods: checkpoint_dir /var/s/c lies in the state_dir /var/s" in text
    assert refusal(tmp_path, own, 2, "engine=jobset\nstate_dir=/var/s") is None
    text = str(refusal(tmp_path, GANG + "nodes=4\n", 3, "engine=jobset"))
    assert "set parallelism, completions and STEPKEEPER_NODES of the manifest to 4 pods or more" in text


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


SPARED = {
    "srun": 'case "$*" in *--clean*) ;; *--no-kill*) echo "$*" >> {did}; {verdict} exec sleep {sleep};; esac',
    "scontrol": 'case "$*" in *hostnames*n1-3*) printf "n1\nn2\nn3\n";; *hostnames*) echo n1;; '
    'requeue*) echo requeue >> {did};; *) echo "JobState=RUNNING ReqNodeList=x NodeList={nodes}";; esac',
}


def run_spared(folder: Path, verdict: str, nodes: str) -> tuple[int | None, str]:
    """The batch script with a spare node, whose `srun` never ends by itself. Returns its status and what it did."""
    conf, did, errors = folder / "test.conf", folder / "did", folder / "errors"
    conf.write_text(f"[supervisord]\n{GANG}nodes=2\n")
    for name, script in SPARED.items():
        text = script.format(did=did, verdict=verdict, sleep=1000, nodes=nodes)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[n1-3]", "TMPDIR": str(folder)}
    code = (
        "import sys; from supervisor import slurm_batch; slurm_batch.OTHERS_WAIT_S = slurm_batch.NODES_LOOK_S = 0.1; "
        "slurm_batch.REQUEUED_S = 0.0; sys.exit(slurm_batch.main())"
    )
    with errors.open("w") as output:
        ended = subprocess.run(
            [sys.executable, "-c", code, str(conf)], check=False, timeout=60, stderr=output, stdout=output,
            env={**os.environ, **allocation, "PATH": f"{folder}:{os.environ['PATH']}"},
        )  # fmt: skip
    return ended.returncode, did.read_text() + errors.read_text()


@pytest.mark.integration
def test_a_step_with_spare_nodes_ends_with_the_chiefs_verdict(tmp_path: Path):
    said = 'echo "$STEPKEEPER_GENERATION 0" > "$STEPKEEPER_VERDICT";'
    status, did = run_spared(tmp_path, said, "n[n1-3]")
    assert status == 0, did
    assert "--wait=0" in did and "supervisor.slurm_node" in did and "next: leave" in did
    assert not list(tmp_path.glob("stepkeeper-*")), "nothing stays on the node's disk"


@pytest.mark.integration
def test_a_step_with_too_few_nodes_left_is_ended_and_the_job_queued_again(tmp_path: Path):
    _, did = run_spared(tmp_path, "", "n1")
    assert "those that are left are too few; next: requeue" in did and "requeue" in did.split()
