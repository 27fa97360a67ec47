"""Hundreds of programs at once: more than the daemon takes connections, and one command for all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.control.http.connection import MAX_CONNECTIONS
from tests.system.harness import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = """[program:w]
command=/bin/sleep 100000
process_name=%(process_num)04d
numprocs={count}
autostart=false
startsecs=1
stdout_logfile=NONE
stderr_logfile=NONE
"""


def ctl(daemon: Daemon, *arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("count", [MAX_CONNECTIONS + 20, pytest.param(1000, marks=pytest.mark.nightly)])
def test_they_start_in_order_and_stop_by_one_command_each(tmp_path: Path, count: int) -> None:
    names = [f"w:{number:04d}" for number in range(count)]
    with Daemon(tmp_path, PROGRAMS.format(count=count), is_forked=False) as daemon:
        status, lines = ctl(daemon, "start", "all")
        assert (status, sorted(lines)) == (0, [f"{name}: started" for name in names])

        up = daemon.call("status")["programs"]
        assert [each["name"] for each in sorted(up, key=lambda each: each["started_wall_at"])] == names

        status, lines = ctl(daemon, "signal", "CONT", "w:*")
        assert (status, len(lines)) == (0, count)

        status, lines = ctl(daemon, "stop", "all")
        assert (status, sorted(lines)) == (0, [f"{name}: stopped" for name in names])
