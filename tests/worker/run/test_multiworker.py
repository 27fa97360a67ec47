"""Whole worker processes: killed, stopped, refused, and resumed to the same bits."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.launch import Launch, without_launch_variables
from supervisor.protocol.wire.messages import Committed, Done, Failed, Flush, Go, Hello, Progress, Restored, Then
from tests import forked
from tests.places import ROOT
from tests.worker.daemon_end import DaemonEnd

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow]
CHILDREN = ROOT / "tests" / "worker" / "children"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a worker process; what is left of it at the end is killed. A script has TensorFlow from the beginning."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, launch: Launch | None = None) -> subprocess.Popen[str]:
        told = launch.to_environment() if launch is not None else {}
        environment = {**without_launch_variables(os.environ), **told, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *map(str, arguments)]
        kind = partial(subprocess.Popen, text=True) if "-c" in arguments else forked.ForkedProcess
        started.append(kind(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], beginning: str) -> str:
    """Reads its output up to the line that begins so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(beginning):
            return line.strip()
    raise AssertionError(f"no line {beginning!r}: {process.communicate()[1][-2000:]}")


@pytest.mark.timeout(400)  # four processes, each of which traces
def test_killed_at_random_steps_it_ends_with_the_same_bits(start: Start, tmp_path: Path) -> None:
    def trained(folder: str, cores: Iterable[int] = os.sched_getaffinity(0)) -> subprocess.Popen[str]:
        process = start(CHILDREN / "tiny.py", 40, launch=Launch(deterministic=True, checkpoint_dir=tmp_path / folder))
        os.sched_setaffinity(process.pid, cores)  # long before it has threads
        return process

    undisturbed = read_until(trained("a"), "hash")

    lost_at = []  # the first before there is a checkpoint: what the bits depend on is known all the same
    for earliest in (1, 20):
        process = trained("b")
        lost_at.append(read_until(process, f"step {random.randint(earliest, earliest + 5)}"))
        process.send_signal(signal.SIGKILL)
        process.wait()
    one_core = {min(os.sched_getaffinity(0))}  # the bits must not depend on it
    disturbed = read_until(trained("b", one_core), "hash")

    assert disturbed == undisturbed, f"killed at {lost_at}"


def test_sigterm_saves_leaves_with_143_and_the_next_start_goes_on(start: Start, tmp_path: Path) -> None:
    first = start(CHILDREN / "plain.py", tmp_path, 100_000)
    read_until(first, "step 5")
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=100)
    (saved,) = selection.committed_checkpoints(tmp_path)
    second = start(CHILDREN / "plain.py", tmp_path, saved.step + 2)
    output, _ = second.communicate(timeout=100)

    assert first.returncode == 143
    assert output.splitlines()[0] == f"step {saved.step}"
    assert output.splitlines()[-1] == f"count {saved.step + 2}"
    assert second.returncode == 0
    assert selection.committed_checkpoints(tmp_path)[0].attempt == 2


def test_second_worker_in_one_directory_is_refused(start: Start, tmp_path: Path) -> None:
    first = start(CHILDREN / "plain.py", tmp_path, 100_000)
    read_until(first, "step 1")
    second = start(CHILDREN / "plain.py", tmp_path, 100_000)
    _, errors = second.communicate(timeout=100)

    assert second.returncode == 75
    assert f"pid {first.pid}" in errors


def test_under_a_daemon_it_says_hello_waits_for_go_and_is_done(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 3, launch=launch)
    hello = daemon.wait_for(Hello)
    daemon.send(Go(1, restore=None))
    process.communicate(timeout=100)
    done = daemon.wait_for(Done)

    assert hello.pid == process.pid
    assert (done.step, process.returncode) == (3, 0)
    spoken = [type(message).__name__ for message in daemon.heard if not isinstance(message, Progress)]
    assert spoken == ["Hello", "Restored", "Committed", "Done"]


def test_under_a_daemon_sigterm_saves_and_leaves_with_143(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 100_000, launch=launch)
    daemon.send(Go(1, restore=None))
    daemon.wait_for(Progress)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)

    assert process.returncode == 143
    assert daemon.wait_for(Committed).checkpoint == str(selection.committed_checkpoints(tmp_path / "c")[0])


def test_under_a_daemon_a_stop_is_obeyed_within_a_step(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 100_000, launch=launch)
    daemon.send(Go(1, restore=None))
    daemon.wait_for(Progress)
    daemon.send(Flush(1, id=8, reason="stop", then=Then.STOP))
    process.communicate(timeout=100)

    assert process.returncode == 143
    assert daemon.wait_for(Committed).flushes == (8,)


def test_exception_before_there_is_a_run_is_heard_by_the_daemon(
    start: Start, daemon: DaemonEnd, tmp_path: Path
) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 3, "fail-before-run", launch=launch)
    process.communicate(timeout=100)

    assert process.returncode == 1
    assert daemon.wait_for(Failed).error == "RuntimeError: the data are not there"


def test_hung_worker_leaves_its_stacks_when_it_is_aborted(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 100_000, launch=launch)
    daemon.send(Go(1, restore=None))
    daemon.wait_for(Progress)
    process.send_signal(signal.SIGABRT)
    _, errors = process.communicate(timeout=100)

    assert process.returncode == -signal.SIGABRT
    assert "plain.py" in errors and "in _run_thread" in errors


TEE = "class Tee:\n    def write(self, text): print(text, end='')\n    def flush(self): pass\n"


def test_script_that_put_an_object_of_its_own_in_the_place_of_stderr_is_one_like_any_other(
    start: Start, daemon: DaemonEnd
) -> None:
    script = f"import signal, sys\n{TEE}sys.stderr = Tee()\nimport worker\nsignal.pause()"
    process = start("-c", script, launch=Launch(control=daemon.control()))
    hello = daemon.wait_for(Hello)
    process.send_signal(signal.SIGABRT)
    _, errors = process.communicate(timeout=60)

    assert hello.pid == process.pid
    assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in errors, "the stacks of a hang go where they always do"


def test_without_tensorflow_it_says_what_to_install(start: Start) -> None:
    process = start("-c", "import sys; sys.modules['tensorflow'] = None; import worker; worker.Run")
    _, errors = process.communicate(timeout=100)

    assert process.returncode == 1
    assert "pip install 'tensorflow<3,>=2.18'" in errors


def test_script_that_exits_in_the_middle_is_not_done(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c")
    process = start(CHILDREN / "plain.py", "ignored", 100, "exit-early", launch=launch)
    daemon.send(Go(1, restore=None))
    process.communicate(timeout=100)

    assert "SystemExit" in daemon.wait_for(Failed).error
    assert not daemon.all_of(Done)


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("tests.worker.children.nowhere:good", 78, "there is no module 'tests.worker.children.nowhere'"),
        ("tests.worker.children.entries:absent", 78, "'absent' does not exist"),
        ("tests.worker.children.entries:NOT_A_FUNCTION", 78, "'NOT_A_FUNCTION' is not callable"),
        ("tests.worker.children.entries", 78, "not of the form package.module:function"),
        ("tests.worker.children.entries:gives_nothing", 78, "returned a NoneType, not a worker.Training"),
        ("tests.worker.children.entries:raises", 1, "LookupError: no such corpus"),
    ],
)
def test_entry_point_that_cannot_train_says_why(
    entry: str, code: int, words: str, start: Start, daemon: DaemonEnd, tmp_path: Path
) -> None:
    process = start("-m", "worker", entry, launch=Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c"))
    process.communicate(timeout=100)

    assert process.returncode == code
    assert words in daemon.wait_for(Failed).error


def test_entry_point_is_trained_by_the_ready_made_loop(start: Start, daemon: DaemonEnd, tmp_path: Path) -> None:
    launch = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", strategy="mirrored", replicas=2)
    process = start("-m", "worker", "tests.worker.children.entries:good", launch=launch)
    daemon.send(Go(1, restore=None))
    output, errors = process.communicate(timeout=100)

    assert process.returncode == 0, errors
    assert daemon.wait_for(Restored).total_steps == 4
    assert daemon.wait_for(Done).metrics["accuracy"] == 0.25
    assert "accuracy 0.2500" in output


def test_importing_the_package_does_not_import_tensorflow(start: Start) -> None:
    process = start("-c", "import sys, worker; print('tensorflow' in sys.modules)")

    assert process.communicate(timeout=100)[0] == "False\n"


def test_launch_environment_that_is_wrong_leaves_with_78(start: Start, daemon: DaemonEnd) -> None:
    launch = Launch(control=daemon.control())
    daemon.folder.rename(daemon.folder.with_name("gone"))
    process = start("-c", "import worker", launch=launch)

    assert "cannot open the control pipe" in process.communicate(timeout=100)[1]
    assert process.returncode == 78
