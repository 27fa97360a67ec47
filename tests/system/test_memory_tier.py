"""A worker dies in every way; the next one goes on from the state that it had in memory, bit for bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.places import CHILDREN, ROOT
from tests.reading import records
from tests.system.harness import Daemon
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = CHILDREN / "remembering.py"
STEP_S = 0.02
MOST_LOST_S = 2.0
COPY_EVERY_S = 1.0


class Remembering:
    """The job of `tests/children/remembering.py` under a daemon of its own."""

    def __init__(self, folder: Path, steps: int, mode: str = "auto", keys: str = "") -> None:
        self.folder = folder
        self.environment = {"STEPS": str(steps), "STEP_S": str(STEP_S), "PYTHONPATH": str(ROOT), "BESIDE": str(folder)}
        variables = ",".join(f'{name}="{value}"' for name, value in self.environment.items())
        section = (
            f"[program:job]\ncommand={sys.executable} {SCRIPT}\ncheckpoint_dir={folder}/ckpt\nstandby=off\n"
            f"memory_checkpoint={mode}\nenvironment={variables}\n{keys}"
        )
        self.daemon = Daemon(folder, section)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Each step that was done, with the pid of who did it."""
        path = self.folder / "steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), int(pid)) for step, pid, *_ in (line.split() for line in lines if line.count(" ") == 3)]

    @property
    def pid(self) -> int:
        return self.daemon.status("job")["pid"]

    def until_copied(self) -> int:
        """Returns the worker's pid when it has had the time for a copy or two."""
        self.daemon.until(lambda: self.daemon.status("job")["job"]["memory_step"], "a copy is in memory")
        step = self.steps[-1][0]
        wait_until(lambda: self.steps[-1][0] > step + 1.5 * COPY_EVERY_S / STEP_S, "it trains on")
        return self.steps[-1][1]

    def until_next(self, pid: int) -> None:
        wait_until(lambda: self.steps[-1][1] != pid, "the next worker trains")

    def until_done(self) -> str:
        wait_until((self.folder / "hash").exists, "training is complete", 120.0)
        return (self.folder / "hash").read_text()

    @property
    def lost(self) -> list[int]:
        """Steps trained again, for each death."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [before - after + 1 for (before, mine), (after, other) in pairs if mine != other]

    def logged(self, event: str) -> list[dict[str, object]]:
        return [each for each in records(self.folder / "daemon.log") if each["event"] == event]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of 600 steps that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    variables = {**os.environ, "STEPS": "600", "STEP_S": "0", "PYTHONPATH": str(ROOT), "BESIDE": str(folder)}
    subprocess.run([sys.executable, SCRIPT], env=variables, cwd=folder, check=True, capture_output=True)
    return (folder / "hash").read_text()


def test_every_kind_of_death_costs_at_most_two_seconds_of_steps_and_no_bit(tmp_path: Path, undisturbed: str) -> None:
    job = Remembering(tmp_path, 600)
    with job.daemon:
        for how in ("raise", "memory", "segv", "kill", "exit"):
            pid = job.until_copied()
            (tmp_path / "die").write_text(how)
            job.until_next(pid)
        digest = job.until_done()

    assert digest == undisturbed
    assert len(job.lost) == 5
    assert max(job.lost) * STEP_S <= MOST_LOST_S
    assert len(job.logged("checkpoint.salvaged")) == 5


def test_the_next_daemon_takes_the_memory_over(tmp_path: Path, undisturbed: str) -> None:
    job = Remembering(tmp_path, 600)
    with job.daemon as daemon:
        pid = job.until_copied()
        daemon.die()
        daemon.start()
        job.until_copied()
        os.kill(pid, signal.SIGKILL)
        job.until_next(pid)
        assert max(job.lost) * STEP_S <= MOST_LOST_S

        last = job.until_copied()
        described = daemon.status("job")["description"]
        daemon.die()
        os.kill(last, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(last) or psutil.Process(last).status() == "zombie", "it is dead")
        daemon.start()
        job.until_next(last)
        digest = job.until_done()

    assert digest == undisturbed, "both were killed: it went on from what is on the disk"
    assert len(job.logged("checkpoint.salvaged")) == 1
    assert " in memory" in described


def test_a_job_that_keeps_dying_of_its_state_goes_back_behind_it(tmp_path: Path) -> None:
    job, order = Remembering(tmp_path, 100_000), tmp_path / "die"
    with job.daemon as daemon:
        job.until_copied()
        daemon.call("checkpoint", name="job")
        job.until_copied()
        for _ in range(4):  # the first time, it leaves a state; then it dies in the first step from that
            order.write_text("kill")
            wait_until(lambda: not order.exists(), "it has died")
        avoided = daemon.until(lambda: job.logged("checkpoint.avoided"), "its state is avoided")[0]

    salvaged = job.logged("checkpoint.salvaged")
    assert len(salvaged) == 1
    assert avoided["suspects"] == [salvaged[0]["checkpoint"]]
    assert str(avoided["chosen"]).endswith("a1"), "what it had saved itself"
    assert avoided["chosen"] != f"{tmp_path}/ckpt/{salvaged[0]['checkpoint']}"
