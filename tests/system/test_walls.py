"""Limits that the kernel holds, under a daemon whose control group is its own to divide (v2, memory and cpu)."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.delegated import Inside, group

ONCE = "[ -e ate ] && exec sleep 1000; touch ate; exec {python} -c 'x = bytes([1]) * (1 << 30)'"
"""A gigabyte at once: faster than anybody looks."""
BURN = "while True: pass"


@pytest.fixture
def given() -> Iterator[Path]:
    with group("memory", "cpu") as folder:
        yield folder


def test_a_gigabyte_at_once_meets_the_wall_and_the_history_says_so(given: Path, tmp_path: Path):
    (tmp_path / "run.sh").write_text(ONCE.format(python=sys.executable))
    keys = f"directory={tmp_path}\nmemory_limit=100MB\nstartsecs=0\nstopwaitsecs=1000\n"
    with Inside(given, tmp_path, f"[program:p]\ncommand=/bin/sh {tmp_path}/run.sh\n{keys}") as daemon:
        daemon.until(lambda: len(daemon.call("history", name="p")["attempts"]) >= 2, "it starts again")
        first = daemon.call("history", name="p")["attempts"][0]

    assert any(words in first["text"] for words in ("memory ran out", "ran out of memory")), first
    assert "job-p.a1" in first["text"], first


def test_a_program_has_no_more_of_the_processors_than_its_limit(given: Path, tmp_path: Path):
    programs = f"[program:p]\ncommand={sys.executable} -c '{BURN}'\ncpu_limit=0.3\n"
    with Inside(given, tmp_path, programs) as daemon:
        process = psutil.Process(daemon.until_state("p", "RUNNING")["pid"])
        began_at, before = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(3)
        used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began_at)

    assert used < 0.4


def test_status_says_which_control_group_holds_a_program(tmp_path: Path):
    with (
        group() as folder,
        Inside(folder, tmp_path, "[program:p]\ncommand=/bin/sleep 1000\n") as daemon,
    ):
        said = daemon.until_state("p", "RUNNING")
        processes = Path(said["cgroup"], "cgroup.procs").read_text().split()

    assert processes == [str(said["pid"])]
