"""Jobs for the cluster: a configuration, the batch script, and what became of it."""

import shutil
import sys

from supervisor.protocol.checkpoints import selection
from tests.places import ROOT
from tests.slurm.cluster import Cluster, SlurmJob
from tests.system.harness import TRAINER

SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"


class Training:
    """A job of the trainer's in a folder that all nodes share, under the batch script as it is."""

    def __init__(self, cluster: Cluster, name: str, keys: str = "", **environment: object) -> None:
        self.cluster = cluster
        self.folder = cluster.shared / name
        self.folder.mkdir()
        self.checkpoints = self.folder / "checkpoints"
        self.conf = self.folder / "supervisord.conf"
        variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
        self.conf.write_text(
            f"[supervisord]\nnotices=off\n[program:train]\ncommand={sys.executable} {TRAINER}\n"
            f"checkpoint_dir={self.checkpoints}\nredirect_stderr=true\nenvironment={variables}\n{keys}\n"
        )

    def submit(self, *options: str) -> SlurmJob:
        """Queues it."""
        script = self.folder / "train.sbatch"
        if not script.exists():
            shutil.copy(SCRIPT, script)
        (self.folder / "bin").mkdir(exist_ok=True)
        python = self.folder / "bin" / "python"
        if not python.exists():
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
        return self.cluster.submit(
            "--gres=none", "--cpus-per-task=2", "--time=10", *options, str(script), str(self.conf),
            STEPKEEPER_BIN=str(self.folder / "bin"), PYTHONPATH=str(ROOT),
        )  # fmt: skip

    def newest(self) -> int:
        """The highest committed step, 0 if there is none."""
        found = self.checkpoints.glob("step-*.a*")
        return max((int(each.name[5:15]) for each in found if each.name[5:15].isdecimal()), default=0)

    def attempts(self) -> set[int]:
        """The attempts that committed."""
        names = selection.committed_checkpoints(self.checkpoints)
        return {each.attempt for each in names}

    def count(self) -> int:
        """What the newest checkpoint holds: the trainer counts its steps."""
        name = selection.committed_checkpoints(self.checkpoints)[0]
        return int((self.checkpoints / str(name) / "count").read_text())
