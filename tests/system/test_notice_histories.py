"""What comes while a host's notice is flushed, at random: orders, deaths of worker and daemon, reloads, other notices.

The core's histories (`tests/core/test_progress_across_daemons.py`) hold the same of the decisions; here are whole
daemons, processes and signals.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reading import records
from tests.system.harness import PATIENCE_S, Daemon, Refused, job

HISTORIES = 60
PAUSES_S = (0.0, 0.05, 0.3, 1.0, 2.0)
KEYS = ("", "notice_margin = 0.5", "notice_margin = 3", "flush_timeout = 1")


class History:
    """A daemon with one job, `j`, and what may happen to them."""

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
            if status["state"] in ("STOPPED", "EXITED"):
                with contextlib.suppress(Refused):
                    self._daemon.call("start", name="j")
            return status["state"] == "RUNNING" and status["notice"] is None

        self.wait_for_daemon()
        self._daemon.until(trains, "the job trains again", 2 * PATIENCE_S)


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
        begins = {each["attempt"]: each["from_step"] for each in daemon.call("history", name="j", limit=99)["attempts"]}

    saved = [record for record in records(tmp_path / "daemon.log") if record["event"] == "checkpoint.committed"]
    for attempt, begin in begins.items():
        before = max((record["step"] for record in saved if record["attempt"] < attempt), default=0)
        assert begin is None or begin >= before
