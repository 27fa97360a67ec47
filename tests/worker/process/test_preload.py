"""An automatic standby: the script behaves as without one, and none of its lines runs before it is an attempt."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol.wire.exits import PERMANENT_EXITS
from supervisor.protocol.wire.launch import Control, DaemonIdentity, Launch, without_launch_variables
from supervisor.protocol.wire.messages import STANDBY, Failed, Go, Hello, Promote, Ready
from supervisor.runner.attempt.launching import PRELOAD
from tests.places import ROOT
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.integration
PATIENCE_S = 100.0  # for what takes about a second; the machine may be busy

SCRIPT = '''\
"""Says what it sees of its process."""
import multiprocessing
import os
import pickle
import sys

import numpy
import worker
from beside import double
from parts.one import name

class Thing:
    def __init__(self): self.value = 3

def triple(number):
    return 3 * number

print("begins", __name__, __doc__, __package__, __spec__, __file__, sorted(globals()))
print(sys.argv, sys.path, sys.flags, sys.orig_argv, os.getcwd(), name, __builtins__ is sys.modules["builtins"])
print(sorted(os.environ.items()), sys.stdin.read())
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1]), pool.map(triple, [1]), sys.modules["__main__"].triple is triple)
    print(pickle.loads(pickle.dumps(Thing())).value, "numpy" in sys.modules)
    raise ValueError("the end")
'''


class Started:
    """The script: at once as attempt 1, or as a standby."""

    def __init__(self, folder: Path, standby: bool, script: str = SCRIPT, bootstrap: str = PRELOAD) -> None:
        folder.mkdir(exist_ok=True)
        self.script = folder / "train.py"
        self.script.write_text(script)
        (folder / "beside.py").write_text("def double(number): return 2 * number\n")
        (folder / "parts").mkdir(exist_ok=True)
        (folder / "parts" / "__init__.py").touch()
        (folder / "parts" / "one.py").write_text("from .two import name\n")
        (folder / "parts" / "two.py").write_text("name = __name__\n")
        self.end = DaemonEnd(folder.parent / f"run-{standby}", STANDBY if standby else 1)
        daemon = DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 0)
        told = Launch(
            control=Control(STANDBY if standby else 1, self.end.folder),
            standby="warm" if standby else None,
            waits_for=daemon if standby else None,
        )
        environment = {**without_launch_variables(os.environ), **told.to_environment(), "PYTHONPATH": str(ROOT)}
        environment.pop("PYTEST_CURRENT_TEST", None)
        runs = ["-c", bootstrap % 78] if standby else []
        self.process = subprocess.Popen(
            [sys.executable, "-u", *runs, "train.py", "-c", "3"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def promote(self) -> None:
        folder = self.end.folder.rename(self.end.folder.parent / "a1")
        self.end.send(Promote(1, str(folder), between_failures_s=60.0, microbatches=1))
        self.end.send(Go(1, None))

    def ended(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        self.end.read()
        return self.process.returncode, out, errors

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.end.close()


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Started]:
    one = Started(tmp_path / "job", standby=True)
    yield one
    one.close()


def test_script_sees_the_same_process_as_without_a_standby(tmp_path: Path, standby: Started):
    ready = standby.end.wait_for(Ready, PATIENCE_S)
    standby.promote()
    found = standby.ended()
    cold = Started(tmp_path / "job", standby=False)
    try:
        expected = cold.ended()
    finally:
        cold.close()

    assert (ready.kind, ready.problem) == ("warm", None)
    assert found == expected
    assert found[0] == 1 and "begins __main__" in found[1] and found[2].endswith("ValueError: the end\n")
    failed = [end.all_of(Failed)[0] for end in (standby.end, cold.end)]
    assert failed[0].error == failed[1].error == "ValueError: the end"
    assert [each.attempt for each in standby.end.all_of(Hello)] == [STANDBY, 1]


def test_script_is_read_at_the_promotion_and_no_line_of_it_runs_before(standby: Started):
    standby.end.wait_for(Ready, PATIENCE_S)
    printed, _, _ = select.select([standby.process.stdout], [], [], 0.0)
    standby.script.write_text("import worker\nprint('another script')\n")
    standby.promote()

    assert not printed
    assert standby.ended()[:2] == (0, "another script\n")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "import os\nos.environ['A'] = 'b'\nimport numpy, worker\n",
            r"nothing can be imported before train\.py:2: os\.",
        ),
        ("import numpy\nprint(1)\n", "does not import worker"),
        ("import (", "does not import worker"),
        ("import numpy.not_there\nimport worker\n", "cannot import ahead .* ModuleNotFoundError"),
    ],
)
def test_standby_that_spares_nothing_says_why_and_is_still_a_cold_start(tmp_path: Path, script: str, problem: str):
    one = Started(tmp_path / "job", standby=True, script=script)
    try:
        ready = one.end.wait_for(Ready, PATIENCE_S)
        one.script.write_text("import worker\nprint('begins', __file__)\n")
        one.promote()
        code, out, _ = one.ended()
    finally:
        one.close()

    assert re.search(problem, ready.problem or "")
    assert (code, out) == (0, f"begins {one.script}\n")


def test_a_file_beside_the_script_that_packages_would_import_makes_none(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "numbers.py").write_text("import numbers_of_old\n")  # numpy imports the one of Python
    one = Started(tmp_path / "job", standby=True)
    try:
        ready = one.end.wait_for(Ready, PATIENCE_S)
    finally:
        one.close()

    assert "numbers.py beside the script" in (ready.problem or "")


def test_interpreter_without_stepkeeper_ends_with_a_status_that_is_not_tried_again(tmp_path: Path):
    one = Started(tmp_path / "job", standby=True, bootstrap=PRELOAD.replace("worker.process", "worker_of_old"))
    try:
        code, out, errors = one.ended()
    finally:
        one.close()

    assert code in PERMANENT_EXITS and (out, errors) == ("", "")
