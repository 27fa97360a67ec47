"""pidproxy, with real processes: a program that leaves its child in the background."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.integration

LAUNCHER = """
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], str(folder)], start_new_session=True)
(folder / "pid.new").write_text(str(child.pid))
(folder / "pid.new").rename(folder / "pid")
child.wait()
sys.exit(3)
"""
REAL = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGHUP, lambda *_: (folder / "hup").touch())
def leave(*_):
    time.sleep(0.2)
    (folder / "left").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(folder / "ready").touch()
while True:
    time.sleep(0.05)  # a signal right before the system call is handled after it
"""


def started(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHER, str(folder), REAL]
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor.pidproxy", str(folder / "pid"), *command], stderr=subprocess.PIPE, text=True
    )


def test_signals_reach_the_process_of_the_file_and_stopped_means_gone(tmp_path: Path):
    proxy = started(tmp_path)
    wait_until((tmp_path / "ready").exists)
    wait_until((tmp_path / "pid").exists)  # which its launcher writes meanwhile

    proxy.send_signal(signal.SIGHUP)
    wait_until((tmp_path / "hup").exists)
    proxy.send_signal(signal.SIGTERM)
    proxy.communicate(timeout=60)

    assert (tmp_path / "left").exists()


def test_it_ends_with_its_command_and_its_exit_status(tmp_path: Path):
    proxy = started(tmp_path)
    wait_until((tmp_path / "ready").exists)

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    proxy.communicate(timeout=60)

    assert proxy.returncode == 3


@pytest.mark.parametrize("content", [None, "nobody", "0", "-1", "99999999999999999999", "4194304999"])
def test_without_a_usable_file_the_command_gets_the_signal(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "pid").write_text(content)
    proxy = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "supervisor.pidproxy",
            str(tmp_path / "pid"),
            "sh",
            "-c",
            f"touch {tmp_path}/on; exec cat",
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "on").exists)

    proxy.send_signal(signal.SIGTERM)
    proxy.wait(timeout=60)

    assert proxy.returncode == 128 + signal.SIGTERM
    assert "pidproxy: cannot use" in proxy.stderr.read()
    proxy.stdin.close()


def test_wrong_arguments_are_2_and_a_command_that_is_not_there_127(tmp_path: Path):
    def status(*arguments: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "supervisor.pidproxy", *arguments], capture_output=True, check=False
        ).returncode

    assert (status(), status("--help"), status("/x", "/no/such/command")) == (2, 0, 127)
