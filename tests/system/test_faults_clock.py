"""The wall clock jumps by a day, both ways, while a job trains: nothing but time stamps may change."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.places import CHILDREN
from tests.reading import alive
from tests.system.harness import Daemon, job

DAY_S = 86400
ENDLESS = 100_000
SOURCE = CHILDREN / "set_clock.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler for what shifts the clock"),
]


class Clock:
    """The wall clock of a daemon and its workers; their other clocks are the host's."""

    def __init__(self, folder: Path) -> None:
        self._library, self._file = folder / "set_clock.so", folder / "clock"
        subprocess.run([COMPILER or "", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE], check=True)
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "SET_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        new = self._file.with_name("new")
        new.write_text(f"{ahead_s}\n")
        new.rename(self._file)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S], ids=["forth", "back"])
def test_a_jump_changes_time_stamps_and_nothing_else(tmp_path: Path, ahead_s: int):
    clock = Clock(tmp_path)
    keys = "hang_timeout=60\ncheckpoint_keep=3\ncheckpoint_keep_every=12 hours"
    programs = job("t", tmp_path, keys, STEPS=ENDLESS, EVERY=20, STEP_S=0.02)
    settings = "history_days=1"
    with Daemon(tmp_path, programs, settings, environment=clock.environment, is_forked=False) as daemon:
        before = daemon.until_step("t", 50)
        assert abs(before["started_wall_at"] - time.time()) < 60, "the clock is not faked yet"

        clock.set(ahead_s)
        step = daemon.status("t")["job"]["step"]
        later = daemon.until_step("t", step + 100)

        assert (later["pid"], later["state"]) == (before["pid"], "RUNNING"), "neither a hang nor a relaunch"
        assert later["description"].split("uptime ")[1].startswith("0:0"), later["description"]
        saved = later["job"]["checkpoint"]
        assert abs(saved["committed_wall_at"] - time.time() - ahead_s) < 60, "the clock did not jump"
        assert "(0:0" in later["description"], later["description"]
        os.kill(later["pid"], signal.SIGKILL)
        after = daemon.until(
            lambda: (found := daemon.status("t"))["pid"] not in (None, later["pid"]) and found, "it is relaunched"
        )
        daemon.until_step("t", saved["step"] + 20)
        first = daemon.call("history", name="t")["attempts"][0]
        assert first["cause"] == "crash" and 1 <= first["ran_s"] < 300
        spent_s = daemon.call("goodput", name="t")["spent_s"]
        assert sum(spent_s.values()) < 300
        assert after["job"]["attempt"] == 2

        daemon.die()  # and over a new daemon, with the clock set right again
        clock.set(0)
        daemon.start()
        adopted = daemon.until_state("t", "RUNNING")
        assert adopted["pid"] == after["pid"]
        assert adopted["description"].split("uptime ")[1].startswith("0:0"), adopted["description"]
        assert sum(daemon.call("goodput", name="t")["spent_s"].values()) < 300
        daemon.call("stop", name="t")
        assert not alive(adopted["pid"])
        (*_, last) = daemon.call("history", name="t")["attempts"]
        assert last["cause"] == "stopped" and last["ran_s"] < 300


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S], ids=["forth", "back"])
def test_a_back_off_and_a_notice_keep_their_time(tmp_path: Path, ahead_s: int):
    clock = Clock(tmp_path)
    programs = job("t", tmp_path, STEPS=ENDLESS, EVERY=ENDLESS, STEP_S=0.02)
    programs += f"[program:bad]\ncommand={shutil.which('false')}\nstartretries=2\nautostart=false\n"
    with Daemon(tmp_path, programs, environment=clock.environment, is_forked=False) as daemon:
        pid = daemon.until_step("t", 5)["pid"]
        daemon.call("start", name="bad", wait=False)
        daemon.until_state("bad", "BACKOFF")
        clock.set(ahead_s)

        daemon.until_state("bad", "FAILED")  # after two pauses of a second or two, not of a day, and not at once
        assert daemon.status("t")["pid"] == pid


@pytest.mark.slow
def test_what_a_job_s_other_name_has_committed_is_missed_although_the_clock_was_set_back(tmp_path: Path):
    clock = Clock(tmp_path)
    clock.set(DAY_S)
    section, data = job("j", tmp_path / "data", STEPS=ENDLESS, EVERY=10, STEP_S=0.02), tmp_path / "data" / "j"
    with Daemon(tmp_path, section, environment=clock.environment, is_forked=False) as daemon:
        daemon.until_step("j", 30)
        daemon.call("stop", name="j")
        clock.set(0)
        daemon.write(section.replace("[program:j]", "[program:k]\nrestore_from_jobs=j"))
        daemon.call("update")
        daemon.until_step("k", 100)
        daemon.call("stop", name="k")
        shutil.copytree(data, tmp_path / "copy")
        daemon.call("start", name="k")
        daemon.until_step("k", 200)
        daemon.call("stop", name="k")
        shutil.rmtree(data)
        (tmp_path / "copy").rename(data)

        daemon.write(section.replace("[program:j]", "[program:j]\nrestore_from_jobs=k"))
        daemon.call("update")

        assert daemon.until_step("j", 100)["job"]["older_because"] == "deleted"


@pytest.mark.slow
def test_why_a_program_died_is_known_although_the_clock_was_set_back_since_its_start(tmp_path: Path):
    """As at a boot: what starts before the clock is right seems to be younger than its log."""
    clock = Clock(tmp_path)
    clock.set(DAY_S)
    told = tmp_path / "die"
    script = f"while [ ! -e {told} ]; do /bin/sleep 0.05; done; echo no such table >&2; exit 3"
    program = f"[program:p]\ncommand=/bin/sh -c '{script}'\nstartretries=0\nautorestart=false\n"
    with Daemon(tmp_path, program, environment=clock.environment, is_forked=False) as daemon:
        daemon.until_state("p", "RUNNING")
        clock.set(0)
        now = daemon.status("p")
        assert abs(now["started_wall_at"] - time.time()) < 60

        told.touch()

        assert "no such table" in daemon.until_state("p", "EXITED", "FAILED")["description"]
