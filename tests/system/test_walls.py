"""Limits that the kernel holds, under a daemon whose control group is its own to divide (v2, memory and cpu)."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.host import cgroup
from tests.system.harness import Daemon

ONCE = "[ -e ate ] && exec sleep 1000; touch ate; exec {python} -c 'x = bytes([1]) * (1 << 30)'"
"""A gigabyte at once: faster than anybody looks."""
BURN = "while True: pass"


@pytest.fixture
def given() -> Iterator[Path]:
    """A group with both controllers, as systemd gives one away; skips where none can be had."""
    mount = cgroup.mounted(Path("/proc/self/mounts").read_text())
    if mount is None:
        pytest.skip("no unified cgroup tree is mounted")
    folder = mount / f"stepkeeper-test-{uuid.uuid4().hex[:8]}"
    try:
        (mount / "cgroup.subtree_control").write_text("+memory +cpu")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no group with memory and cpu can be made in {mount}: {error.strerror}")
    os.setxattr(folder, "user.delegate", b"1")
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            cgroup.Cgroup(path).remove()
    cgroup.Cgroup(folder).remove()


class Inside(Daemon):
    """A daemon that begins in a group."""

    group: Path

    def launch(self) -> None:
        enter = (
            f"import os, sys; open({str(self.group / 'cgroup.procs')!r}, 'w').write('0'); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", enter, *command], cwd=self.folder, env=self.environment, stderr=errors
            )


def inside(given: Path, folder: Path, programs: str) -> Inside:
    daemon = Inside(folder, programs)
    daemon.group = given
    return daemon


def test_a_gigabyte_at_once_meets_the_wall_and_the_history_says_so(given: Path, tmp_path: Path):
    (tmp_path / "run.sh").write_text(ONCE.format(python=sys.executable))
    keys = f"directory={tmp_path}\nmemory_limit=100MB\nstartsecs=0\nstopwaitsecs=1000\n"
    with inside(given, tmp_path, f"[program:p]\ncommand=/bin/sh {tmp_path}/run.sh\n{keys}") as daemon:
        daemon.until(lambda: len(daemon.call("history", name="p")["attempts"]) >= 2, "it starts again")
        first = daemon.call("history", name="p")["attempts"][0]

    assert "by the kernel as memory ran out" in first["text"] and "job-p.a1" in first["text"], first


def test_a_program_has_no_more_of_the_processors_than_its_limit(given: Path, tmp_path: Path):
    programs = f"[program:p]\ncommand={sys.executable} -c '{BURN}'\ncpu_limit=0.3\n"
    with inside(given, tmp_path, programs) as daemon:
        process = psutil.Process(daemon.until_state("p", "RUNNING")["pid"])
        began_at, before = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(3)
        used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began_at)

    assert used < 0.4
