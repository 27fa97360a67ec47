"""A script in a fork sees what it would see as a process of its own, and the test has it as a child."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forked

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


PARENT = """
import asyncio, os, signal, subprocess, sys, threading
kept = open(os.devnull)
lost = threading.Thread(target=threading.Event().wait, daemon=True)
lost.start()

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "no handler of the parent")
    environment = {"STEPKEEPER_LAUNCH": "{}", "SEEN": "by the kernel too"}
    command = [sys.executable, sys.argv[1], "3"]
    pipe, prepare = subprocess.PIPE, lambda: os.nice(1)
    child = subprocess.Popen(command, env=environment, start_new_session=True, stdout=pipe, preexec_fn=prepare)
    print(child.pid, child.communicate()[0].decode(), child.returncode)

asyncio.run(main())
"""
CHILD = """
import asyncio, json, os, signal, sys, threading
seen = open("/proc/self/environ").read().strip(chr(0)).split(chr(0))
print(json.dumps(dict(
    argv=sys.argv, seen=seen, has="colorsys" in sys.modules, sid=os.getsid(0), nice=os.nice(0),
    open=len(os.listdir("/proc/self/fd")), threads=threading.active_count(), name=__name__,
    variables=sorted(os.environ),
    handler=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, in_loop=asyncio._get_running_loop() is not None,
)), end="")
raise SystemExit(int(sys.argv[1]))
"""


def test_a_worker_of_a_daemon_that_forks_is_like_a_new_interpreter_that_has_imported(tmp_path: Path):
    parent, child = tmp_path / "parent.py", tmp_path / "child.py"
    parent.write_text(PARENT)
    child.write_text(CHILD)
    command, pipe = [sys.executable, str(parent), str(child)], subprocess.PIPE
    with forked.ForkedProcess(command, ("colorsys",), forks_workers=True, stdout=pipe, stderr=pipe) as process:
        output, errors = process.communicate(timeout=60)

    pid, _, rest = output.partition(" ")
    said, _, status = rest.rpartition(" ")
    seen = json.loads(said)
    assert (errors, int(status), seen["sid"]) == ("", 3, int(pid))
    assert (seen["argv"], seen["name"], seen["has"]) == ([str(child), "3"], "__main__", True)
    assert seen["seen"] == ["STEPKEEPER_LAUNCH={}", "SEEN=by the kernel too"]
    assert seen["variables"] == ["SEEN", "STEPKEEPER_LAUNCH"]
    assert (seen["open"], seen["threads"], seen["nice"]) == (4, 1, 1)  # one is that of the listing
    assert (seen["handler"], seen["in_loop"]) == (True, False)
