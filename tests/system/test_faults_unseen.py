"""What happens while no daemon is there, and what a new one knows of what happened before it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.reading import alive
from tests.system.harness import TRAINER, Daemon, job, tell_to_fail
from tests.system.test_dependencies import said
from tests.system.test_repeating import memory_cgroup  # noqa: F401 - a fixture

ENDLESS = 100_000
PR_SET_CHILD_SUBREAPER = 36

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("reaper")]


@pytest.fixture
def reaper() -> Iterator[Callable[[int], int]]:
    """Workers of a dead daemon become this process' children; gives what reaps one, as init would."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield lambda pid: os.waitpid(pid, 0)[1]
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, 0)


def history(daemon: Daemon) -> list[dict[str, Any]]:
    return list(daemon.call("history", name="t")["attempts"])


def end_unseen(daemon: Daemon, how: str, reaper: Callable[[int], int], at_step: int = 25) -> None:
    """The daemon is killed, and then its worker ends in a way of the trainer's `fail_as_told`; a new daemon comes."""
    pid = daemon.until_step("t", at_step)["pid"]
    daemon.die()
    tell_to_fail(daemon.folder / "t", how)
    reaper(pid)
    daemon.start()
    daemon.until(lambda: history(daemon)[0]["cause"], "its end is booked")


@pytest.mark.parametrize(
    ("how", "keys", "cause", "text"),
    [
        ("lacked", "on_oom=microbatch", "out-of-memory", "divided into 2 parts"),
        ("diverged", "on_nan=rollback", "divergence", "is nan"),
        ("raised", "", "crash", "ValueError: no"),
        ("unusable", "", "setup", "cannot use the directory"),
        ("segfault", "", "lost", "while no daemon was running"),
    ],
)
def test_the_cause_of_an_end_that_nobody_saw_is_found(
    tmp_path: Path, reaper: Callable[[int], int], how: str, keys: str, cause: str, text: str
):
    with Daemon(tmp_path, job("t", tmp_path, keys, FAIL="told", STEPS=ENDLESS, EVERY=10)) as daemon:
        end_unseen(daemon, how, reaper)

        first = history(daemon)[0]
        assert first["cause"] == cause
        if cause != "setup":
            daemon.until(lambda: len(history(daemon)) == 2, "it is started again")
            daemon.until_state("t", "RUNNING")
        else:
            assert text in daemon.until_state("t", "FAILED")["reason"]
        assert text in history(daemon)[0]["text"] or "parts" in text
        if how == "lacked":
            mine = Path(f"/proc/{daemon.status('t')['pid']}/environ").read_bytes()
            assert b'"microbatches":2' in mine
        if how == "diverged":
            diverged_at = int(first["text"].split("loss of step ")[1].split()[0])
            assert 0 < history(daemon)[1]["from_step"] < diverged_at - 1


@pytest.mark.parametrize(
    ("how", "keys", "cause", "state"),
    [
        ("diverged", "on_nan=rollback", "divergence", "RUNNING"),
        ("unusable", "", "setup", "FAILED"),
        ("raised", "autorestart=false", "crash", "EXITED"),
    ],
)
def test_the_end_that_nobody_saw_of_one_that_is_held_back_counts_as_any_other(
    tmp_path: Path, reaper: Callable[[int], int], how: str, keys: str, cause: str, state: str
):
    base = "[program:base]\ncommand=/bin/sleep 100000\nstartsecs=2\n"
    needy = job("t", tmp_path, f"depends_on=base\n{keys}", FAIL="told", STEPS=ENDLESS, EVERY=10)
    with Daemon(tmp_path, base + needy) as daemon:
        pid = daemon.until_step("t", 25)["pid"]
        base_pid = daemon.status("base")["pid"]
        daemon.die()
        tell_to_fail(tmp_path / "t", how)
        reaper(pid)
        os.kill(base_pid, signal.SIGKILL)
        reaper(base_pid)
        (tmp_path / "daemon.log").write_text("")

        daemon.start()

        assert daemon.until_state("t", state)["wanted"]
        ended = history(daemon)[0]
        assert ended["cause"] == cause and "while no daemon was running" in ended["text"], ended
        assert len(history(daemon)) == (2 if state == "RUNNING" else 1)
        if state == "RUNNING":
            runs = said(daemon, "program.changed", program="base", state="RUNNING")
            assert runs < said(daemon, "worker.spawned", program="t")
            diverged_at = int(ended["text"].split("loss of step ")[1].split()[0])
            assert 0 < history(daemon)[1]["from_step"] < diverged_at - 1


def test_a_kill_for_lack_of_memory_that_nobody_saw_is_booked_as_that(
    tmp_path: Path,
    reaper: Callable[[int], int],
    memory_cgroup: Path,  # noqa: F811
):
    enter = f"/bin/sh -c 'echo $$ > {memory_cgroup}/cgroup.procs && exec {sys.executable} {TRAINER}'"
    section = job("t", tmp_path, "on_oom=microbatch", FAIL="told", STEPS=ENDLESS, EVERY=10)
    section = section.replace(f"command={sys.executable} {TRAINER}", f"command={enter}")
    with Daemon(tmp_path, section) as daemon:
        end_unseen(daemon, "memory", reaper)

        first = history(daemon)[0]
        assert first["cause"] == "out-of-memory" and memory_cgroup.name in first["text"], first
        daemon.call("stop", name="t")
        daemon.until(lambda: not (memory_cgroup / "cgroup.procs").read_text(), "the cgroup is empty")


def test_done_unseen_is_success(tmp_path: Path, reaper: Callable[[int], int]):
    with Daemon(tmp_path, job("t", tmp_path, STEPS=60, STEP_S=0.05)) as daemon:
        pid = daemon.until_step("t", 5)["pid"]
        daemon.die()
        reaper(pid)

        daemon.start()

        daemon.until_state("t", "SUCCEEDED")
        assert [attempt["cause"] for attempt in history(daemon)] == ["done"]


def test_a_new_daemon_does_not_forget_which_checkpoint_kills(tmp_path: Path):
    program = job("t", tmp_path, STEPS=40, EVERY=10, STEP_S=0.05, FAIL="dies-from-20")
    with Daemon(tmp_path, program) as daemon:
        daemon.until(lambda: len(history(daemon)) >= 3, "it died from the checkpoint")
        daemon.until(lambda: history(daemon)[1]["cause"], "that is booked")
        daemon.die()

        daemon.start()

        daemon.until_state("t", "SUCCEEDED", "FAILED", patience_s=60)
        told = history(daemon)
        assert any("step-0000000020.a1 is suspect" in (each["text"] or "") for each in told)
        deaths = [each for each in told if each["restored"] == "step-0000000020.a1"]
        assert len(deaths) <= 4, "it began to count again"  # three, and one that was cut off by our kill


def test_a_crash_loop_goes_on_where_it_stood(tmp_path: Path):
    program = job("t", tmp_path, "startretries=3", FAIL="none-such", STEPS=0, LOAD_S="no number")
    with Daemon(tmp_path, program) as daemon:
        daemon.until(
            lambda: [attempt["cause"] for attempt in history(daemon)] == ["crash"] * 3, "it failed three times"
        )
        daemon.until_state("t", "BACKOFF")
        daemon.die()

        daemon.start()

        failed = daemon.until_state("t", "FAILED", patience_s=60)
        assert "4 failures (crash)" in failed["reason"]
        assert len(history(daemon)) == 4
        daemon.die()
        daemon.start()
        failed = daemon.until_state("t", "FAILED", patience_s=60)
        assert len(history(daemon)) == 5, "one more attempt, not a whole budget"
        daemon.call("start", name="t", wait=False)
        daemon.until(lambda: len(history(daemon)) >= 7, "an operator's start has all of it")


def test_with_another_configuration_it_is_a_start_anew(tmp_path: Path):
    with Daemon(tmp_path, job("t", tmp_path, "startretries=1", LOAD_S="no number")) as daemon:
        daemon.until_state("t", "FAILED", patience_s=60)
        daemon.stop()
        daemon.write(job("t", tmp_path, "startretries=1", LOAD_S="nothing either"))

        daemon.start()

        daemon.until_state("t", "FAILED", patience_s=60)
        assert len(history(daemon)) == 4


def test_no_worker_is_left_and_none_is_started_twice(tmp_path: Path, reaper: Callable[[int], int]):
    with Daemon(tmp_path, job("t", tmp_path, FAIL="told", STEPS=ENDLESS, EVERY=10)) as daemon:
        end_unseen(daemon, "killed", reaper)
        pid = daemon.until_state("t", "RUNNING")["pid"]
        mark = f"{tmp_path}/state".encode()
        mine = [
            process.pid
            for process in psutil.process_iter()
            if alive(process.pid) and mark in _environ(process.pid) and b"trainer.py" in _command(process.pid)
        ]
        assert mine == [pid]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
