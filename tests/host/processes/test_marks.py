"""Who bears a mark of ours, and who only has the number of one that did."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes import marks
from tests.places import CHILDREN
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


def test_one_that_replaces_its_program_is_found_at_every_moment(tmp_path: Path):
    """In the middle of execve(2) it has no environment."""
    mark = marks.mark_of_attempt(tmp_path, "p", 1)
    environment = {marks.VARIABLE: mark}
    child = subprocess.Popen([sys.executable, "-S", "-E", CHILDREN / "execve_for_ever.py"], env=environment)
    try:
        wait_until(lambda: marks.read_mark(child.pid) == mark, "it has begun")
        for _ in range(1000):
            assert [process.pid for process in marks.processes_of_attempt(mark)] == [child.pid]
    finally:
        child.kill()
        child.wait()


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
