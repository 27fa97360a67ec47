"""What the batch script refuses before it starts anything, and when it starts nothing more."""

import signal
import threading
from pathlib import Path

import pytest

from supervisor import slurm_batch
from supervisor.config import load_config
from supervisor.config.several_nodes import refuse_several_nodes
from supervisor.protocol.allocation import AllocationError, StepExit
from supervisor.slurm_batch import BatchRun

GANG = "[program:a]\ncommand=x\ncheckpoint_dir=/c\nstrategy=multiworker\n"


def refusal(folder: Path, programs: str, nodes: int = 2, settings: str = "") -> str | None:
    conf = folder / "test.conf"
    conf.write_text(f"[supervisord]\n{settings}\n{programs}")
    try:
        refuse_several_nodes(load_config(conf, {}), nodes)
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


def test_an_allocation_that_ends_between_two_steps_gets_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n{GANG}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(slurm_batch.slurm, "job_state", lambda job: "RUNNING")
    monkeypatch.setattr(slurm_batch, "REQUEUED_S", 0.0)
    did: list[str] = []
    monkeypatch.setattr(slurm_batch.slurm, "requeue", lambda job: did.append("requeue"))
    run = BatchRun(load_config(conf, {}), conf, 2)

    def step() -> int:
        did.append("step")
        threading.Timer(0.1, run._on_signal, (signal.SIGUSR1, None)).start()
        return StepExit.STORAGE_AWAY if len(did) == 1 else StepExit.FAILED

    monkeypatch.setattr(run, "_run_step", step)
    monkeypatch.setattr(run, "_clean_nodes", lambda: did.append("clean"))

    assert run.run() == StepExit.STORAGE_AWAY
    assert did == ["step", "clean", "requeue"]
