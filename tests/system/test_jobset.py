"""Pods of a JobSet train one job: daemons meet without Slurm, and who started them starts all anew.

The pods are daemons with addresses of their own on this host; what the JobSet controller does is done here.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.protocol import allocation
from supervisor.protocol.allocation import StepExit
from supervisor.protocol.checkpoints import selection
from tests.places import ROOT
from tests.waiting import wait_until

TOGETHER = ROOT / "tests" / "worker" / "children" / "together.py"
NODES = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 300.0  # two processes import TensorFlow on two busy cores


class Pods:
    """Both pods of a JobSet, with one folder that both see."""

    def __init__(self, folder: Path, pause: float) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.pause = pause
        self.restarts = 0

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        place = self.folder / f"pod-{rank}-{self.restarts}"  # its own disk, which goes with it
        place.mkdir()
        conf = place / "test.conf"
        conf.write_text(
            f"[supervisord]\nstate_dir={place}/state\nlogfile={place}/daemon.log\nengine=jobset\nnotices=off\n"
            f"[program:train]\ncommand={sys.executable} {TOGETHER} {self.folder} 40\nstrategy=multiworker\n"
            f"checkpoint_dir={self.folder}/ckpt\ncheckpoint_interval=7 steps\ndeterministic=true\nstandby=off\n"
            f'redirect_stderr=true\nstdout_logfile={place}/train.log\nenvironment=PYTHONPATH="{ROOT}",PAUSE="{self.pause}"\n'
        )
        variables = {
            allocation.NODES: ",".join(NODES), allocation.RANK: str(rank), allocation.RESTARTS: str(self.restarts),
            allocation.SECRET: "known to both pods",
        }  # fmt: skip
        with (place / "output").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "supervisor.daemon", "-c", str(conf)],
                env={**os.environ, **variables}, cwd=ROOT, stdout=output, stderr=output,
            )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """One generation of both; the next one begins a restart later."""
        pods = [self._start(rank) for rank in range(len(NODES))]
        try:
            yield pods
        finally:
            for pod in pods:
                pod.terminate()
            for pod in pods:
                pod.wait(PATIENCE_S)
            self.restarts += 1

    def printed(self, rank: int) -> str:
        """By the worker of this generation."""
        log = self.folder / f"pod-{rank}-{self.restarts}" / "train.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def begun(self) -> list[tuple[int, int]]:
        """Pid and first step of each rank's newest worker in this generation."""
        found = [re.findall(r"worker \d pid (\d+) begins at (\d+)", self.printed(rank)) for rank in range(len(NODES))]
        return [(int(each[-1][0]), int(each[-1][1])) for each in found if each]

    def newest(self) -> int:
        """The highest committed step."""
        return max((name.step for name in selection.committed_checkpoints(self.folder / "ckpt")), default=0)

    def until_training(self) -> list[tuple[int, int]]:
        wait_until(lambda: len(self.begun()) == len(NODES), "both train", PATIENCE_S)
        begun = self.begun()
        newest = begun[0][1]
        wait_until(self.newest, "a checkpoint is there", PATIENCE_S)
        assert [step for _, step in begun] == [newest] * len(NODES)
        return begun

    def ends(self) -> list[str]:
        return [(self.folder / f"end-{rank}").read_text() for rank in range(len(NODES))]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.tensorflow
@pytest.mark.timeout(1200)
def test_pods_that_are_evicted_or_lose_a_worker_end_with_the_same_bits(tmp_path: Path) -> None:
    calm = Pods(tmp_path / "calm", 0.0)
    with calm.running() as pods:
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0]

    gang = Pods(tmp_path / "gang", 0.2)
    with gang.running() as pods:
        gang.until_training()
        pods[0].send_signal(signal.SIGTERM)  # an eviction
        assert {pod.wait(PATIENCE_S) for pod in pods} <= {StepExit.SAVED, StepExit.NODE_LEAVES, StepExit.AGAIN}
    with gang.running() as pods:
        begun = (_, first), (pid, _) = gang.until_training()
        assert first > 0
        wait_until(lambda: gang.newest() > first, "it has trained on", PATIENCE_S)
        os.kill(pid, signal.SIGKILL)  # a worker alone: no pod ends
        old = {first for first, _ in begun}
        wait_until(lambda: old.isdisjoint(first for first, _ in gang.begun()), "both begin again", PATIENCE_S)
        gang.until_training()
        assert [pod.poll() for pod in pods] == [None, None]
        pods[1].kill()
        assert [pod.wait(PATIENCE_S) for pod in pods] == [StepExit.AGAIN, -signal.SIGKILL]
    gang.pause = 0.0
    with gang.running() as pods:
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0]

    assert gang.ends() == calm.ends()


@pytest.mark.integration
def test_a_pod_whose_manifest_lacks_a_variable_says_which(tmp_path: Path) -> None:
    conf = tmp_path / "test.conf"
    conf.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\nengine=jobset\nnotices=off\n[program:a]\ncommand=true\n"
    )
    variables = {allocation.NODES: "a,b", allocation.RANK: "0"}

    ran = subprocess.run(
        [sys.executable, "-m", "supervisor.daemon", "-c", str(conf)],
        env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip

    assert ran.returncode == 78
    assert "cannot use STEPKEEPER_RESTARTS" in ran.stderr
