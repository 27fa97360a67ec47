"""Processes that left the session of their program and cleared their environment end with it."""

import os
import signal
import time
from pathlib import Path

import pytest

from supervisor.runner.fleet.watches.descendants import NOTED_EVERY_S
from tests.reading import alive
from tests.system.harness import Daemon, job

pytestmark = pytest.mark.slow

ENDLESS = 1_000_000


def detached(daemon: Daemon, folder: Path) -> int:
    """The pid of the detached process, once the job trains."""
    daemon.until_step("count", 5)
    return pid_in(daemon, folder / "detached")


def pid_in(daemon: Daemon, file: Path) -> int:
    return int(daemon.until(lambda: file.read_text().strip() if file.exists() else "", "it is there"))


def test_it_ends_when_the_job_is_stopped(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, DETACHED=1)) as daemon:
        pid = detached(daemon, tmp_path / "count")
        assert alive(pid)

        daemon.call("stop", name="count")

        daemon.until(lambda: not alive(pid), "it has ended")


def test_it_ends_when_the_worker_ignores_the_stop_signal(tmp_path: Path):
    keys = "stopwaitsecs=1\nflush_timeout=1"
    programs = job("count", tmp_path, keys, STEPS=ENDLESS, DETACHED=1, FAIL="ignore-term", FLUSH_S=60)
    with Daemon(tmp_path, programs) as daemon:
        pid = detached(daemon, tmp_path / "count")

        daemon.call("stop", name="count")

        daemon.until(lambda: not alive(pid), "it has ended")


def test_it_ends_when_the_worker_crashes(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, DETACHED=1)) as daemon:
        pid, worker = detached(daemon, tmp_path / "count"), daemon.status("count")["pid"]
        time.sleep(2 * NOTED_EVERY_S)

        os.kill(worker, signal.SIGKILL)

        daemon.until(lambda: not alive(pid), "it has ended")


def test_it_ends_with_a_worker_that_a_later_daemon_adopted(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=ENDLESS, DETACHED=1)) as daemon:
        pid, worker = detached(daemon, tmp_path / "count"), daemon.status("count")["pid"]
        daemon.die()
        daemon.start()
        assert daemon.until_state("count", "RUNNING")["pid"] == worker

        daemon.call("stop", name="count")

        daemon.until(lambda: not alive(pid), "it has ended")


@pytest.mark.hostile
def test_what_its_health_check_leaves_ends_with_a_job(tmp_path: Path):
    """The command may be a script of the job's user, who could leave anything that way."""
    left, new = tmp_path / "left", tmp_path / "new"
    in_session = f"echo $$ > {new}; mv {new} {left}; exec sleep 600"
    until_left = f"while [ ! -e {left} ]; do sleep 0.1; done"  # one that is still in its group ends with the command
    (tmp_path / "check.sh").write_text(f"[ -e {left} ] && exit\nsetsid /bin/sh -c '{in_session}' &\n{until_left}\n")
    check = f"healthcheck_command=/bin/sh {tmp_path}/check.sh\nhealthcheck_interval=0.5"
    with Daemon(tmp_path, job("count", tmp_path, check, STEPS=ENDLESS)) as daemon:
        pid = pid_in(daemon, left)
        assert alive(pid)

        daemon.call("stop", name="count")

        daemon.until(lambda: not alive(pid), "it has ended")


def test_child_outlives_a_plain_program_that_is_killed_alone_as_in_supervisor(tmp_path: Path):
    (tmp_path / "program.sh").write_text(
        f"sleep 600 &\necho $! > {tmp_path}/left\ntrap '' TERM\nwhile :; do sleep 0.1; done\n"
    )
    program = f"[program:plain]\ncommand=/bin/sh {tmp_path}/program.sh\nstopwaitsecs=1\n"
    with Daemon(tmp_path, program) as daemon:
        daemon.until_state("plain", "RUNNING")
        pid = pid_in(daemon, tmp_path / "left")
        try:
            daemon.call("stop", name="plain")

            assert alive(pid)
        finally:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_it_ends_with_a_plain_program_that_is_ended_as_a_whole(tmp_path: Path, how: str):
    left = f"setsid env -i /bin/sh -c 'echo $$ > {tmp_path}/left; exec sleep 600'"
    (tmp_path / "program.sh").write_text(f"{left} &\nexec sleep 600\n")
    program = f"[program:plain]\ncommand=/bin/sh {tmp_path}/program.sh\nkillasgroup=true\n"
    with Daemon(tmp_path, program) as daemon:
        running = daemon.until_state("plain", "RUNNING")
        pid = pid_in(daemon, tmp_path / "left")
        assert alive(pid) and os.getsid(pid) == pid

        if how == "stopped":
            daemon.call("stop", name="plain")
        else:
            time.sleep(2 * NOTED_EVERY_S)
            os.kill(running["pid"], signal.SIGKILL)

        daemon.until(lambda: not alive(pid), "it has ended", patience_s=20.0)
