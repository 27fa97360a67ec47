"""Programs and groups taken into use and out of it, by a real daemon."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import alive
from tests.system.harness import Daemon, Refused

SLEEPER = "[program:{}]\ncommand=/bin/sleep 100000\n"
GROUP = "[program:w]\ncommand=/bin/sleep 100000\nnumprocs=2\nprocess_name=w%(process_num)d\n"


def ctl(daemon: Daemon, *arguments: str) -> tuple[int, list[str]]:
    """supervisorctl's exit status and lines."""
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


def names(daemon: Daemon) -> list[str]:
    return [program["name"] for program in daemon.call("status")["programs"]]


@pytest.mark.slow
def test_removed_group_stays_removed_over_a_restart_until_added(tmp_path: Path) -> None:
    with Daemon(tmp_path, GROUP + SLEEPER.format("solo")) as daemon:
        daemon.until_state("w:w0", "RUNNING")
        assert ctl(daemon, "remove", "w") == (1, ["ERROR: process/group still running: w"])
        daemon.call("stop", name="w:w0")
        daemon.call("stop", name="w:w1")
        assert ctl(daemon, "remove", "w") == (0, ["w: removed process group"])
        daemon.stop()

        daemon.start()
        daemon.until_state("solo", "RUNNING")

        assert names(daemon) == ["solo"]
        assert ctl(daemon, "add", "w", "nope") == (
            1,
            ["w: added process group", "ERROR: no such process/group: nope"],
        )
        daemon.until_state("w:w1", "RUNNING")
        daemon.stop()

        daemon.start()

        daemon.until_state("w:w0", "RUNNING")  # autostart counts again, not the stop before the removal


def test_single_program_of_a_group_can_be_removed_and_added(tmp_path: Path) -> None:
    with Daemon(tmp_path, GROUP) as daemon:
        daemon.until_state("w:w0", "RUNNING")
        daemon.call("stop", name="w:w0")
        daemon.call("remove", name="w:w0")
        assert names(daemon) == ["w:w1"]

        daemon.call("add", name="w")

        assert names(daemon) == ["w:w0", "w:w1"]
        with pytest.raises(Refused, match="ALREADY_ADDED"):
            daemon.call("add", name="w")


def test_update_takes_what_was_removed_into_use(tmp_path: Path) -> None:
    with Daemon(tmp_path, SLEEPER.format("a")) as daemon:
        daemon.until_state("a", "RUNNING")
        daemon.call("stop", name="a")
        daemon.call("remove", name="a")

        actions = daemon.call("update")["actions"]

        assert [(action["name"], action["action"]) for action in actions] == [("a", "added")]
        daemon.until_state("a", "RUNNING")


def test_more_or_fewer_processes_of_a_program_leave_the_others_alone(tmp_path: Path) -> None:
    def pids() -> dict[str, int]:
        return {program["name"]: program["pid"] for program in daemon.call("status")["programs"]}

    def with_processes(count: int) -> str:
        return GROUP.replace("numprocs=2", f"numprocs={count}") + SLEEPER.format("solo")

    with Daemon(tmp_path, with_processes(2)) as daemon:
        for name in ("w:w0", "w:w1", "solo"):
            daemon.until_state(name, "RUNNING")
        two = pids()

        daemon.write(with_processes(3))
        assert ctl(daemon, "reread") == (0, ["w:w2: available"])
        assert ctl(daemon, "update") == (0, ["w:w2: added process"])
        daemon.until_state("w:w2", "RUNNING")
        three = pids()

        daemon.write(with_processes(1))
        assert ctl(daemon, "update") == (
            0,
            ["w:w1: stopped", "w:w1: removed process", "w:w2: stopped", "w:w2: removed process"],
        )
        one = pids()

    assert {name: three[name] for name in two} == two
    assert one == {name: two[name] for name in ("w:w0", "solo")}
    assert not alive(two["w:w1"])
