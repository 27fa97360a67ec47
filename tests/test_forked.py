"""A script in a fork sees what it would see as a process of its own, and the test has it as a child."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forked
from tests.children.fork_server import ACTIVE
from tests.places import ROOT

pytestmark = pytest.mark.integration
SCRIPT = """
import json, os, random, sys, threading
import numpy
seen = dict(argv=sys.argv, name=__name__, file=__file__, main=sys.modules["__main__"].__file__, cwd=os.getcwd(),
    variable=os.environ.get("SEEN"), others=sorted(os.environ), path=sys.path[0], threads=threading.active_count(),
    read=sys.stdin.read(), drawn=[random.random(), numpy.random.random()])
print(json.dumps(seen))
print("said", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def ran(folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(status)]
    environment = {"SEEN": "yes", "PATH": os.environ["PATH"]}
    return forked.run(command, ("numpy.random",), timeout=60, cwd=folder, env=environment, stdin=subprocess.DEVNULL)


def test_a_script_has_its_arguments_environment_folder_and_streams(tmp_path: Path):
    done = ran(tmp_path, 3)

    seen = json.loads(done.stdout)
    script = str(tmp_path / "script.py")
    assert (done.returncode, done.stderr) == (3, "said\n")
    assert (seen["argv"], seen["name"], seen["file"], seen["main"]) == ([script, "3"], "__main__", script, script)
    assert (seen["cwd"], seen["path"], seen["read"], seen["threads"]) == (str(tmp_path), str(tmp_path), "", 1)
    assert (seen["variable"], seen["others"]) == ("yes", ["PATH", "SEEN"])


def test_no_two_scripts_draw_the_same_numbers(tmp_path: Path):
    first, second = (json.loads(ran(tmp_path).stdout)["drawn"] for _ in range(2))

    assert set(first).isdisjoint(second)


def test_it_is_a_child_that_can_be_killed_and_waited_for(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import signal\nprint('begun', flush=True)\nsignal.pause()\n")
    process = forked.ForkedProcess([sys.executable, str(script)], forked.NUMPY, stdout=subprocess.PIPE)
    assert process.stdout is not None
    begun = process.stdout.readline()

    parent = psutil.Process(process.pid).ppid()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)

    assert (begun, parent, process.returncode) == ("begun\n", os.getpid(), -signal.SIGKILL)


def test_an_exception_ends_it_as_it_ends_an_interpreter(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import atexit\natexit.register(print, 'the end')\nraise LookupError('on purpose')\n")

    done = forked.run([sys.executable, str(script)], forked.NUMPY, timeout=60)

    assert (done.returncode, done.stdout) == (1, "the end\n")
    assert done.stderr.endswith("LookupError: on purpose\n")


def test_a_file_that_is_left_open_is_written(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nlog = open({str(tmp_path / 'log')!r}, 'w')\nlog.write('all')\nsys.exit('no more')")

    done = forked.run([sys.executable, str(script)], forked.NUMPY, timeout=60)

    assert (done.returncode, done.stderr) == (1, "no more\n")
    assert (tmp_path / "log").read_text() == "all"


def test_modules_of_the_worker_are_there_but_it_begins_with_the_first_import_of_one(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nbefore = [name for name in sys.modules if name.startswith('worker')]\n"
        "from worker.process import startup\nbegun = startup._current\nimport worker\n"
        "print(before, begun is not None and begun is startup.current_attempt(), type(sys.meta_path[0]).__name__)\n"
        f"print(type(startup.__spec__.loader).__name__, {ACTIVE!r}.isdisjoint(sys.modules), worker.files.__name__)\n"
        f"print({ACTIVE!r} <= set(sys.modules), startup.standby is sys.modules['worker.process.standby'])\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}

    done = forked.run([sys.executable, str(script)], forked.NUMPY, timeout=60, env=environment)

    assert done.stdout == "[] True Made\nSourceFileLoader True worker.files\nFalse True\n", done.stderr


HARMLESS = frozenset(
    {
        "worker.keras",  # refuses Keras on another backend
        "worker.process.standby",  # of standbys, which are never forks
        "worker.saving.memory_file",  # closes in forks what none has opened
    }
)
NOW = frozenset({"monotonic", "time", "time_ns", "cwd", "getpid", "urandom"})


def test_what_acts_when_it_is_imported_is_left_to_the_scripts():
    active = set()
    for file in (ROOT / "worker").rglob("*.py"):
        for statement in ast.parse(file.read_text()).body:
            is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            is_value = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
            calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
            if is_call or (is_value and any(isinstance(call, ast.Attribute) and call.attr in NOW for call in calls)):
                active.add(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))

    assert active - HARMLESS - {"worker"} == ACTIVE


def test_a_module_is_run_as_with_m(tmp_path: Path):
    done = forked.run([sys.executable, "-m", "json.tool", "--help"], forked.NUMPY, timeout=60)

    assert done.returncode == 0 and done.stdout.startswith("usage:")


@pytest.mark.integration
def test_a_server_that_was_killed_is_started_anew(tmp_path: Path) -> None:
    modules, command = ("json",), [sys.executable, str(tmp_path / "say.py")]
    (tmp_path / "say.py").write_text("print(1)")
    first = forked.ForkedProcess(command, modules, stdout=subprocess.PIPE)
    assert first.communicate(timeout=60)[0] == "1\n"
    forked._server(sys.executable, modules)._process.kill()

    with pytest.warns(UserWarning, match="ended with -9; another one is started"):
        second = forked.ForkedProcess(command, modules, stdout=subprocess.PIPE)

    assert second.communicate(timeout=60)[0] == "1\n"
