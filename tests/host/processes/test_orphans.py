"""PID 1's duty, in processes that really get orphans: a subreaper, and a daemon in a PID namespace of its own."""

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.host.loop_signals import LoopSignals
from supervisor.host.processes.orphans import OrphanReaper, adopts_orphans, reaping_orphans
from tests.places import CHILDREN
from tests.waiting import TIMEOUT_S, wait_until, wait_until_async

PATIENCE_S = 60.0  # for what takes about a second; the machine may be busy
PR_SET_CHILD_SUBREAPER = 36
LEAVER = CHILDREN / "leaver.py"


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process gets orphans, as PID 1 does."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def zombies() -> set[int]:
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


async def until(look: Callable[[], bool], what: str) -> None:
    await wait_until_async(look, what)


def run_leaver(orphans: int) -> "subprocess.Popen[bytes]":
    """A process that has left its orphans behind when this returns, and then ends with status 3."""
    child = subprocess.Popen([sys.executable, str(LEAVER), str(orphans), "0"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"left\n"
    return child


def test_orphans_come_to_a_subreaper_only(subreaper: None):
    assert adopts_orphans()

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not adopts_orphans()


@pytest.fixture
async def signals() -> AsyncIterator[LoopSignals]:
    made = LoopSignals()
    yield made
    made.close()


@pytest.mark.integration
@pytest.mark.slow
async def test_orphans_are_reaped_and_our_own_child_is_not(subreaper: None, signals: LoopSignals):
    before = zombies()
    with reaping_orphans(lambda pid: pid == child.pid, signals):
        child = run_leaver(3)
        await until(lambda: child.pid in zombies(), "our own child has ended")
        await until(lambda: zombies() - before == {child.pid}, "all but our own child are reaped")

    assert child.wait(TIMEOUT_S) == 3


@pytest.mark.integration
@pytest.mark.slow
async def test_orphans_that_were_there_before_are_reaped_too(subreaper: None, signals: LoopSignals):
    before = zombies()
    child = run_leaver(2)
    await until(lambda: len(zombies() - before) == 3, "the child and its orphans have ended")

    with reaping_orphans(lambda pid: pid == child.pid, signals):
        await until(lambda: zombies() - before == {child.pid}, "the orphans are reaped")
    assert child.wait(TIMEOUT_S) == 3


@pytest.mark.integration
@pytest.mark.slow
async def test_orphans_that_might_have_been_ours_are_reaped_once_they_are_not(subreaper: None, signals: LoopSignals):
    before, asked = zombies(), 0
    child = run_leaver(1)
    await until(lambda: len(zombies() - before) == 2, "the child and its orphan have ended")

    def is_ours(pid: int) -> bool:
        nonlocal asked
        asked += 1
        return asked <= 2 or pid == child.pid  # at the first look both

    with reaping_orphans(is_ours, signals):
        await until(lambda: zombies() - before == {child.pid}, "the orphan is reaped")
    assert child.wait(TIMEOUT_S) == 3


async def test_nothing_is_left_behind_once_it_is_closed(signals: LoopSignals):
    orphans = OrphanReaper(lambda pid: False, signals)
    orphans.watch()

    orphans.close()

    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


# --- a daemon that is PID 1 -------------------------------------------------------------------------------------------


def may_make_namespaces() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    command = [unshare, "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


class Init:
    """`supervisord -n` as PID 1 of its own PID namespace."""

    def __init__(self, folder: Path, programs: str) -> None:
        self.socket = folder / "s.sock"
        conf = folder / "test.conf"
        conf.write_text(f"[supervisord]\nstate_dir={folder}/state\n[unix_http_server]\nfile={self.socket}\n{programs}")
        self.errors = (folder / "daemon.err").open("wb")
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m"]
        self.process = subprocess.Popen(
            [*command, "supervisor.daemon", "-n", "-c", str(conf)], stdout=self.errors, stderr=self.errors
        )

    def __enter__(self) -> "Init":
        return self

    def __exit__(self, *args: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # --kill-child: PID 1 dies with it, and everything in its namespace
        self.process.wait()
        self.errors.close()

    @property
    def daemon(self) -> psutil.Process:
        """PID 1 as it is seen from outside."""
        return psutil.Process(self.process.pid).children()[0]

    def call(self, command: str, **arguments: object) -> dict[str, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.closing(connection):
            connection.sock.connect(str(self.socket))
            connection.request("POST", f"/api/v1/{command}", json.dumps(arguments))
            return dict(json.loads(connection.getresponse().read())["result"])

    def status(self, name: str) -> dict[str, Any] | None:
        try:
            return next(program for program in self.call("status")["programs"] if program["name"] == name)
        except (OSError, StopIteration):
            return None

    def until(self, look: Callable[[], Any], what: str) -> Any:
        def look_at_the_living() -> Any:
            assert self.process.poll() is None, "the daemon is gone"
            return look()

        return wait_until(look_at_the_living, what)

    def dead_children(self) -> int:
        count = 0
        for child in self.daemon.children():
            with contextlib.suppress(psutil.Error):
                count += child.status() == psutil.STATUS_ZOMBIE
        return count


NAMESPACES = pytest.mark.skipif(not may_make_namespaces(), reason="needs root (CAP_SYS_ADMIN) for a PID namespace")


@pytest.mark.integration
@pytest.mark.slow
@NAMESPACES
def test_a_daemon_that_is_pid_1_reaps_orphans_and_knows_how_its_programs_ended(tmp_path: Path):
    leaver = f"[program:leaver]\ncommand={sys.executable} {LEAVER} 5 1\nstartsecs=0\nautorestart=false\n"
    sleeper = "[program:sleeper]\ncommand=/bin/sleep 100000\n"
    with Init(tmp_path, leaver + sleeper) as init:
        ended = init.until(
            lambda: (found := init.status("leaver")) and found["exit_code"] is not None and found, "leaver has ended"
        )
        init.until(lambda: init.dead_children() == 0, "nothing is left of it and its orphans")

        assert init.call("pid")["pid"] == 1
        assert ended["exit_code"] == 3
        init.until(lambda: (found := init.status("sleeper")) and found["state"] == "RUNNING", "sleeper runs")


@pytest.mark.integration
@NAMESPACES
def test_a_daemon_that_is_pid_1_leaves_when_the_container_is_stopped(tmp_path: Path):
    with Init(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as init:
        init.until(lambda: (found := init.status("sleeper")) and found["state"] == "RUNNING", "sleeper runs")

        os.kill(init.daemon.pid, signal.SIGTERM)

        assert init.process.wait(PATIENCE_S) == 0
