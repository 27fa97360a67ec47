"""What is ended when the service ends: nothing after a crash, everything after a stop, workers first."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.host.processes import marks
from supervisor.host.service.service_end import (
    end_processes,
    is_final_stop,
    parse_job_type,
    processes_in,
)
from supervisor.host.service.systemd import SystemdNotifier
from tests.reading import content
from tests.waiting import wait_until

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy
HEEDS_TERM = 'trap "sleep 0.2; echo $0 left >>$1; exit" TERM; echo $0 began >>$1; while :; do sleep 0.05; done'


@pytest.mark.parametrize(
    ("result", "status", "job", "for_good"),
    [
        ("success", "0", "stop", True),
        ("success", "0", None, True),
        ("success", "0", "restart", False),
        ("signal", "KILL", None, False),
        ("signal", "KILL", "stop", True),
        ("signal", "KILL", "restart", False),
        ("watchdog", "ABRT", None, False),
        ("timeout", "KILL", "stop", True),
        ("timeout", "KILL", "restart", False),
        ("exit-code", "71", None, False),
        ("exit-code", "78", None, True),
        ("exit-code", "78", "restart", False),
    ],
)
def test_a_stop_ends_workers_and_a_crash_does_not(result: str, status: str, job: str | None, for_good: bool):
    assert is_final_stop({"SERVICE_RESULT": result, "EXIT_STATUS": status}, job) is for_good


def test_the_job_of_a_unit_is_found_among_others():
    listed = "  7 other.service stop waiting\n 12 stepkeeper.service restart running\n"

    assert parse_job_type("stepkeeper.service", listed) == "restart"
    assert parse_job_type("keeper.service", listed) is None
    assert parse_job_type("stepkeeper.service", "No jobs running.\n") is None


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for each in started:
        each.kill()
        each.wait()


def start(name: str, said: Path, children: list[subprocess.Popen[bytes]], **environment: str) -> psutil.Process:
    """A process that notes when it began and when it left; returns once it would heed SIGTERM."""
    command = ["sh", "-c", HEEDS_TERM, name, str(said)]
    child = subprocess.Popen(command, start_new_session=True, env={**os.environ, **environment})
    children.append(child)
    wait_until(lambda: f"{name} began".encode() in content(said), f"{name} begins")
    return psutil.Process(child.pid)


@pytest.mark.integration
async def test_workers_flush_before_what_writes_their_logs_is_told(
    tmp_path: Path, children: list[subprocess.Popen[bytes]]
):
    said = tmp_path / "said"
    keeper = start("keeper", said, children)
    worker = start("worker", said, children, **{marks.VARIABLE: "/state:job:1"})

    await end_processes([keeper, worker], SystemdNotifier({}))

    assert said.read_text().split() == ["keeper", "began", "worker", "began", "worker", "left", "keeper", "left"]


@pytest.mark.integration
def test_the_processes_of_a_control_group_are_found_but_oneself(
    tmp_path: Path, children: list[subprocess.Popen[bytes]]
):
    child = start("child", tmp_path / "said", children)

    found = [process.pid for process in processes_in(Path("/proc/self/cgroup").read_text())]

    assert child.pid in found
    assert os.getpid() not in found
    assert processes_in("0::/nobody/is/here\n") == []
