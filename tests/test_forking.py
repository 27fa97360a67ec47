"""A worker that is a fork is to its daemon what any worker is, and has TensorFlow from the start."""

import sys
from pathlib import Path

import psutil
import pytest

from supervisor.host.processes import marks
from tests import forked, forking
from tests.places import ROOT
from tests.system.harness import Daemon
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import os, signal, sys
with open(sys.argv[1] + f"/{os.environ.get('TF_CONFIG', 'worker')[:1]}.new", "w") as file:
    print("tensorflow" in sys.modules, os.getppid(), len(sys.argv), file=file)
os.rename(file.name, file.name.removesuffix("new") + "said")
if "import" in sys.argv:
    import worker
    worker.strategy()
signal.pause()
"""


OF_JOB = "standby=off\nflush_timeout=1\nstopwaitsecs=1\n"


def section(folder: Path, keys: str = "", *arguments: str) -> str:
    (folder / "script.py").write_text(SCRIPT)
    command = " ".join([sys.executable, str(folder / "script.py"), str(folder), *arguments])
    return f'[program:job]\ncommand={command}\nenvironment=PYTHONPATH="{ROOT}"\n{keys}'


def test_it_is_known_by_its_environment_taken_over_and_ended_by_the_next_daemon(tmp_path: Path) -> None:
    with Daemon(
        tmp_path, section(tmp_path, f"checkpoint_dir={tmp_path}/ckpt\n{OF_JOB}"), scripts_have=forked.TENSORFLOW
    ) as daemon:
        daemon.until((tmp_path / "w.said").exists, "it runs")
        assert daemon.process is not None
        pid = daemon.status("job")["pid"]
        assert (tmp_path / "w.said").read_text() == f"True {daemon.process.pid} 2\n"
        assert psutil.Process(pid).cmdline() == [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
        assert marks.is_of_program(marks.read_mark(pid), tmp_path / "state", "job")
        daemon.die()
        daemon.start()
        daemon.until(lambda: daemon.status("job")["pid"] == pid, "it is taken over")
    wait_until(lambda: not psutil.pid_exists(pid), "it ended with the daemon that took it over")


@pytest.mark.tensorflow
def test_the_other_workers_of_a_job_are_forks_too(tmp_path: Path) -> None:
    keys = f"checkpoint_dir={tmp_path}/ckpt\nstrategy=multiworker\nworkers=2\n{OF_JOB}"
    with Daemon(tmp_path, section(tmp_path, keys, "import"), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until((tmp_path / "{.said").exists, "the second one runs")
        pid = daemon.status("job")["pid"]

    assert (tmp_path / "{.said").read_text() == f"True {pid} 3\n"


@pytest.mark.parametrize("keys", ["umask=027\n", "limit_core=0\n"])
def test_what_a_fork_can_have_it_has_and_else_it_is_none(tmp_path: Path, keys: str) -> None:
    with Daemon(tmp_path, section(tmp_path, keys), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until((tmp_path / "w.said").exists, "it runs")

    is_fork, _, _ = (tmp_path / "w.said").read_text().split()
    assert is_fork == str("limit" not in keys)
    assert "umask" not in keys or (tmp_path / "w.said").stat().st_mode & 0o777 == 0o640


def test_what_is_no_script_or_needs_a_new_interpreter_is_none() -> None:
    assert forking._is_script([sys.executable, "x.py"], {"PYTHONPATH": "/"})
    assert not forking._is_script([sys.executable, "-c", "1"], {})
    assert not forking._is_script(["/bin/sleep", "1"], {})
    assert not forking._is_script([sys.executable, "x.py"], {"PYTHONHASHSEED": "1"})
