"""What is kept of a process that hangs. Real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes import stacks
from supervisor.protocol import layout
from tests.waiting import wait_until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait()


@pytest.mark.integration
def test_a_process_without_a_handler_is_not_sent_a_signal_that_would_end_it(sleeper: subprocess.Popen, tmp_path: Path):
    asked: list[bool] = []

    text = stacks.collect_stacks(sleeper.pid, tmp_path, lambda: not asked.append(True), 4.0, "why")

    assert asked == []
    assert text.startswith("why\n")
    assert "(the worker has installed no handler" in text


@pytest.mark.integration
def test_a_stopped_process_is_told_from_a_sleeping_one(sleeper: subprocess.Popen):
    assert not stacks.is_stopped(sleeper.pid)

    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: stacks.is_stopped(sleeper.pid))

    assert "T (stopped)" in stacks.describe_threads(sleeper.pid)


@pytest.mark.integration
def test_a_link_in_the_place_of_the_workers_file_is_not_followed(sleeper: subprocess.Popen, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("xyzzy")
    (tmp_path / layout.STACKS).symlink_to(secret)

    text = stacks.collect_stacks(sleeper.pid, tmp_path, lambda: True, 4.0, "why")

    assert "xyzzy" not in text


def test_only_the_last_few_files_stay(tmp_path: Path):
    for attempt in range(8, 13):
        stacks.store_dump(tmp_path, attempt, "text")
    path = stacks.store_dump(tmp_path, 13, "text")

    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"a{number}.txt" for number in (10, 11, 12, 13, 9)]
