"""A process group as the last of all, and as everybody again; its threads and children too."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor.host.processes import priority
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

NOBODY = 65534
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
        threads = [int(path.name) for path in Path(f"/proc/{child.pid}/task").iterdir()]
        priority.lower_priority(child.pid)
        yielding = _ranks(threads), psutil.Process(child.pid).ionice()[0]
        priority.raise_priority(child.pid)
        raised = _ranks(threads)
        priority.restore_priority(child.pid)
        back = _ranks(threads), psutil.Process(child.pid).ionice()[0]
    finally:
        child.kill()
        child.communicate()

    assert len(threads) == 3
    assert yielding == ({(19, os.SCHED_IDLE)}, psutil.IOPRIO_CLASS_IDLE)
    assert raised == {(10, os.SCHED_OTHER)}
    assert back == ({(0, os.SCHED_OTHER)}, psutil.IOPRIO_CLASS_NONE)


def _ranks(threads: list[int]) -> set[tuple[int, int]]:
    """Nice value and scheduling policy of each."""
    return {(os.getpriority(os.PRIO_PROCESS, thread), os.sched_getscheduler(thread)) for thread in threads}


def test_yielding_session_gets_the_remaining_cpu():
    burn = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(1, flush=True)\nwhile True: pass"
    cpu = str(min(os.sched_getaffinity(0)))
    pair = [
        subprocess.Popen([sys.executable, "-c", burn, cpu], start_new_session=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for each in pair:
            assert each.stdout is not None and each.stdout.readline()
        priority.lower_priority(pair[0].pid)
        yielding, other = _spent_s(pair, 1.0)
        priority.restore_priority(pair[0].pid)
        back, with_it = _spent_s(pair, 1.0)
    finally:
        for each in pair:
            each.kill()
            each.communicate()

    assert yielding < other / 4
    assert back > with_it / 4


def _spent_s(pair: list[subprocess.Popen[bytes]], until_s: float) -> tuple[float, float]:
    """Processor seconds of both, until they have had so many together."""

    def spent() -> list[float]:
        return [sum(psutil.Process(each.pid).cpu_times()[:2]) for each in pair]

    began = spent()

    def had_so_much() -> list[float]:
        return now if sum(now := spent()) - sum(began) >= until_s else []

    now = wait_until(had_so_much, f"both have had {until_s:g} processor seconds")
    return now[0] - began[0], now[1] - began[1]


def test_a_process_that_yields_does_so_to_other_sessions_too():
    said = (
        "import os; from pathlib import Path; from supervisor.host.processes import priority; "
        "priority.yield_to_others(7); share = Path('/proc/self/autogroup'); "
        "print(os.nice(0), share.read_text().split()[-1] if share.exists() else os.nice(0))"
    )
    child = subprocess.run(
        [sys.executable, "-c", said], start_new_session=True, capture_output=True, text=True, check=True
    )

    assert child.stdout.split() == [str(min(19, os.nice(0) + 7))] * 2


def test_a_group_that_is_gone_is_left_alone():
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()

    priority.lower_priority(child.pid)
    priority.restore_priority(child.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_plain_user_is_told_when_to_ask_again():
    child = subprocess.Popen(["sleep", "60"], start_new_session=True, user=NOBODY)
    share = Path(f"/proc/{child.pid}/autogroup")
    if not share.exists():
        child.kill()
        pytest.skip("this kernel does not group processes by session")
    asker = os.fork()
    if asker == 0:
        lied = True
        with contextlib.suppress(BaseException):
            os.setuid(NOBODY)
            lied = any(_lies(child.pid, share) for _ in range(10))
        os._exit(lied)
    status = os.waitpid(asker, 0)[1]
    child.kill()
    child.wait()

    assert os.waitstatus_to_exitcode(status) == 0


def _lies(group: int, share: Path) -> bool:
    """Whether its answer was another than what the kernel has now."""
    priority.lower_priority(group)
    yields = share.read_text().endswith("nice 19\n")
    for _ in range(100):
        is_back = priority.restore_priority(group)
        if share.read_text().endswith("nice 0\n") != (is_back or not yields):
            return True
        if is_back:
            return False
        time.sleep(0.02)
    return True
