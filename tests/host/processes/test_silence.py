"""What a look at a silent process shows, of real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.failures.looks import Call, ThreadLook, TreeLook, compare_looks
from supervisor.host.processes import system_calls
from supervisor.host.processes.silence import Wait, look_at_tree, read_wait
from supervisor.host.processes.stacks import main_thread_frames
from supervisor.protocol import layout
from tests.waiting import wait_until

pytestmark = pytest.mark.integration


SIGNALS = Path(__file__).parents[3] / "worker" / "process" / "signals.py"


class Children:
    """Python children in sessions of their own."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str) -> int:
        child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdin=subprocess.PIPE)
        self._started.append(child)
        return child.pid

    def end(self) -> None:
        """The last first: what another one traces can't be waited for before that one has ended."""
        for child in reversed(self._started):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.communicate()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.end()


def look_at(pid: int) -> TreeLook:
    look = look_at_tree(pid, pid)
    assert look is not None
    return look


def main_thread(pid: int) -> ThreadLook:
    return next(thread for thread in look_at(pid).threads if thread.tid == pid)


def until_waits(pid: int, where: str) -> ThreadLook:
    wait_until(lambda: where in main_thread(pid).waits_in, f"it waits in {where}", details=lambda: main_thread(pid))
    return main_thread(pid)


def test_a_sleep_says_when_it_ends(children: Children):
    thread = until_waits(children.start("import time; time.sleep(1000)"), "nanosleep")

    assert thread.is_timed and thread.wakes_in_s is not None and 900 < thread.wakes_in_s <= 1000


def test_a_lock_with_a_limit_says_when_it_ends_and_one_without_that_it_does_not(children: Children):
    script = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire(timeout={})"
    for limit, is_timed in ((500, True), (-1, False)):
        thread = until_waits(children.start(script.format(limit)), "futex")

        assert thread.is_timed is is_timed
        assert thread.wakes_in_s is None if not is_timed else 400 < (thread.wakes_in_s or 0.0) <= 500


@pytest.mark.parametrize(("limit_s", "wakes_in_s"), [(None, None), (700, 700.0)])
def test_a_poll_says_its_limit(children: Children, limit_s: int | None, wakes_in_s: float | None):
    script = f"import select, os; r, w = os.pipe(); select.select([r], [], [], {limit_s})"

    thread = until_waits(children.start(script), "select")

    assert (thread.is_timed, thread.wakes_in_s) == (limit_s is not None, pytest.approx(wakes_in_s))


def test_a_process_that_nothing_wakes_sleeps_through_and_one_that_polls_does_not(children: Children):
    asleep = children.start("import os; r, w = os.pipe(); os.read(r, 1)")
    polling = children.start("import time\nwhile True: time.sleep(0.01)")
    until_waits(asleep, "read")
    until_waits(polling, "nanosleep")

    shown = {}
    for pid in (asleep, polling):
        first, switches = look_at(pid), main_thread(polling).switches
        wait_until(lambda switches=switches: main_thread(polling).switches > switches + 3, "it polls")
        shown[pid] = compare_looks([first, look_at(pid)], 0.0, 1.0)

    assert shown[asleep].threads[0].slept and not shown[polling].threads[0].slept
    assert shown[asleep].io_bytes == 0


def test_bytes_of_a_child_are_counted_and_the_state_of_a_stopped_one_is_seen(children: Children):
    script = "import os\nzeros = open('/dev/zero', 'rb', 0)\nif os.fork() == 0:\n    while 1: zeros.read(99)\nos.wait()"
    reader = children.start(script)
    until_waits(reader, "wait4")
    wait_until(lambda: len(look_at(reader).threads) == 2, "its child runs")
    before = look_at(reader).io_bytes or 0
    wait_until(lambda: (look_at(reader).io_bytes or 0) > before + 100_000, "bytes of the child count")

    os.killpg(reader, signal.SIGSTOP)

    wait_until(lambda: {thread.state for thread in look_at(reader).threads} == {"T"}, "both are stopped")


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    group = FREEZER / f"stepkeeper-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group with a freezer (cgroup v1) can be made here")
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "its processes are gone")
    group.rmdir()


def test_a_process_whose_control_group_is_frozen_is_seen_as_that(freezer: Path, children: Children):
    pid = children.start("import time; time.sleep(1000)")
    (freezer / "cgroup.procs").write_text(str(pid))
    assert not look_at(pid).is_frozen

    (freezer / "freezer.state").write_text("FROZEN")
    wait_until(lambda: look_at(pid).is_frozen, "it is frozen")

    (freezer / "freezer.state").write_text("THAWED")
    wait_until(lambda: not look_at(pid).is_frozen, "it goes on")


def test_a_debugger_is_seen(children: Children):
    pid = children.start("import time; time.sleep(1000)")
    until_waits(pid, "nanosleep")
    script = f"import ctypes, time\nassert ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0\ntime.sleep(1000)"

    tracer = children.start(script)

    wait_until(lambda: look_at(pid).traced_by == tracer, "it is traced")


def test_a_worker_that_is_not_in_the_tree_is_not_looked_at(children: Children):
    pid = children.start("import time; time.sleep(1000)")

    assert look_at_tree(pid, os.getpid()) is None
    assert look_at_tree(2**22 + 1, 2**22 + 1) is None


def test_a_look_takes_some_milliseconds(children: Children):
    script = "import threading\nfor _ in range(300): threading.Thread(target=threading.Event().wait).start()"
    pid = children.start(script)
    wait_until(lambda: len(look_at(pid).threads) > 300, "it has its threads")

    began_at = time.process_time()
    look_at(pid)

    assert time.process_time() - began_at < 0.5


def test_the_frames_of_the_main_thread_come_from_its_own_handler_and_the_file_does_not_grow(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/nonexistent")  # without py-spy
    script = (
        "import importlib.util, pathlib, threading\n"
        f"spec = importlib.util.spec_from_file_location('s', '{SIGNALS}')\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        f"module.dump_stacks_on_signal(pathlib.Path('{tmp_path}'))\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def endless():\n    while True: pass\n"
        "def outer():\n    endless()\n"
        "outer()"
    )
    pid = children.start(script)
    wait_until((tmp_path / "stacks").exists, "it has a handler")

    def ask() -> tuple[str, ...]:
        return main_thread_frames(tmp_path, pid, lambda: os.kill(pid, layout.STACKS_SIGNAL) is None, 2.0)

    wait_until(lambda: [frame.rpartition(" ")[2] for frame in ask()] == ["endless", "outer", "<module>"], "its frames")
    assert (tmp_path / "stacks").stat().st_size == 0


def test_each_limit_of_a_call_is_read_from_its_own_argument():
    def memory(address: int, size: int) -> bytes:
        return {64: (5).to_bytes(8, "little") + (500_000_000).to_bytes(8, "little")}[address][:size]

    def limit(name: str, *arguments: int) -> float | None:
        return system_calls.wait_limit_s(name, [*arguments, *[0] * (6 - len(arguments))], memory)

    assert limit("poll", 0, 0, 1500) == 1.5
    assert limit("poll", 0, 0, 0xFFFFFFFFFFFFFFFF) is None
    assert limit("epoll_wait", 0, 0, 0, 2000) == 2.0
    assert limit("nanosleep", 64) == 5.5
    assert limit("ppoll", 0, 0, 64) == 5.5 and limit("ppoll") is None
    assert limit("clock_nanosleep", 1, 0, 64) == 5.5
    assert limit("clock_nanosleep", 1, 1, 64) == 0.0, "an absolute time that has passed"
    assert limit("futex", 0, 0, 0, 64) == 5.5 and limit("futex") is None
    assert limit("read") is None
    assert system_calls.wait_limit_s("poll", [], memory) == system_calls.UNREADABLE
    assert limit("") == limit("restart_syscall") == system_calls.UNREADABLE


@pytest.mark.parametrize(
    ("function", "call", "state", "wait"),
    [
        ("hrtimer_nanosleep", "", "S", Wait("hrtimer_nanosleep", is_timed=True)),
        ("futex_do_wait", "", "S", Wait("futex_do_wait", is_timed=True)),
        ("anon_pipe_write", "", "S", Wait("anon_pipe_write")),
        ("rpc_wait_bit_killable", "", "D", Wait("rpc_wait_bit_killable", Call.REMOTE)),
        ("folio_wait_bit", "", "D", Wait("folio_wait_bit", Call.WRITE_BACK, is_timed=True)),
        ("folio_wait_bit", "-1 0x1 0x2", "D", Wait("a page fault (folio_wait_bit)")),
        ("request_wait_answer", "-1 0x1 0x2", "D", Wait("a page fault (request_wait_answer)", Call.REMOTE)),
    ],
)
def test_a_wait_that_is_not_shown_counts_as_what_excuses_it(
    tmp_path: Path, function: str, call: str, state: str, wait: Wait
):
    (tmp_path / "wchan").write_text(function)
    (tmp_path / "syscall").write_text(call)

    assert read_wait(os.getpid(), str(tmp_path), state) == wait
