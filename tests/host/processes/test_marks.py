"""Who bears a mark of ours, and who only has the number of one that did."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes import marks

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

    assert [each.pid for each in marks.processes_of_attempt(mark)] == [pid]
    assert [each.pid for each in marks.processes_of_daemon(tmp_path)[mark]] == [pid]


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
