"""Who bears a mark of ours, and who only has the number of one that did."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.pipes.notify import NotifySocket
from supervisor.host.processes import environments, marks
from tests.places import CHILDREN
from tests.silent_mount import SilentMount
from tests.system.harness import let_others_in
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A mark, and a process that bears it."""
    mark = marks.mark_of_attempt(tmp_path, "p", 1)
    child = subprocess.Popen(["/bin/sleep", "60"], env={**os.environ, marks.VARIABLE: mark})
    yield mark, child.pid
    child.kill()
    child.wait()


def test_a_process_of_ours_is_found_by_its_mark(marked: tuple[str, int], tmp_path: Path):
    mark, pid = marked

    assert [process.pid for process in marks.processes_of_attempt(mark)] == [pid]
    assert [process.pid for process in marks.processes_of_daemon(tmp_path)[mark]] == [pid]


@pytest.mark.parametrize("looks", [300, pytest.param(1000, marks=pytest.mark.nightly)])
def test_one_that_replaces_its_program_is_found_at_every_moment(tmp_path: Path, looks: int):
    """In the middle of execve(2) it has no environment."""
    mark = marks.mark_of_attempt(tmp_path, "p", 1)
    environment = {marks.VARIABLE: mark}
    child = subprocess.Popen([sys.executable, "-S", "-E", CHILDREN / "execve_for_ever.py"], env=environment)
    try:
        wait_until(lambda: marks.read_mark(child.pid) == mark, "it has begun")
        for _ in range(looks):
            assert [process.pid for process in marks.processes_of_attempt(mark)] == [child.pid]
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def locked(folder: Path, user: int, environment: dict[str, str] | None = None) -> Iterator[int]:
    """The pid of a process of that user whose environment can't be read."""
    let_others_in(folder)
    script = folder / "memory_locked.py"
    script.write_bytes((CHILDREN / "memory_locked.py").read_bytes())
    script.chmod(0o644)
    with SilentMount(folder / "mount") as mount:
        command = ["/usr/bin/python3", str(script), str(mount.file)]
        with subprocess.Popen(command, user=user, env=environment or {}, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            waits_in = Path(f"/proc/{process.pid}/wchan")
            wait_until(lambda: waits_in.read_text() not in ("", "0"), "it waits for its memory")
            yield process.pid
            process.kill()
            mount.abort()


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_process_that_does_not_answer_keeps_nobody_from_the_others(marked: tuple[str, int], tmp_path: Path) -> None:
    mark, pid = marked
    with locked(tmp_path, 41001):
        began = time.monotonic()
        first = marks.processes_of_attempt(mark)
        first_s = time.monotonic() - began
        is_new = True
        while is_new:  # one that another test has made meanwhile is waited for too
            known, began = set(environments._unanswered), time.monotonic()
            again = marks.processes_of_attempt(mark)
            again_s, is_new = time.monotonic() - began, not known >= set(environments._unanswered)

    assert [process.pid for process in first] == [process.pid for process in again] == [pid]
    assert environments.ENVIRONMENT_LIMIT_S <= first_s < environments.ENVIRONMENT_LIMIT_S + 2.0
    assert again_s < 2.0
    environments._unanswered.clear()


LOOK = """
import resource, sys
from supervisor.host.processes import marks
resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))
print(*(process.pid for process in marks.processes_of_attempt(sys.argv[1])))
"""


@pytest.mark.hostile
def test_an_environment_that_is_said_to_be_a_terabyte_costs_its_reader_little(marked: tuple[str, int]) -> None:
    """Any user can say so, and the daemon looks at the processes of all."""
    mark, pid = marked
    command = [sys.executable, "-I", CHILDREN / "environment_claimed.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"claimed\n":
            pytest.skip("this kernel refuses that word (CONFIG_CHECKPOINT_RESTORE)")
        looked = subprocess.check_output([sys.executable, "-c", LOOK, mark], timeout=60)
        process.communicate()

    assert looked.split() == [b"%d" % pid]


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_who_sends_a_notification_and_does_not_answer_holds_the_loop_up_once(tmp_path: Path) -> None:
    async def look(pid: int) -> list[float]:
        (tmp_path / "p").mkdir()
        notify, took_s = NotifySocket(tmp_path / "p", (41001, 41001), "mark", print, print), list[float]()
        for _ in range(3):
            began = time.monotonic()
            assert not notify._is_ours(pid, 41001)
            took_s.append(time.monotonic() - began)
        notify.close()
        return took_s

    with locked(tmp_path, 41001) as pid:
        first, *others = asyncio.run(look(pid))

    assert first < 2 * environments.LOOP_LIMIT_S
    assert max(others) < 0.1
    environments._unanswered.clear()


def test_another_that_got_its_number_meanwhile_is_not(marked: tuple[str, int], monkeypatch: pytest.MonkeyPatch):
    mark, pid = marked
    other = subprocess.Popen(["/bin/sleep", "60"])
    numbers = {pid: pid}  # to whose /proc a number leads

    read = marks._read
    monkeypatch.setattr(marks, "_read", lambda number: read(numbers.get(number, number)))
    monkeypatch.setattr(marks.psutil, "pids", lambda: [pid])
    monkeypatch.setattr(marks.psutil, "Process", lambda number: numbers.update({number: other.pid}))
    try:
        found = marks.processes_of_attempt(mark)
    finally:
        other.kill()
        other.wait()

    assert found == []


def test_daemon_with_the_same_path_elsewhere_does_not_own_the_processes(marked: tuple[str, int], tmp_path: Path):
    """As in two containers, each with a state folder of its own at this path."""
    mark, pid = marked
    (tmp_path / marks.KEY_FILE).write_bytes(os.urandom(32))

    assert marks.processes_of_daemon(tmp_path) == {}
    assert [process.pid for process in marks.processes_of_attempt(mark)] == [pid]


@pytest.mark.parametrize("signature", ["", ":", f":{'0' * 32}", ":\udcff"])
def test_mark_that_the_daemon_did_not_sign_is_nobodys(signature: str, tmp_path: Path):
    marks.mark_of_attempt(tmp_path, "p", 1)
    forged = {**os.environ, marks.VARIABLE: f"{tmp_path}:p:1000000000{signature}"}
    child = subprocess.Popen(["/bin/sleep", "60"], env=forged)
    try:
        found = marks.processes_of_daemon(tmp_path)
    finally:
        child.kill()
        child.wait()

    assert found == {}
    assert not marks.is_of_program(forged[marks.VARIABLE], tmp_path, "p")


def test_key_that_is_damaged_is_made_again(tmp_path: Path):
    (tmp_path / marks.KEY_FILE).write_bytes(b"short")

    mark = marks.mark_of_attempt(tmp_path, "p", 1)

    assert marks.is_of_program(mark, tmp_path, "p")
    assert len((tmp_path / marks.KEY_FILE).read_bytes()) == 32


def test_parts_of_a_mark_are_read_back(tmp_path: Path):
    attempt = marks.mark_of_attempt(tmp_path, "group:p", 7)
    standby = marks.mark_of_standby(tmp_path, "group:p", "3f")

    assert [marks.program_of(each) for each in (attempt, standby)] == ["group:p"] * 2
    assert [marks.attempt_of(each) for each in (attempt, standby)] == [7, 0]
    assert [marks.is_standby(each) for each in (attempt, standby)] == [False, True]
    assert not marks.is_of_program(attempt, tmp_path, "p")
