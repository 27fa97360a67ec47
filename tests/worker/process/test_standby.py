"""A process that waits: it becomes the attempt it is told to be, with the sources of that moment, or ends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Control, DaemonIdentity, Launch, without_launch_variables
from supervisor.protocol.wire.messages import STANDBY, Done, Failed, Go, Hello, Promote, Ready, Restored
from tests.places import ROOT
from tests.worker.daemon_end import DaemonEnd
from worker.process import standby

PATIENCE_S = 100.0  # for what takes about a second; the machine may be busy


class Waiting:
    """A standby of `counting.py`, in a copy of it, and the daemon's end of its pipes."""

    def __init__(self, folder: Path, daemon: DaemonIdentity, steps: int = 5) -> None:
        self.folder = folder
        self.checkpoints = folder / "c"
        self.end = DaemonEnd(folder / "run", STANDBY)
        shutil.copy(ROOT / "tests" / "worker" / "children" / "counting.py", folder / "train.py")
        if not (folder / "corpus.py").exists():
            (folder / "corpus.py").write_text("SIZE = 1\n")
            os.utime(folder / "corpus.py", (1, 1))
            os.utime(folder / "train.py", (1, 1))
        told = Launch(
            control=Control(STANDBY, self.end.folder),
            checkpoint_dir=self.checkpoints,
            standby="warm",
            waits_for=daemon,
        )
        environment = {**without_launch_variables(os.environ), **told.to_environment(), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "train.py", str(steps)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def promote(self, attempt: int, restore: str | None = None) -> None:
        folder = self.end.folder.rename(self.end.folder.parent / f"a{attempt}")
        self.end.send(Promote(attempt, str(folder), between_failures_s=60.0, microbatches=1))
        self.end.send(Go(attempt, restore))

    def ended(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        self.end.read()
        return self.process.returncode, out, errors


@pytest.fixture
def myself() -> DaemonIdentity:
    return DaemonIdentity(os.getpid(), read_start_time(os.getpid()) or 0)


@pytest.fixture
def waiting(tmp_path: Path, myself: DaemonIdentity) -> Iterator[Waiting]:
    one = Waiting(tmp_path, myself)
    yield one
    one.process.kill()
    one.process.communicate()
    one.end.close()


@pytest.mark.integration
def test_standby_waits_and_becomes_the_attempt_that_go_names(waiting: Waiting):
    ready = waiting.end.wait_for(Ready, PATIENCE_S)
    untouched = not waiting.checkpoints.exists()
    waiting.promote(7)
    done = waiting.end.wait_for(Done, PATIENCE_S)
    code, out, _ = waiting.ended()

    assert (ready.attempt, ready.kind, ready.pid) == (STANDBY, "warm", waiting.process.pid)
    assert untouched
    assert code == 0 and out == "loaded 1\ntrains 1\n"
    assert done.attempt == 7
    assert [each.attempt for each in waiting.end.all_of(Hello)] == [STANDBY, 7]
    assert {checkpoint.attempt for checkpoint in selection.committed_checkpoints(waiting.checkpoints)} == {7}


@pytest.mark.integration
def test_standby_restores_the_checkpoint_that_go_names(waiting: Waiting, tmp_path: Path, myself: DaemonIdentity):
    waiting.end.wait_for(Ready, PATIENCE_S)
    waiting.promote(1)
    waiting.ended()
    shutil.rmtree(tmp_path / "run")
    second = Waiting(tmp_path, myself, steps=9)
    try:
        second.end.wait_for(Ready, PATIENCE_S)
        second.promote(2, str(tmp_path / "c" / "step-0000000005.a1"))
        restored = second.end.wait_for(Restored, PATIENCE_S)
        code, _, _ = second.ended()
    finally:
        second.process.kill()
        second.end.close()

    assert (restored.attempt, restored.step) == (2, 5) and code == 0


@pytest.mark.integration
def test_a_source_that_changed_is_loaded_anew_in_the_same_process(waiting: Waiting):
    waiting.end.wait_for(Ready, PATIENCE_S)
    (waiting.folder / "corpus.py").write_text("SIZE = 2  # another one\n")
    waiting.promote(3)
    done = waiting.end.wait_for(Done, PATIENCE_S)
    code, out, errors = waiting.ended()

    assert code == 0 and out == "loaded 1\nloaded 2\ntrains 2\n"
    assert "corpus.py changed after the standby had loaded it" in errors
    assert done.attempt == 3
    assert {each.pid for each in waiting.end.all_of(Hello)} == {waiting.process.pid}


@pytest.mark.integration
def test_a_source_that_changed_while_it_was_loaded_counts_as_changed(tmp_path: Path, myself: DaemonIdentity):
    (tmp_path / "corpus.py").write_text("import os\nos.utime(__file__)\nSIZE = 1\n")
    one = Waiting(tmp_path, myself)
    try:
        one.end.wait_for(Ready, PATIENCE_S)
        one.promote(1)
        _, out, _ = one.ended()
    finally:
        one.process.kill()
        one.end.close()

    assert out.count("loaded") == 2


@pytest.mark.integration
def test_standby_ends_with_its_daemon(tmp_path: Path):
    daemon = subprocess.Popen(["sleep", "600"])
    one = Waiting(tmp_path, DaemonIdentity(daemon.pid, read_start_time(daemon.pid) or 0))
    try:
        one.end.wait_for(Ready, PATIENCE_S)
        daemon.kill()
        daemon.wait()
        code, out, _ = one.ended()
    finally:
        one.process.kill()
        one.end.close()

    assert code == WorkerExit.STOPPED and "trains" not in out
    assert not one.checkpoints.exists()


@pytest.mark.integration
def test_standby_without_a_daemon_does_not_load(tmp_path: Path):
    other_start = DaemonIdentity(
        os.getpid(), (read_start_time(os.getpid()) or 0) + 1
    )  # the pid is somebody else's by now
    one = Waiting(tmp_path, other_start)
    code, out, _ = one.ended()
    one.end.close()

    assert code == WorkerExit.STOPPED and out == ""


@pytest.mark.integration
def test_an_attempt_outlives_the_daemon_that_promoted_it(tmp_path: Path):
    daemon = subprocess.Popen(["sleep", "600"])
    one = Waiting(tmp_path, DaemonIdentity(daemon.pid, read_start_time(daemon.pid) or 0), steps=200)
    try:
        one.end.wait_for(Ready, PATIENCE_S)
        one.promote(4)
        one.end.wait_for(Restored, PATIENCE_S)
        daemon.kill()
        daemon.wait()
        code, _, _ = one.ended()
    finally:
        one.process.kill()
        one.end.close()

    assert code == 0


@pytest.mark.integration
def test_error_while_loading_is_reported_as_a_standby(tmp_path: Path, myself: DaemonIdentity):
    (tmp_path / "corpus.py").write_text("raise LookupError('no such corpus')\n")
    one = Waiting(tmp_path, myself)
    failed = one.end.wait_for(Failed, PATIENCE_S)
    code, _, _ = one.ended()
    one.end.close()

    assert code == 1 and failed.attempt == STANDBY and "no such corpus" in failed.error


def test_files_of_installed_packages_are_not_watched_one_by_one():
    watched = standby.stamp_sources()

    assert str(ROOT / "worker" / "process" / "standby.py") in watched
    assert pytest.__file__ not in watched
    assert os.__file__ not in watched
    assert str(Path(pytest.__file__).parents[1]) in watched, "their folder is: a package may come as another version"


def test_packages_of_another_environment_are_installed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On `sys.path` by a .pth file, as that of the user is by itself."""
    folder = tmp_path / "site-packages"
    module = ModuleType("installed_elsewhere")
    module.__file__ = str(folder / "installed_elsewhere.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.syspath_prepend(folder)

    watched = standby.stamp_sources()

    assert module.__file__ not in watched
    assert str(folder) in watched


def test_deleted_file_counts_as_changed(tmp_path: Path):
    path = tmp_path / "a.py"
    path.write_text("A = 1\n")
    os.utime(path, (1, 1))
    before = {str(path): standby._stamp_file(str(path))}

    assert standby.changed_sources(before, dict(before), since_ns=2 * 10**9) == []
    assert standby.changed_sources(before, {}, since_ns=2 * 10**9) == [str(path)]
    assert standby.changed_sources(before, dict(before), since_ns=10**9) == [str(path)], (
        "it changed while it was loaded"
    )
