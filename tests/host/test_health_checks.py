"""What a check's command says, by real ones."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.health_checks import KILLED_WITHIN_S, HealthCheck, HealthChecks, NotRun
from supervisor.host.processes import limits
from tests.reading import alive, content
from tests.silent_mount import SilentMount
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


def asked(*argv: str, timeout_s: float = 20.0, **environment: str) -> str | None:
    return HealthChecks().failure_of(HealthCheck(argv, {**os.environ, **environment}, None, None, timeout_s))


def test_status_0_is_well():
    assert asked("/bin/sh", "-c", "echo fine") is None


def test_any_other_is_not_and_its_words_say_why():
    why = asked("/bin/sh", "-c", "echo port $PORT; echo is closed >&2; exit 3", PORT="80")

    assert why == "healthcheck_command exited with status 3: port 80 is closed"


def test_hanging_health_check_is_killed_with_its_children(tmp_path: Path):
    starts = f"sleep 1000 & echo $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait"

    assert asked("/bin/sh", "-c", starts, timeout_s=2.0) == "healthcheck_command took more than 2 s"
    if found := content(tmp_path / "pid"):  # a machine that is too busy to start a shell in that time kills that
        wait_until(lambda: not alive(int(found)))


def test_without_a_place_for_files_it_is_asked_and_its_words_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")  # as on a full disk: no file can be made there

    assert asked("true") is None
    assert asked("sh", "-c", "echo it is so; exit 3") == "healthcheck_command exited with status 3: it is so"


def test_a_health_check_that_prints_for_ever_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    size = "import os, sys; print(os.fstat(1).st_size, file=sys.stderr)"

    assert asked("yes", timeout_s=0.5) == "healthcheck_command took more than 0.5 s"
    why = asked("/bin/sh", "-c", f"head -c 3000000 /dev/zero; echo; {sys.executable} -c '{size}'; exit 1")
    assert why == "healthcheck_command exited with status 1: 0"


def test_a_command_that_is_not_there_says_nothing_about_the_program():
    with pytest.raises(NotRun, match=r"cannot run healthcheck_command: .*/nonexistent/check"):
        asked("/nonexistent/check")


@pytest.fixture
def ignored() -> Iterator[None]:
    """The kernel's word to who has a lease that somebody waits for it."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.mark.usefixtures("ignored")
def test_a_command_on_a_disk_that_hangs_holds_up_no_program(tmp_path: Path):
    """The disk is a lease (fcntl(2)): who executes the file waits until it is given back."""
    command, said = shutil.copy("/bin/true", tmp_path / "check"), list[str | None]()
    asking = threading.Thread(target=lambda: said.append(asked(str(command))))
    starting = threading.Thread(target=start_a_program)
    with command.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        asking.start()
        wait_until(lambda: fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_WRLCK)
        starting.start()
        starting.join(5.0)
        held_up, said_early = starting.is_alive(), list(said)
    asking.join()
    starting.join()

    assert not held_up
    assert (said_early, said) == ([], [None])


def start_a_program() -> None:
    with limits.inherited_nofile():
        subprocess.run(["/bin/true"], check=True)


def test_closed_nothing_is_waited_for():
    checks, said = HealthChecks(), []
    asking = threading.Thread(
        target=lambda: said.append(
            checks.failure_of(HealthCheck(("/bin/sleep", "1000"), dict(os.environ), None, None, 900.0))
        )
    )
    asking.start()
    deadline = time.monotonic() + 20
    while asking.is_alive() and time.monotonic() < deadline:
        checks.close()
        asking.join(0.05)

    assert said == ["healthcheck_command was terminated by SIGKILL"]


@pytest.mark.hostile
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounting needs root and /dev/fuse")
def test_one_that_cannot_be_killed_keeps_no_thread_and_is_not_begun_again(tmp_path: Path):
    """A user may mount such a file system (FUSE). Eight threads are for the checks of all programs."""
    with SilentMount(tmp_path / "mount", holds_killed=True) as mount:
        began = time.monotonic()
        first = asked("/bin/cat", str(mount.file), timeout_s=1.0)
        second = asked("/bin/cat", str(mount.file), timeout_s=1.0)
        took_s = time.monotonic() - began
        other = asked("true")

    assert first == "healthcheck_command took more than 1 s"
    assert second is not None and "hangs in the kernel" in second
    assert took_s < 2 * KILLED_WITHIN_S
    assert other is None
    wait_until(lambda: asked("/bin/cat", str(mount.file), timeout_s=20.0) not in (first, second))


def test_what_a_check_left_is_killed_while_nobody_else_can_have_its_number(monkeypatch: pytest.MonkeyPatch):
    had_it: list[bool] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: had_it.append(Path(f"/proc/{group}").exists()))

    assert asked("true") is None
    assert had_it == [True]
