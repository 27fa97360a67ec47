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
from tests import forking
from tests.places import ROOT
from tests.waiting import wait_until

TOGETHER = ROOT / "tests" / "worker" / "children" / "together.py"
TRAIN = 2
PATIENCE_S = 300.0  # two processes import TensorFlow on two busy cores


class Pods:
    """The pods of a JobSet, with one folder that all see. Two train; `spare`: how many more there are."""

    def __init__(self, folder: Path, pause: float, spare: int = 0) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.pause = pause
        self.nodes = tuple(f"127.0.0.{number + 1}" for number in range(TRAIN + spare))
        self.keys = f"nodes={TRAIN}\n" if spare else ""
        self.restarts = 0
        self.pods: list[subprocess.Popen[str]] = []
        self._replaced = [0] * len(self.nodes)

    def _place(self, rank: int) -> Path:
        """Its own disk, which goes with it."""
        return self.folder / f"pod-{rank}-{self.restarts}-{self._replaced[rank]}"

    def _start(self, rank: int) -> subprocess.Popen[str]:
        place = self._place(rank)
        place.mkdir()
        conf = place / "test.conf"
        conf.write_text(
            f"[supervisord]\nstate_dir={place}/state\nlogfile={place}/daemon.log\nengine=jobset\nnotices=off\n"
            f"[program:train]\ncommand={sys.executable} {TOGETHER} {self.folder} 40\nstrategy=multiworker\n"
            f"checkpoint_dir={self.folder}/ckpt\ncheckpoint_interval=7 steps\ndeterministic=true\nstandby=off\n"
            f'{self.keys}redirect_stderr=true\nstdout_logfile={place}/train.log\nenvironment=PYTHONPATH="{ROOT}",PAUSE="{self.pause}"\n'
        )
        variables = {
            allocation.NODES: ",".join(self.nodes), allocation.RANK: str(rank), allocation.RESTARTS: str(self.restarts),
            allocation.SECRET: "known to all pods",
        }  # fmt: skip
        with (place / "output").open("wb") as output:
            return forking.start_daemon(
                [sys.executable, "-m", "supervisor.daemon", "-c", str(conf)],
                env={**os.environ, **variables}, cwd=ROOT, stdout=output, stderr=output,
            )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[list[subprocess.Popen[str]]]:
        """One generation of all; the next one begins a restart later."""
        self.pods = [self._start(rank) for rank in range(len(self.nodes))]
        try:
            yield self.pods
        finally:
            for pod in self.pods:
                pod.terminate()
            for pod in self.pods:
                pod.wait(PATIENCE_S)
            self.restarts += 1
            self._replaced = [0] * len(self.nodes)

    def replace(self, rank: int) -> None:
        """The Job does so with a pod that has ended."""
        self.pods[rank].wait(PATIENCE_S)
        self._replaced[rank] += 1
        self.pods[rank] = self._start(rank)

    def kill(self, rank: int) -> None:
        """The whole pod, as when its memory runs out."""
        pids = [int(pid) for pid in re.findall(r"pid (\d+) begins", self._read(rank, "train.log"))]
        self.pods[rank].kill()
        os.kill(pids[-1], signal.SIGKILL)

    def _read(self, rank: int, name: str) -> str:
        file = self._place(rank) / name
        return file.read_text(errors="replace") if file.exists() else ""

    def log(self, rank: int) -> str:
        """Of the daemon of the present pod."""
        return self._read(rank, "daemon.log")

    def begun(self) -> list[tuple[int, int]]:
        """Pid and first step of each pod's newest worker in this generation, of those that have one."""
        found = [
            re.findall(r"worker \d pid (\d+) begins at (\d+)", self._read(rank, "train.log"))
            for rank in range(len(self.nodes))
        ]
        return [(int(starts[-1][0]), int(starts[-1][1])) for starts in found if starts]

    def newest(self) -> int:
        """The highest committed step."""
        return max((name.step for name in selection.committed_checkpoints(self.folder / "ckpt")), default=0)

    def until_training(self) -> list[tuple[int, int]]:
        wait_until(lambda: len(self.begun()) == TRAIN, "both train", PATIENCE_S)
        begun = self.begun()
        newest = begun[0][1]
        wait_until(self.newest, "a checkpoint is there", PATIENCE_S)
        assert [step for _, step in begun] == [newest] * TRAIN
        return begun

    def until_stepping(self, times: int) -> None:
        """The chief's worker has taken its first step in so many turns, and so have all."""
        steps = '"state": "RUNNING"'
        wait_until(lambda: self.log(0).count(steps) >= times, f"turn {times} trains", PATIENCE_S)

    def ends(self) -> list[str]:
        return [(self.folder / f"end-{rank}").read_text() for rank in range(TRAIN)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two pods end with, beside one that is spare."""
    calm = Pods(tmp_path_factory.mktemp("undisturbed") / "calm", 0.0, spare=1)
    with calm.running() as pods:
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0, 0]
    return calm.ends()


@pytest.mark.nightly  # the next one evicts and kills pods, too; test_multiworker.py kills a worker alone
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.tensorflow
@pytest.mark.timeout(1200)
def test_pods_that_are_evicted_or_lose_a_worker_end_with_the_same_bits(tmp_path: Path, undisturbed: list[str]) -> None:
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

    assert gang.ends() == undisturbed


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.tensorflow
@pytest.mark.timeout(1200)
def test_a_spare_pod_takes_the_rank_of_one_that_is_evicted_or_killed_and_the_others_stay(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    gang = Pods(tmp_path / "gang", 1.0, spare=1)
    with gang.running() as pods:
        gang.until_training()
        pods[1].send_signal(signal.SIGTERM)  # an eviction
        assert pods[1].wait(PATIENCE_S) == StepExit.SAVED
        saved = gang.newest()
        gang.until_stepping(2)
        assert [first for _, first in gang.begun()] == [saved, 0, saved], "nothing was lost"
        assert "a spare node takes its rank" in gang.log(0)

        gang.replace(1)
        wait_until(lambda: '"gang.spare"' in gang.log(1), "it is the spare pod now", PATIENCE_S)
        gang.kill(2)
        gang.until_stepping(3)
        assert pods[0].poll() is None

        gang.replace(2)
        wait_until(lambda: '"gang.spare"' in gang.log(2), "it is the spare pod now", PATIENCE_S)
        gang.kill(0)
        assert [pods[rank].wait(PATIENCE_S) for rank in (1, 2)] == [StepExit.AGAIN, StepExit.AGAIN]
    with gang.running() as pods:
        gang.until_training()
        pods[0].send_signal(signal.SIGTERM)
        assert [pod.wait(PATIENCE_S) for pod in pods] == [StepExit.SAVED, StepExit.SAVED, StepExit.DONE]
    gang.pause = 0.0
    with gang.running() as pods:
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0, 0]

    assert gang.ends() == undisturbed


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
