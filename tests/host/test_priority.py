"""A process group as the last of all, and as everybody again; its threads and children too."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.host import priority

THREADS = "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(2)]"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes nice back")
def test_all_threads_of_the_group_yield_and_come_back():
    child = subprocess.Popen(
        [sys.executable, "-c", f"{THREADS}; print(1, flush=True); time.sleep(60)"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        threads = [int(each.name) for each in Path(f"/proc/{child.pid}/task").iterdir()]
        priority.yield_to_all(child.pid)
        yielding = {os.getpriority(os.PRIO_PROCESS, each) for each in threads}, psutil.Process(child.pid).ionice()[0]
        priority.as_everybody(child.pid)
        back = {os.getpriority(os.PRIO_PROCESS, each) for each in threads}, psutil.Process(child.pid).ionice()[0]
    finally:
        child.kill()
        child.communicate()

    assert len(threads) == 3
    assert yielding == ({19}, psutil.IOPRIO_CLASS_IDLE)
    assert back == ({0}, psutil.IOPRIO_CLASS_NONE)


def test_a_group_that_is_gone_is_left_alone():
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()

    priority.yield_to_all(child.pid)
    priority.as_everybody(child.pid)
