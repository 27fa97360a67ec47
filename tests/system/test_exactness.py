"""What a person sees of how exact and how dear the checkpoints of a job are."""

import os
import signal
import sys
from pathlib import Path

from supervisor.core.failures.reliability import PRIOR_S
from tests.system.harness import Daemon, job


def test_workers_are_told_how_often_their_job_failed(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=1_000_000)) as daemon:
        first = daemon.until_step("digits", 30)
        os.kill(first["pid"], signal.SIGKILL)
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 2, "the second attempt")
        second = daemon.until(lambda: (found := daemon.status("digits"))["job"]["interval_s"] and found, "it trains")
        daemon.stop()
        daemon.start()
        daemon.until(lambda: daemon.status("digits")["job"]["attempt"] == 3, "the third attempt")
        third = daemon.until(lambda: (found := daemon.status("digits"))["job"]["interval_s"] and found, "it trains")

    assert first["job"]["interval_s"] == PRIOR_S  # this trainer says back what it was told
    assert "saves every 3600 s" in first["description"]
    assert PRIOR_S / 5 < second["job"]["interval_s"] < PRIOR_S / 5 + 300
    assert PRIOR_S / 5 < third["job"]["interval_s"] < PRIOR_S / 5 + 300, "a stop is no failure; the ledger remembers"


def test_status_says_what_keeps_training_from_being_exact(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path, STEPS=1_000_000, EVERY=5, FAIL="elsewhere")) as daemon:
        found = daemon.until(lambda: (found := daemon.status("digits"))["job"]["left_out"] and found, "it was told")

        (attempt,) = daemon.call("history", name="digits")["attempts"]

    assert "conditions changed since the checkpoint: cores is 1, was 2" in found["description"]
    assert attempt["changed"] == ["cores is 1, was 2"]
    assert "a restart would not bring back: teacher/kernel" in found["description"]


ORDERED = """
import os, signal, sys
with open(sys.argv[1] + ".new", "w") as file:
    print(os.environ.get("PYTHONHASHSEED"), *{f"word {number}" for number in range(50)}, file=file)
os.rename(file.name, file.name.removesuffix(".new"))
signal.pause()
"""


def test_processes_of_jobs_order_sets_of_texts_alike_unless_told_otherwise(tmp_path: Path):
    (tmp_path / "order.py").write_text(ORDERED)

    def program(name: str, keys: str) -> str:
        return f"[program:{name}]\ncommand={sys.executable} {tmp_path}/order.py {tmp_path}/{name}\n{keys}\n"

    programs = [program(name, f"checkpoint_dir={tmp_path}/of-{name}\nstandby=off") for name in ("first", "second")]
    own = program("own", f'checkpoint_dir={tmp_path}/of-own\nstandby=off\nenvironment=PYTHONHASHSEED="7"')
    names = ("first", "second", "own", "plain")
    with Daemon(tmp_path, "".join([*programs, own, program("plain", "")])) as daemon:
        daemon.until(lambda: all((tmp_path / name).exists() for name in names), "all have written")

    first, second, of_own, plain = ((tmp_path / name).read_text().split(maxsplit=1) for name in names)
    assert first == second
    assert (first[0], of_own[0]) == ("0", "7")
    assert plain[0] == os.environ.get("PYTHONHASHSEED", "None"), "other programs get the daemon's environment"
