"""Programs that wait for others, under a real daemon."""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.reading import records
from tests.system.harness import Daemon, Refused, job

SLEEPER = "[program:{}]\ncommand=/bin/sleep 100000\nstartsecs=0\n{}\n"
BROKEN = "[program:broken]\ncommand=/bin/sh -c 'exit 3'\nstartretries=0\n"


def said(daemon: Daemon, event: str, **facts: str) -> int:
    """The place of the first such line in the daemon's log."""
    lines = records(daemon.folder / "daemon.log")
    return next(
        number
        for number, line in enumerate(lines)
        if line["event"] == event and all(line.get(key) == value for key, value in facts.items())
    )


def test_dependent_starts_after_the_job_trains_and_stops_before_it(tmp_path: Path) -> None:
    programs = SLEEPER.format("board", "depends_on=digits\npriority=1") + job(
        "digits", tmp_path, STEPS=1_000_000, LOAD_S=0.5, EVERY=1_000_000
    )
    with Daemon(tmp_path, programs) as daemon:
        daemon.until_state("board", "RUNNING")
        assert daemon.stop() == 0

    trains = said(daemon, "program.changed", program="digits", state="RUNNING")
    assert trains < said(daemon, "worker.spawned", program="board")
    assert said(daemon, "worker.exited", program="board") < said(daemon, "flush.asked", program="digits")


def test_a_start_starts_what_it_needs(tmp_path: Path) -> None:
    programs = SLEEPER.format("a", "autostart=false") + "".join(
        SLEEPER.format(name, f"autostart=false\ndepends_on={needs}") for name, needs in (("b", "a"), ("c", "b, a"))
    )
    with Daemon(tmp_path, programs) as daemon:
        daemon.call("start", name="c")

        assert [program["state"] for program in daemon.call("status")["programs"]] == ["RUNNING"] * 3


def test_a_program_waits_for_the_end_of_one_that_prepares(tmp_path: Path) -> None:
    goes = tmp_path / "goes"
    prepare = (
        f"[program:prepare]\ncommand=/bin/sh -c 'until test -e {goes}; do sleep 0.05; done; exit 3'\nstartsecs=0\n"
        f"autorestart=false\n"
    )
    with Daemon(tmp_path, prepare + SLEEPER.format("web", "depends_on_end=prepare")) as daemon:
        daemon.until_state("prepare", "RUNNING")
        waiting = daemon.until(
            lambda: (web := daemon.status("web"))["description"] == "waits for prepare (RUNNING)" and web, "web waits"
        )
        assert (waiting["wire_state"], waiting["pid"]) == ("STARTING", None)

        goes.touch()

        daemon.until_state("web", "RUNNING")
        assert daemon.status("prepare")["state"] == "EXITED"
        daemon.call("stop", name="web")
        goes.unlink()
        daemon.call("start", name="web")
        assert daemon.status("prepare")["state"] == "EXITED"  # what has ended is not started for it again


def test_dependent_waits_for_a_failed_program_until_it_is_stopped(tmp_path: Path) -> None:
    with Daemon(tmp_path, BROKEN + SLEEPER.format("b", "depends_on=broken")) as daemon:
        daemon.until_state("broken", "FAILED")
        waiting = daemon.until(
            lambda: (found := daemon.status("b"))["description"] == "waits for broken (FAILED)" and found, "b waits"
        )
        assert (waiting["wire_state"], waiting["pid"], waiting["wanted"]) == ("STARTING", None, True)
        with pytest.raises(Refused, match=r"ABNORMAL_TERMINATION: waits for broken \(FAILED\)"):
            daemon.call("start", name="b")

        daemon.call("stop", name="b")

        assert (daemon.status("b")["wire_state"], daemon.status("b")["wanted"]) == ("STOPPED", False)


@pytest.mark.slow
@pytest.mark.parametrize("was", ["BACKOFF", "STOPPING"])
def test_a_start_waits_too_where_it_would_start_again_by_itself(tmp_path: Path, was: str) -> None:
    runs_if = "[program:{}]\ncommand=/bin/sh -c 'test -e {} || exit 3; {}'\nstartsecs=0.2\nstartretries=100\n{}\n"
    base_goes, needy_goes = tmp_path / "base-goes", tmp_path / "needy-goes"
    base = runs_if.format("base", base_goes, "exec sleep 100000", "")
    heeds_late = 'trap "sleep 0.5; exit" TERM; while :; do sleep 0.05; done'
    needy = runs_if.format("needy", needy_goes, heeds_late, "depends_on=base")
    base_goes.touch()
    if was == "STOPPING":
        needy_goes.touch()
    with Daemon(tmp_path, base + needy) as daemon:
        daemon.until_state("needy", "BACKOFF" if was == "BACKOFF" else "RUNNING")
        base_goes.unlink()
        daemon.call("stop", name="base")
        with pytest.raises(Refused):
            daemon.call("start", name="base")
        needy_goes.touch()
        if was == "STOPPING":
            daemon.call("stop", name="needy", wait=False)

        daemon.call("start", name="needy", wait=False)

        daemon.until_state("needy", "STOPPED")
        waiting = daemon.status("needy")
        assert (waiting["wire_state"], waiting["pid"], waiting["wanted"]) == ("STARTING", None, True)
        assert waiting["description"].startswith("waits for base")
        base_goes.touch()
        assert daemon.until_state("needy", "RUNNING")["wire_state"] == "RUNNING"


@pytest.mark.slow
def test_after_a_reboot_it_waits_for_what_it_needs_as_at_any_start(tmp_path: Path) -> None:
    needed = SLEEPER.format("base", "priority=900").replace("startsecs=0", "startsecs=1")
    with Daemon(tmp_path, SLEEPER.format("needy", "priority=1\ndepends_on=base") + needed) as daemon:
        pids = [daemon.until_state(name, "RUNNING")["pid"] for name in ("base", "needy")]
        daemon.die()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        daemon.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "both are gone")
        with contextlib.closing(sqlite3.connect(tmp_path / "state/ledger.sqlite3")) as ledger, ledger:
            ledger.execute("UPDATE attempts SET boot_id = 'before the reboot'")
        (tmp_path / "daemon.log").write_text("")

        daemon.start()

        daemon.until_state("needy", "RUNNING")
        assert daemon.call("history", name="needy")["attempts"][0]["cause"] == "preemption"
    runs = said(daemon, "program.changed", program="base", state="RUNNING")
    assert runs < said(daemon, "worker.spawned", program="needy")


def test_a_dependency_that_ends_takes_nobody_with_it(tmp_path: Path) -> None:
    with Daemon(tmp_path, SLEEPER.format("a", "") + SLEEPER.format("b", "depends_on=a")) as daemon:
        pid = daemon.until_state("b", "RUNNING")["pid"]

        daemon.call("stop", name="a")

        assert daemon.status("b")["pid"] == pid
