"""Nothing of a job outlives it, whatever it did, where there is a control group; elsewhere status says what can."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.protocol.wire import lines, messages
from tests.reading import alive
from tests.system.delegated import Inside, group
from tests.system.harness import Daemon

pytestmark = [pytest.mark.hostile, pytest.mark.integration]

ESCAPES = """
import os, sys, time
folder = sys.argv[1]
for number in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sh", ["sh", "-c", f"echo $$ >> {folder}/pids; exec sleep 1000"], {})
        os._exit(0)
while not os.path.exists(folder + "/pids") or len(open(folder + "/pids").read().split()) < 5:
    time.sleep(0.001)
"""
"""Five times: left the session, no environment, no parents."""
CRASHES = ESCAPES + "os.kill(os.getpid(), 9)\n"
LIMITS = "flush_timeout=1\nstopwaitsecs=2\n"
WAITS = ESCAPES + "time.sleep(1000)\n"


@pytest.fixture
def given() -> Iterator[Path]:
    with group() as folder:
        yield folder


def job(folder: Path, script: str, keys: str = "autorestart=false\nstandby=off") -> str:
    (folder / "job.py").write_text(script)
    return (
        f"[program:p]\ncommand={sys.executable} {folder}/job.py {folder}\ncheckpoint_dir={folder}/c\n{LIMITS}{keys}\n"
    )


def escaped(folder: Path) -> list[int]:
    return list(map(int, (folder / "pids").read_text().split())) if (folder / "pids").exists() else []


@pytest.mark.parametrize("attempt", range(4))
def test_what_escapes_just_before_a_crash_ends_with_it(given: Path, tmp_path: Path, attempt: int) -> None:
    with Inside(given, tmp_path, job(tmp_path, CRASHES)) as daemon:
        daemon.until(lambda: len(escaped(tmp_path)) >= 5, "they are there")
        daemon.until(lambda: not any(map(alive, escaped(tmp_path))), "all of it is gone")
        daemon.until(lambda: daemon.status("p")["pid"] is None, "its end is explained")


def test_what_a_daemon_that_died_left_is_ended_by_the_next_although_its_worker_is_gone(
    given: Path, tmp_path: Path
) -> None:
    with Inside(given, tmp_path, job(tmp_path, WAITS)) as daemon:
        daemon.until(lambda: len(escaped(tmp_path)) == 5, "they are there")
        pid = daemon.status("p")["pid"]
        daemon.die()
        psutil.Process(pid).kill()
        assert all(map(alive, escaped(tmp_path)))
        left = escaped(tmp_path)
        (tmp_path / "pids").unlink()
        daemon.start()
        daemon.until(lambda: not any(map(alive, left)), "all of it is gone")


def test_a_daemon_that_comes_back_knows_the_group_of_a_worker_that_runs_on(given: Path, tmp_path: Path) -> None:
    with Inside(given, tmp_path, job(tmp_path, WAITS)) as daemon:
        daemon.until(lambda: len(escaped(tmp_path)) == 5, "they are there")
        before = daemon.status("p")
        daemon.die()
        daemon.start()
        after = daemon.until(lambda: (found := daemon.status("p"))["pid"] and found, "it is adopted")
        assert (after["pid"], after["cgroup"]) == (before["pid"], before["cgroup"])
        assert all(map(alive, escaped(tmp_path)))
        daemon.call("stop", name="p")
        daemon.until(lambda: not any(map(alive, escaped(tmp_path))), "all of it is gone")


def test_what_a_standby_starts_ends_with_it(given: Path, tmp_path: Path) -> None:
    """It escapes while it loads, long before it becomes an attempt."""
    with Inside(given, tmp_path, job(tmp_path, WAITS, "standby=warm")) as daemon:
        daemon.until(lambda: len(escaped(tmp_path)) >= 5, "the worker's are there")
        with (tmp_path / "state/run/p/a1/from-worker").open("wb") as pipe:
            pipe.write(lines.encode_message(messages.Progress(1, 1)))
        daemon.until(lambda: len(escaped(tmp_path)) == 10, "and those of its standby")
        daemon.call("stop", name="p")
        daemon.until(lambda: not any(map(alive, escaped(tmp_path))), "all of it is gone")
        daemon.until(lambda: not list(given.glob("job-*")), "and so are the groups")


@pytest.mark.parametrize(
    ("keys", "says"),
    [("checkpoint_dir=c", "2 s before a crash, as"), ("killasgroup=true", "or also lost its parent"), ("", None)],
)
def test_without_a_control_group_status_says_what_can_escape(tmp_path: Path, keys: str, says: str | None) -> None:
    with Daemon(tmp_path, f"[program:p]\ncommand=/bin/sleep 1000\n{keys}\n") as daemon:
        daemon.until(lambda: daemon.status("p")["pid"], "it runs")
        found = daemon.status("p")

    if found["cgroup"] is not None:
        pytest.skip("there is a control group here")
    assert (found["can_outlive"] is None) == (says is None)
    assert says is None or says in found["can_outlive"]
