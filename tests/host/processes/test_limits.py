"""Limits that children are held to, by real ones that say what they have."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes import limits
from supervisor.host.processes.spawning import SpawnError
from tests.reading import content
from tests.system.harness import Daemon

SOFT = 2048  # more than the process that runs the tests has open
TELLS = "[program:teller]\ncommand=/bin/sh -c '{}; exec sleep 1000'\nstdout_logfile={}\nstartsecs=0\n"


def told(folder: Path, keys: str, says: str = "ulimit -Sn; ulimit -Hn", settings: str = "") -> list[str]:
    """What a program says of its limits, under a daemon that was started with SOFT files."""
    out = folder / "out"
    with Daemon(folder, TELLS.format(says, out) + keys, settings, is_forked=False) as daemon:
        return daemon.until(lambda: (found := content(out).decode().split()) and len(found) == 2 and found, "it says")


@pytest.fixture
def few_files() -> Iterator[int]:
    """The daemons of this test are started with SOFT files, and may have more; how many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


@pytest.mark.integration
@pytest.mark.slow
def test_the_daemon_takes_all_it_may_and_a_reload_knows_what_it_had(tmp_path: Path, few_files: int):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n", is_forked=False) as daemon:
        assert daemon.process is not None
        for _ in range(2):
            pid = daemon.until_state("sleeper", "RUNNING")["pid"]
            most = limits.MOST_FILES if few_files == resource.RLIM_INFINITY else min(few_files, limits.MOST_FILES)
            assert resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)[0] == most
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (SOFT, few_files)
            daemon.call("stop", name="sleeper")
            before = daemon.events("daemon.ready")
            daemon.call("reload")
            daemon.until(lambda seen=before: len(daemon.events("daemon.ready")) > len(seen), "the next one is ready")
            daemon.until(daemon._answers, "it answers")
            daemon.call("start", name="sleeper")


@pytest.mark.integration
def test_a_program_has_the_limits_that_are_set(tmp_path: Path, few_files: int):
    assert told(tmp_path, "limit_nofile=100\n") == ["100", "100"]


@pytest.mark.integration
def test_other_limits_leave_the_files_as_the_daemon_found_them(tmp_path: Path, few_files: int):
    assert told(tmp_path, "limit_core=0\n", "ulimit -Sn; ulimit -c") == [str(SOFT), "0"]


@pytest.mark.integration
def test_a_start_while_many_files_are_open_is_like_any_other(few_files: int, tmp_path: Path):
    """As a daemon of many programs has them."""
    script = f"""
import os, subprocess, sys
from supervisor.host.processes import limits
limits.raise_own_nofile()
def tells():
    how = limits.inherited_nofile() if limits.can_use_inherited_nofile() else None
    if how is None:
        return subprocess.check_output(["sh", "-c", "ulimit -Sn"], preexec_fn=limits.limit_setter("x", {{}}), text=True)
    with how:
        return subprocess.check_output(["sh", "-c", "ulimit -Sn"], text=True)
few, held = tells(), [os.open(os.devnull, os.O_RDONLY) for _ in range({SOFT} + 50)]
print(few.strip(), limits.can_use_inherited_nofile(), tells().strip())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert said.split() == [str(SOFT), "False", str(SOFT)]


@pytest.mark.integration
def test_the_kernel_is_told_whom_to_kill_first(tmp_path: Path):
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\noom_score_adjust=500\n") as daemon:
        pid = daemon.until_state("sleeper", "RUNNING")["pid"]

        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n"


def test_more_than_the_daemon_may_have_is_refused_with_the_remedy():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this process may have any number of files")

    with pytest.raises(SpawnError, match=rf"limit_nofile is {hard + 1}, .* hard limit is {hard}; .*LimitNOFILE="):
        limits.limit_setter("digits", {"limit_nofile": hard + 1})


@pytest.mark.integration
def test_minfds_raises_what_programs_start_with(tmp_path: Path, few_files: int):
    assert told(tmp_path, "", settings=f"minfds={SOFT + 50}") == [str(SOFT + 50), shown(few_files)]


@pytest.mark.integration
def test_more_than_minfds_stays_as_it_is(tmp_path: Path, few_files: int):
    assert told(tmp_path, "", settings=f"minfds={SOFT - 50}\nminprocs=1") == [str(SOFT), shown(few_files)]


@pytest.mark.integration
def test_minfds_that_can_not_be_had_is_why_the_daemon_does_not_start(tmp_path: Path):
    daemon = Daemon(tmp_path, "", f"minfds={1 << 30}")  # above what the kernel allows anybody (fs.nr_open)

    with pytest.raises(AssertionError, match="exited with 71"):
        daemon.start()
    assert f"cannot set minfds to {1 << 30}: the hard limit of this process is" in daemon.errors()


def test_a_chief_that_may_not_have_so_many_connections_says_so(few_files: int):
    limits.require_files(SOFT, "hold the connections of 1900 nodes")
    with pytest.raises(
        limits.LimitError, match=r"cannot hold the connections of 2000 nodes: .*2128 .*2048.*ulimit -Hn"
    ):
        limits.require_files(2128, "hold the connections of 2000 nodes")
