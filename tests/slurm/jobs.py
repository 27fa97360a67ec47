"""Jobs for the cluster: a configuration, the batch script, and what became of it."""

import json
import re
import shutil
import sys

from supervisor.protocol.checkpoints import selection
from tests.places import ROOT
from tests.reading import whole_lines
from tests.slurm.cluster import Cluster, SlurmJob
from tests.system.harness import TRAINER

TOGETHER = ROOT / "tests" / "worker" / "children" / "together.py"
FIT_TOGETHER = TOGETHER.with_name("fit_together.py")
SEEN = ROOT / "tests" / "slurm" / "seen.py"
SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"


_COUNT = """
import sys, time
from worker.files import FilesRun

class Nothing:
    versions, topology = {"counting": "1"}, {}
    def write(self, folder): (folder / "x").write_text("x")
    def read(self, folder): pass
    def read_foreign(self, prefix): raise NotImplementedError

with FilesRun(Nothing(), total_steps=1000000, interval="20 steps") as run:
    while not run.reached:
        time.sleep(float(sys.argv[1]))
        run.step_done(epoch=0, batch=run.step)
"""


class Submission:
    """A job in a folder that all nodes share, under the batch script as it is."""

    def __init__(self, cluster: Cluster, name: str, settings: str, program: str, standby: str = "off") -> None:
        self.cluster = cluster
        self.folder = cluster.shared / name
        self.folder.mkdir()
        self.checkpoints = self.folder / "ckpt"
        self.conf = self.folder / "supervisord.conf"
        self.conf.write_text(
            f"[supervisord]\nnotices=file\n{settings}\n[program:train]\ncheckpoint_dir={self.checkpoints}\n"
            f"redirect_stderr=true\nstandby={standby}\n{program}\n"
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

    def logged(self, job: SlurmJob, event: str) -> list[int]:
        """How often the daemon of each node has logged it."""
        logs = sorted((self.cluster.shared / f"stepkeeper-{job.id}").glob("*/supervisord.log"))
        return [log.read_text(errors="replace").count(f'"event": "{event}"') for log in logs]

    def give_notice(self, job: SlurmJob, node: int, in_s: float = 15) -> None:
        """To the daemon of a node: its host goes away."""
        (state,) = self.cluster.nodes[node].own_disk.glob(f"stepkeeper-*-{job.id}")
        notice = state / "notices" / "rack.json"
        notice.parent.mkdir(exist_ok=True)
        notice.with_name(".rack").write_text(f'{{"version": 1, "kind": "preemption", "in_s": {in_s}}}')
        notice.with_name(".rack").rename(notice)

    def newest(self) -> int:
        """The highest committed step, 0 if there is none."""
        return max((checkpoint.step for checkpoint in selection.committed_checkpoints(self.checkpoints)), default=0)

    def attempts(self) -> set[int]:
        """The attempts that committed."""
        names = selection.committed_checkpoints(self.checkpoints)
        return {name.attempt for name in names}

    def count(self) -> int:
        """What the newest checkpoint holds: the trainer counts its steps."""
        name = selection.committed_checkpoints(self.checkpoints)[0]
        return int((self.checkpoints / str(name) / "count").read_text())


class Training(Submission):
    """The trainer: one process, without TensorFlow."""

    def __init__(self, cluster: Cluster, name: str, keys: str = "", **environment: object) -> None:
        variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
        super().__init__(cluster, name, "", f"command={sys.executable} {TRAINER}\nenvironment={variables}\n{keys}")

    def set_step_s(self, step_s: float) -> None:
        """How long each step takes from the next start on."""
        self.conf.write_text(re.sub(r'STEP_S="[^"]*"', f'STEP_S="{step_s}"', self.conf.read_text()))


class Counting(Submission):
    """One process under `worker.files.FilesRun`."""

    def __init__(self, cluster: Cluster, name: str, pause: float) -> None:
        script = cluster.shared / name / "count.py"
        super().__init__(cluster, name, "", f"command={sys.executable} {script} {pause}\ncheckpoint_interval=20 steps")
        script.write_text(_COUNT)


class Gang(Submission):
    """Several nodes that train together with TensorFlow, and end with a digest of all that they hold."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        nodes: int = 2,
        steps: int = 40,
        pause: float = 0.1,
        keys: str = "",
        command: str | None = None,
        standby: str = "off",
    ) -> None:
        """`command`: the script and its arguments behind the folder of the job."""
        folder = cluster.shared / name
        script, _, arguments = (command or f"{TOGETHER} {steps}").partition(" ")
        super().__init__(
            cluster, name, "rendezvous_timeout=60",
            f"command={sys.executable} {script} {folder} {arguments}\nstrategy=multiworker\ndeterministic=true\n"
            f'checkpoint_interval=7 steps\nenvironment=PYTHONPATH="{ROOT}",PAUSE="{pause}"\n{keys}',
            standby,
        )  # fmt: skip
        self.nodes = nodes
        self.steps = steps

    def begin(self, *options: str) -> SlurmJob:
        """Queues it on its nodes."""
        return self.submit(f"--nodes={self.nodes}", *options)

    def set_pause(self, pause: float) -> None:
        """How long each step takes from the next start on."""
        self.conf.write_text(re.sub(r'PAUSE="[^"]*"', f'PAUSE="{pause}"', self.conf.read_text()))

    def ends(self) -> list[str]:
        """What each rank ended with."""
        return [(self.folder / f"end-{rank}").read_text() for rank in range(self.nodes)]

    def printed(self, job: SlurmJob) -> str:
        """What the workers of all nodes printed."""
        logs = sorted((self.cluster.shared / f"stepkeeper-{job.id}").glob("*/train-stdout.log*"))
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def starts(self, job: SlurmJob) -> list[tuple[int, int]]:
        """Rank and first step of every worker that began to train."""
        found = re.findall(r"worker (\d) pid \d+ begins at (\d+)", self.printed(job))
        return [(int(rank), int(step)) for rank, step in found]


class FittingGang(Gang):
    """Several nodes that train with `worker.keras.fit`, with validation and Keras' callbacks."""

    ROW = "callbacks of Keras"

    def __init__(self, cluster: Cluster, name: str, pause: float = 0.1) -> None:
        super().__init__(cluster, name, pause=pause, command=f"{FIT_TOGETHER} {self.ROW.replace(' ', '_')}")

    def ends(self) -> list[str]:
        return [(self.folder / self.ROW / f"end-{rank}").read_text() for rank in range(self.nodes)]


class Seen(Submission):
    """Any number of nodes, which record the examples that each got."""

    def __init__(self, cluster: Cluster, name: str, count: int, pause: float) -> None:
        folder = cluster.shared / name
        super().__init__(
            cluster, name, "", f"command={sys.executable} {SEEN} {folder} {count} {pause}\nstrategy=multiworker\n"
            f'environment=PYTHONPATH="{ROOT}"',
        )  # fmt: skip

    def given(self, nodes: int) -> list[list[int]]:
        """The rows of each batch, of all ranks, while so many nodes trained."""
        lines = [json.loads(line) for file in self.folder.glob("seen-*.jsonl") for line in whole_lines(file)]
        return [rows for on, rows in lines if on == nodes]
