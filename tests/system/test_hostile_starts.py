"""A root daemon starts programs from a user's files, and that user decides how long opening them takes."""

import contextlib
import os
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.children import EXEC_LIMIT_S
from tests.places import CHILDREN
from tests.silent_mount import SilentMount
from tests.system.harness import Daemon, Refused, let_others_in
from tests.system.test_hostile_user import RESPONSE_S, USER, give, longest_answer_s, program

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users"),
]

LEASES = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
while True:
    try:
        opened = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("held", flush=True)
    except OSError:
        pass
    time.sleep(0.01)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    let_others_in(tmp_path)
    (tmp_path / "home").mkdir()
    return give(tmp_path / "home")


@contextlib.contextmanager
def leased(file: Path) -> Iterator[None]:
    """The user takes a lease on the file, and again whenever it was taken away: who opens it waits, usually 45 s."""
    command = ["/usr/bin/python3", "-c", LEASES, str(file)]
    with subprocess.Popen(command, user=USER, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.kill()


def starting(daemon: Daemon) -> threading.Thread:
    """Starts the program, whatever becomes of it."""

    def start() -> None:
        with contextlib.suppress(Refused):
            daemon.call("start", name="p")

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_command_that_cannot_be_opened_for_its_users_lease_stalls_nothing_and_starts_later(home: Path) -> None:
    (home / "run").write_text("#!/bin/sh\nexec sleep 600\n")
    (home / "run").chmod(0o755)
    give(home)

    with Daemon(home.parent, program(f"{home}/run", "autostart=false")) as daemon:
        with leased(home / "run"):
            thread = starting(daemon)
            longest_s = longest_answer_s(daemon, lambda: "lease" in str(daemon.status("p")["reason"]))
            thread.join()
        assert longest_s < EXEC_LIMIT_S + RESPONSE_S
        assert daemon.status("p")["state"] == "BACKOFF"
        daemon.until(lambda: daemon.status("p")["pid"], "it starts once nobody holds it")
        assert pwd.getpwuid(Path(f"/proc/{daemon.status('p')['pid']}").stat().st_uid).pw_name == USER


@pytest.mark.parametrize("place", ["directory", "command"])
def test_a_path_that_leads_to_a_disk_that_does_not_answer_stalls_nothing(home: Path, place: str) -> None:
    with SilentMount(home.parent / "mount") as mount:
        (home / "place").symlink_to(mount.at)
        keys = {"directory": "/", "command": "/bin/sleep 600"} | {place: f"{home}/place/file"}
        text = f"[program:p]\nuser={USER}\nautostart=false\n" + "".join(f"{key}={keys[key]}\n" for key in keys)
        with Daemon(home.parent, text) as daemon:
            mount.answers_attributes = False
            thread = starting(daemon)
            longest_s = longest_answer_s(daemon, lambda: "does not answer" in str(daemon.status("p")["reason"]))
            began = time.monotonic()
            daemon.call("status")
            thread.join()
            mount.abort()

        assert longest_s < RESPONSE_S
        assert time.monotonic() - began < RESPONSE_S


def test_a_dead_disk_of_the_daemons_own_user_stalls_no_other_program(home: Path) -> None:
    """As a server of home directories that is away; nobody means harm."""
    with SilentMount(home.parent / "mount") as mount:
        text = f"[program:p]\ndirectory={mount.file}\ncommand=/bin/sleep 600\nautostart=false\n"
        with Daemon(home.parent, f"{text}[program:other]\ncommand=/bin/sleep 600\nautostart=false\n") as daemon:
            mount.answers_attributes = False
            thread = starting(daemon)
            longest_s = longest_answer_s(daemon, lambda: "does not answer" in str(daemon.status("p")["reason"]))
            daemon.call("start", name="other")
            thread.join()
            mount.abort()

        assert longest_s < RESPONSE_S


@pytest.mark.slow
def test_the_next_daemon_comes_up_beside_a_process_that_does_not_answer(home: Path) -> None:
    (home / "run.py").write_bytes((CHILDREN / "memory_locked.py").read_bytes())
    with SilentMount(home.parent / "mount") as mount:
        command = f"/usr/bin/python3 {home}/run.py {mount.file}"
        other = "[program:other]\ncommand=/bin/sleep 600\nstartsecs=0\n"  # no start is to wait for a second
        with Daemon(home.parent, program(command, f"stdout_logfile={home}/log") + other) as daemon:
            daemon.until(lambda: (home / "log").exists() and (home / "log").read_text(), "its memory is locked")
            pid = daemon.status("other")["pid"]
            daemon.die()
            began = time.monotonic()
            daemon.start()
            took_s = time.monotonic() - began
            adopted = daemon.until_state("other", "RUNNING")
            for _ in range(40):  # as many as there are threads for such work, and more
                daemon.call("stop", name="other")
                daemon.call("start", name="other")
            os.kill(daemon.status("p")["pid"], signal.SIGKILL)
            mount.abort()

    assert adopted["pid"] == pid
    assert took_s < 15.0
