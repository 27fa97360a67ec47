"""A gang of daemons whose nodes have folders of their own, and a mirror: as Slurm would start them, on this host."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.protocol import allocation, layout
from supervisor.protocol.mirror import verification
from supervisor.protocol.mirror.store import Store
from tests import forking
from tests.places import ROOT
from tests.waiting import wait_until

SCRIPT = ROOT / "tests" / "worker" / "children" / "sharded.py"
PATIENCE_S = 150.0  # two processes import TensorFlow on two busy cores
STEPS = 40
INTERVAL = 7  # steps between two checkpoints


class Nodes:
    """Daemons with a disk each. `store`: URL of the mirror; None: a folder beside them."""

    def __init__(self, folder: Path, count: int = 2, pause: float = 0.0, steps: int = STEPS, store: str | None = None):
        self.folder = folder
        self.names = tuple(f"127.0.0.{number}" for number in range(1, count + 1))
        self.pause = pause
        self.steps = steps
        self.environments: list[Mapping[str, str]] = [{}] * count
        """Of each node's daemon, added to that of the tests."""
        self.restarts = 0
        self.standby = "off"
        self.sharing: set[int] = set()
        """Nodes whose file says that all share a folder."""
        self.keys = "save_shards=always\n"
        self.notices = "off"
        (folder / "store" / "train").mkdir(parents=True)
        self.store = store or f"file://{folder}/store"
        self._listed: list[Any] = []
        self._committed: list[int] = []

    def disk(self, node: int) -> Path:
        """The node's checkpoint directory."""
        return self.folder / f"disk-{node}"

    def _start(self, rank: int) -> subprocess.Popen[str]:
        place = self.folder / f"pod-{rank}-{self.restarts}"
        place.mkdir()
        conf = place / "test.conf"
        conf.write_text(
            f"[supervisord]\nstate_dir={place}/state\nlogfile={place}/daemon.log\nengine=slurm\nnotices={self.notices}\n"
            f"[program:train]\ncommand={sys.executable} {SCRIPT} {self.folder} {self.steps}\nstrategy=multiworker\n"
            f"checkpoint_dir={self.disk(rank)}\ncheckpoint_interval={INTERVAL} steps\ndeterministic=true\n"
            f"standby={self.standby}\ncheckpoint_dir_shared={rank in self.sharing}\nmirror={self.store}\n{self.keys}"
            f"redirect_stderr=true\nstdout_logfile={place}/train.log\n"
            f'environment=PYTHONPATH="{ROOT}",PAUSE="{self.pause}",DISK="{self.disk(rank)}"\n'
        )
        variables = self._place(rank, place)
        with (place / "output").open("wb") as output:
            return forking.start_daemon(
                [sys.executable, "-m", "supervisor.daemon", "-c", str(conf)],
                env={**os.environ, **variables, **self.environments[rank]}, cwd=ROOT, stdout=output, stderr=output,
            )  # fmt: skip

    def _place(self, rank: int, place: Path) -> dict[str, str]:
        """What Slurm tells a daemon. The number of the job decides where the chief listens."""
        scontrol = place / "scontrol"
        scontrol.write_text(f"#!/bin/sh\nprintf '%s\\n' {' '.join(self.names)}\n")
        scontrol.chmod(0o755)
        return {
            "SLURM_JOB_ID": str(zlib.crc32(str(self.folder).encode())), "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": str(len(self.names)), "SLURM_JOB_NODELIST": "nodes", "SLURMD_NODENAME": self.names[rank],
            "TMPDIR": str(place), "PATH": f"{place}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(place), "SLURM_RESTART_COUNT": str(self.restarts),
            allocation.SECRET: "known to all nodes",
        }  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[list[subprocess.Popen[str]]]:
        """One generation of all; the next one begins a restart later."""
        pods = [self._start(rank) for rank in range(len(self.names))]
        try:
            yield pods
        finally:
            for pod in pods:
                pod.terminate()
            for pod in pods:
                pod.wait(PATIENCE_S)
            self.restarts += 1

    def run_to_end(self) -> None:
        """A generation that ends as it should."""
        with self.running() as pods:
            assert [pod.wait(PATIENCE_S) for pod in pods] == [0] * len(pods), self.said()

    def said(self) -> str:
        """What was printed and logged last, of all nodes."""
        paths = [self.folder / f"pod-{rank}-{self.restarts}" / name for rank in range(len(self.names))
                 for name in ("train.log", "daemon.log")]  # fmt: skip
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-2500:]}" for path in paths if path.exists())

    def log(self, rank: int, event: str) -> list[dict[str, Any]]:
        """The events of a kind in a daemon's log of this generation."""
        path = self.folder / f"pod-{rank}-{self.restarts}" / "daemon.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry for entry in entries if entry.get("event") == event]

    def begun(self) -> list[list[tuple[int, int]]]:
        """By rank: pid and first step of the workers of this generation, in their order."""
        logs = [self.folder / f"pod-{rank}-{self.restarts}" / "train.log" for rank in range(len(self.names))]
        printed = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
        found = [re.findall(r"worker \d pid (\d+) begins at (\d+)", text) for text in printed]
        return [[(int(pid), int(step)) for pid, step in lines] for lines in found]

    def until_begun(self, times: int = 1) -> int:
        """Waits until each rank's worker has begun so often in this generation; the step, which is one for all."""
        wait_until(
            lambda: all(len(begun) >= times for begun in self.begun()), "all train", PATIENCE_S, details=self.said
        )
        (step,) = {begun[times - 1][1] for begun in self.begun()}
        return step

    def kill_worker(self, rank: int) -> None:
        os.kill(self.begun()[rank][-1][0], signal.SIGKILL)

    def give_notice(self, rank: int, in_s: float) -> None:
        """The node's host goes away."""
        notices = next((self.folder / f"pod-{rank}-{self.restarts}").rglob("notices"))
        (notices / ".rack").write_text(f'{{"version": 1, "kind": "preemption", "in_s": {in_s}}}')
        (notices / ".rack").rename(notices / "rack.json")

    def committed(self) -> list[int]:
        """The steps of the checkpoints that count in the mirror, newest first, each proven whole.

        Who waits for one looks often, so they are read again only once something in the mirror is new or gone."""
        listed = sorted(Store(f"{self.store}/train").list_keys(""))
        if listed != self._listed:
            checkpoints = verification.verify_url(f"{self.store}/train")
            assert all(checkpoint.valid for checkpoint in checkpoints), checkpoints
            self._listed = listed
            self._committed = [checkpoint.step for checkpoint in checkpoints if checkpoint.counts]
        return self._committed

    def parts(self, rank: int) -> list[str]:
        """The names of a node's parts."""
        return sorted(path.name for path in self.disk(rank).glob(f"*{layout.PART}"))

    def copies(self, rank: int) -> list[str]:
        """The names of whole checkpoints on a node's disk."""
        return sorted(p.name for p in self.disk(rank).glob("step-*") if layout.parse_name(p.name) is not None)

    def lose_disk(self, rank: int) -> None:
        shutil.rmtree(self.disk(rank), ignore_errors=True)

    def ends(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("end-*"))]
