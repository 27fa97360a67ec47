"""What the batch script refuses before it starts anything."""

from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.protocol.allocation import AllocationError
from supervisor.slurm_batch import refuse_unfit

GANG = "[program:a]\ncommand=x\ncheckpoint_dir=/c\nstrategy=multiworker\n"


def refusal(folder: Path, programs: str, nodes: int = 2, settings: str = "") -> str | None:
    conf = folder / "test.conf"
    conf.write_text(f"[supervisord]\n{settings}\n{programs}")
    try:
        refuse_unfit(load_config(conf, {}), nodes)
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
