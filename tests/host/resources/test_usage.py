"""What trees of processes use, by real ones."""

import os
import subprocess
import sys

import pytest

from supervisor.host.resources import usage
from tests.waiting import wait_until

BUSY = "import subprocess, sys; print('up', flush=True); subprocess.run(['sleep', '100'])"
EATER = "x = bytearray(64 << 20); print('up', flush=True); input()"


def started(*command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


def ended(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        os.killpg(process.pid, 9)
        process.communicate()


def test_the_parent_and_the_session_of_a_process_are_told_and_of_none_nothing():
    assert usage.parent_and_session(os.getpid()) == (os.getppid(), os.getsid(0))
    assert usage.parent_and_session((1 << 31) - 1) is None


@pytest.mark.integration
def test_a_tree_is_the_process_and_what_it_started():
    parent = started(sys.executable, "-c", BUSY)
    try:
        wait_until(lambda: usage.usage_of_trees({parent.pid})[parent.pid].processes >= 2)
        found = usage.usage_of_trees({parent.pid})[parent.pid]

        assert found.processes == 2 and parent.pid in found.pids
    finally:
        ended(parent)


@pytest.mark.integration
def test_memory_is_that_of_each_tree():
    small, large = started("sh", "-c", "echo up; read x"), started(sys.executable, "-c", EATER)
    try:
        found = usage.usage_of_trees({small.pid, large.pid})

        assert found[large.pid].memory_bytes > 64 << 20 > found[small.pid].memory_bytes > 0
    finally:
        ended(small, large)


@pytest.mark.integration
def test_processor_time_only_grows_by_what_was_used():
    spinner = started(sys.executable, "-c", "print('up', flush=True)\nwhile True: pass")
    try:
        first = usage.usage_of_trees({spinner.pid})[spinner.pid].cpu_s
        wait_until(lambda: usage.usage_of_trees({spinner.pid})[spinner.pid].cpu_s >= first + 0.1)
    finally:
        ended(spinner)


@pytest.mark.integration
def test_exited_processes_are_left_out():
    gone = started("sh", "-c", "echo up")
    gone.communicate()

    assert usage.usage_of_trees({gone.pid}) == {}
