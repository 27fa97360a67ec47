"""The output of a job on nine nodes: real daemons and the batch script, stand-ins for `srun` and the workers."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.protocol.allocation import OUTPUT_RANKS
from tests.places import ROOT
from tests.system.harness import TRAINER

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NODES = OUTPUT_RANKS + 1  # the last one prints nothing
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
if "--clean" in sys.argv:
    sys.exit()
command = sys.argv[1:]
while command[0].startswith("-"):
    del command[0]
ranks = []
for rank in range({NODES}):
    node = f"127.0.0.{{rank + 1}}"
    disk = os.path.abspath(f"disk-{{rank}}")
    os.makedirs(disk, exist_ok=True)
    place = {{"SLURM_PROCID": str(rank), "SLURM_NTASKS": "{NODES}", "SLURMD_NODENAME": node, "TMPDIR": disk}}
    fails = {{"FAIL": "dies-at-27"}} if str(rank) == os.environ.get("FAILING_RANK") else {{}}
    ranks.append(subprocess.Popen(command, env={{**os.environ, **place, **fails}}))
statuses = [rank.wait() for rank in ranks]
for rank, status in enumerate(statuses):
    if status:
        print(f"srun: error: 127.0.0.{{rank + 1}}: task {{rank}}: Exited with exit code {{status}}", file=sys.stderr)
sys.exit(max(statuses))
"""
SCONTROL = f"""#!/bin/sh
case "$*" in *hostnames*) for rank in $(seq {NODES}); do echo 127.0.0.$rank; done;; *) echo JobState=RUNNING;; esac
"""


@dataclass
class Job:
    """One that has ended. `lines`: those of the daemons, as events; `others`: what else was printed."""

    status: int
    lines: list[dict[str, object]]
    others: list[str]
    folder: Path

    def log(self, rank: int) -> list[dict[str, object]]:
        (path,) = self.folder.glob(f"stepkeeper-*/127.0.0.{rank + 1}/supervisord.log")
        return [json.loads(line) for line in path.read_text().splitlines()]


def run(folder: Path, failing_rank: int | None = None) -> Job:
    """Runs the batch script to its end."""
    conf = folder / "test.conf"
    conf.write_text(
        f"[supervisord]\nnotices=off\n[program:train]\ncommand={sys.executable} {TRAINER}\nstrategy=multiworker\n"
        f"checkpoint_dir={folder}/%(ENV_SLURMD_NODENAME)s\nstandby=off\nstartretries=0\n"
        f'environment=PYTHONPATH="{ROOT}",STEPS="{40 if failing_rank is None else 100000}"\n'
    )
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    variables = {
        "SLURM_JOB_ID": str(time.time_ns() % 10**9), "SLURM_JOB_NODELIST": "nodes", "SLURM_JOB_NUM_NODES": str(NODES),
        "SLURMD_NODENAME": "127.0.0.1", "SLURM_SUBMIT_DIR": str(folder), "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT), **({"FAILING_RANK": str(failing_rank)} if failing_rank is not None else {}),
    }  # fmt: skip
    with (folder / "output").open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "supervisor.slurm_batch", str(conf)],
            cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=output, timeout=200, check=False,
        )  # fmt: skip
    printed = (folder / "output").read_text().splitlines()
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    return Job(ended.returncode, lines, [line for line in printed if not line.startswith("{")], folder)


def test_a_commit_is_one_line_and_each_node_has_its_own_log(tmp_path: Path):
    job = run(tmp_path)

    assert job.status == 0, job.others
    printed = Counter(line["event"] for line in job.lines)
    commits = [line["step"] for line in job.lines if line["event"] == "checkpoint.committed"]
    assert commits and len(commits) == len(set(commits))
    assert printed["gang.complete"] == printed["training.done"] == 1
    assert {line["level"] for line in job.log(NODES - 1)} >= {"info", "warning"}
    assert [line["step"] for line in job.log(NODES - 1) if line["event"] == "checkpoint.committed"] == commits


def test_the_reason_of_a_node_that_prints_nothing_is_in_the_output(tmp_path: Path):
    job = run(tmp_path, failing_rank=NODES - 1)

    assert job.status == 70, job.others
    reasons = [str(line["why"]) for line in job.lines if line["event"] == "gang.over"]
    assert any(f"rank {NODES - 1} (127.0.0.{NODES})" in why and "given up" in why for why in reasons), reasons
