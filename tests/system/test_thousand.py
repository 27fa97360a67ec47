"""A thousand programs at once: more than the daemon takes connections, and one command for all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.control.http.connection import MAX_CONNECTIONS
from tests.system.harness import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # starts a thousand processes, about 15 s

COUNT = 1000
PROGRAMS = f"""[program:w]
command=/bin/sleep 100000
process_name=%(process_num)04d
numprocs={COUNT}
autostart=false
startsecs=1
stdout_logfile=NONE
stderr_logfile=NONE
"""
NAMES = [f"w:{number:04d}" for number in range(COUNT)]


def ctl(daemon: Daemon, *arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout.splitlines()


def test_a_thousand_programs_start_in_order_and_stop_by_one_command_each(tmp_path: Path) -> None:
    assert COUNT > MAX_CONNECTIONS
    with Daemon(tmp_path, PROGRAMS, is_forked=False) as daemon:
        status, lines = ctl(daemon, "start", "all")
        assert (status, sorted(lines)) == (0, [f"{name}: started" for name in NAMES])

        up = daemon.call("status")["programs"]
        assert [each["name"] for each in sorted(up, key=lambda each: each["started_wall_at"])] == NAMES

        status, lines = ctl(daemon, "signal", "CONT", "w:*")
        assert (status, len(lines)) == (0, COUNT)

        status, lines = ctl(daemon, "stop", "all")
        assert (status, sorted(lines)) == (0, [f"{name}: stopped" for name in NAMES])
