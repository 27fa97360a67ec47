"""What comes while a host's notice is flushed, at random: orders, deaths of worker and daemon, reloads, other notices.

The core's histories (`tests/core/test_progress_across_daemons.py`) hold the same of the decisions; here are whole
daemons, processes and signals.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.reading import records
from tests.system.disks import disk
from tests.system.harness import PATIENCE_S, Daemon, Refused, job

__all__ = ["disk"]

HISTORIES = 60
IN_EACH_SUITE = 2  # of those in which saves fail
PAUSES_S = (0.0, 0.05, 0.3, 1.0, 2.0)
FAILING_JOB = """
import os, time
from worker.files import FilesRun

class Counting:
    versions = {"counting": "1"}
    topology = {}
    def write(self, folder):
        if os.path.exists("raise"):
            raise ValueError("it can't be saved")
        while os.path.exists("wait"):
            time.sleep(0.05)
        (folder / "count").write_bytes(bytes(40_000))
    def read(self, folder):
        pass

with FilesRun(Counting(), total_steps=100_000_000) as run:
    while True:
        time.sleep(0.02)
        run.step_done(epoch=0, batch=run.step)
"""
KEYS = ("", "notice_margin = 0.5", "notice_margin = 3", "flush_timeout = 1")


def require_no_start_behind(folder: Path, attempts: list[dict[str, Any]], *reasons: str) -> None:
    """No attempt began behind what one before it had saved, by the daemon's log, unless it says one of `reasons`."""
    saved = [record for record in records(folder / "daemon.log") if record["event"] == "checkpoint.committed"]
    for attempt in attempts:
        before = max((record["step"] for record in saved if record["attempt"] < attempt["attempt"]), default=0)
        begin = attempt["from_step"]
        assert begin is None or begin >= before or attempt["older_because"] in reasons, attempt


class History:
    """A daemon with one job, `j`, and what may happen to them."""

    at_rest: tuple[str, ...] = ("STOPPED", "EXITED")

    def __init__(self, chance: random.Random, daemon: Daemon, section: str) -> None:
        self._chance = chance
        self._daemon = daemon
        self._section = section
        self.happens: tuple[Callable[[], object], ...] = (
            lambda: self.daemon_ends(signal.SIGTERM),
            lambda: self.daemon_ends(signal.SIGKILL),
            self.daemon_is_killed_as_it_ends,
            lambda: self.worker_gets(signal.SIGKILL),
            lambda: self.worker_gets(signal.SIGTERM),
            self.daemon_is_reloaded,
            self.section_changes,
            self.notice_comes,
            self.job_is_restarted,
            lambda: daemon.call("stop", name="j"),
            lambda: daemon.call("start", name="j"),
            lambda: daemon.call("checkpoint", name="j"),
        )

    def notice_comes(self) -> None:
        self._daemon.call("drill", name="j", in_s=self._chance.choice([1, 2, 4, 8]))

    def daemon_ends(self, number: int) -> None:
        self._daemon.stop(number)
        self._daemon.start()

    def daemon_is_killed_as_it_ends(self) -> None:
        assert self._daemon.process is not None
        self._daemon.process.send_signal(signal.SIGTERM)
        time.sleep(self._chance.choice(PAUSES_S[:3]))
        self.daemon_ends(signal.SIGKILL)

    def daemon_is_reloaded(self) -> None:
        assert self._daemon.process is not None
        self._daemon.process.send_signal(signal.SIGHUP)
        self.wait_for_daemon()

    def worker_gets(self, number: int) -> None:
        if pid := self._daemon.status("j")["pid"]:
            os.kill(pid, number)

    def section_changes(self) -> None:
        self._daemon.write(f"{self._section}startsecs = {self._chance.choice([0, 1, 2])}\n")
        self._daemon.call("update")

    def job_is_restarted(self) -> None:
        self._daemon.call("stop", name="j")
        self._daemon.call("start", name="j")

    def go_on(self) -> None:
        """Something happens, or is refused, as to a job or a daemon that is about to end."""
        time.sleep(self._chance.choice(PAUSES_S))
        with contextlib.suppress(Refused, OSError):
            self._chance.choice(self.happens)()

    def wait_for_daemon(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError):
                return bool(self._daemon.call("pid")["pid"])
            return False

        self._daemon.until(answers, "the daemon answers")

    def comes_to_train(self) -> None:
        """The notices end, and what was stopped is started again."""

        def trains() -> bool:
            status = self._daemon.status("j")
            if status["state"] in self.at_rest:
                with contextlib.suppress(Refused):
                    self._daemon.call("start", name="j")
            return status["state"] == "RUNNING" and status["notice"] is None

        self.wait_for_daemon()
        self._daemon.until(trains, "the job trains again", 2 * PATIENCE_S)


class FailingHistory(History):
    """Saves fail, too: the script raises, the disk is full, the worker stands still. `disk`: of the checkpoints."""

    at_rest = ("STOPPED", "EXITED", "FAILED")

    def __init__(self, chance: random.Random, daemon: Daemon, section: str, disk: Path) -> None:
        super().__init__(chance, daemon, section)
        self._disk, self._marks = disk, daemon.folder
        self.happens += 2 * (
            lambda: self.saves("raise"),
            lambda: self.saves("wait"),
            lambda: self.worker_gets(signal.SIGSTOP),
            self.disk_is_full,
            self.all_is_well,
        )

    def saves(self, how: str) -> None:
        """`raise`, or `wait` as long as a file system that does not answer."""
        (self._marks / how).touch()

    def disk_is_full(self) -> None:
        with contextlib.suppress(OSError), (self._disk / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def all_is_well(self) -> None:
        """Saves work again, and the worker moves."""
        for path in (self._marks / "raise", self._marks / "wait", self._disk / "filler"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            self.worker_gets(signal.SIGCONT)

    def comes_to_train(self) -> None:
        self.wait_for_daemon()
        self.all_is_well()
        super().comes_to_train()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        *range(IN_EACH_SUITE),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(IN_EACH_SUITE, HISTORIES)),
    ],
)
def test_whatever_fails_amid_a_notice_no_start_is_behind_what_was_saved(tmp_path: Path, seed: int, disk: Path):
    chance, script = random.Random(seed), tmp_path / "train.py"
    script.write_text(FAILING_JOB)
    keys = (
        f"flush_timeout = {chance.choice([2, 5])}\n{chance.choice(KEYS[:3])}\nstartup_timeout = 60\nstartretries = 99"
    )
    interval = chance.choice(["1000000 steps", "40 steps"])
    section = (
        f"[program:j]\ncommand={sys.executable} {script}\ndirectory={tmp_path}\ncheckpoint_dir={disk}/j\n"
        f"checkpoint_interval={interval}\nstandby=off\ncheckpoint_make_room={chance.choice(['true', 'false'])}\n"
        f'environment=PYTHONPATH="{ROOT}"\n{keys}\n'
    )
    with Daemon(tmp_path, section) as daemon:
        history = FailingHistory(chance, daemon, section, disk)
        daemon.until_step("j", 5)
        history.notice_comes()
        for _ in range(chance.randint(2, 8)):
            history.go_on()
        history.comes_to_train()
        require_no_start_behind(tmp_path, daemon.call("history", name="j", limit=99)["attempts"], "suspect")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_comes_amid_a_notice_no_start_is_behind_what_was_saved(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    section = job(
        "j", tmp_path, chance.choice(KEYS), STEPS=1_000_000, STEP_S=0.02,
        EVERY=chance.choice([1_000_000, 40]), FLUSH_S=chance.choice([0, 0.2, 1.0, 2.5]), LOAD_S=chance.choice([0, 0.5]),
    )  # fmt: skip
    with Daemon(tmp_path, section) as daemon:
        history = History(chance, daemon, section)
        daemon.until_step("j", 5)
        history.notice_comes()
        for _ in range(chance.randint(1, 6)):
            history.go_on()
        history.comes_to_train()
        require_no_start_behind(tmp_path, daemon.call("history", name="j", limit=99)["attempts"])
