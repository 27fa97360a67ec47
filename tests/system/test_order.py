"""`priority` says in which order programs start and stop.

Who is started or told to stop first need not be the first that the kernel lets run, so the order is read from the
daemon's log.
"""

import contextlib
import sqlite3
import subprocess
import sys
import xmlrpc.client
from pathlib import Path

import pytest

from tests.reading import records
from tests.system.both import UnixTransport
from tests.system.harness import Daemon

SLEEPER = """[program:{name}]
command=/bin/sleep 1000
startsecs=0
{keys}
"""
IN_ORDER = ["late", "z", "g:b", "g:a", "h:c", "m"]
"""The groups g and h have priorities of their own; inside g, b comes before a."""


def programs(common: str = "") -> str:
    """Six programs whose names, places in the file and priorities are all in different orders."""
    priorities = {"m": 900, "a": 3, "late": -5, "c": 1, "z": 2, "b": 1}
    written = [
        SLEEPER.format(name=name, keys=f"priority={priority}\n{common}") for name, priority in priorities.items()
    ]
    return "".join([*written, "[group:g]\nprograms=a,b\npriority=100\n[group:h]\nprograms=c\npriority=200\n"])


def told(daemon: Daemon, count: int, event: str, **facts: str) -> list[str]:
    """The programs of such lines in the daemon's log, all from its beginning on, once they are so many."""

    def found() -> list[str]:
        lines = [line for line in records(daemon.folder / "daemon.log") if line["event"] == event]
        return [line["program"] for line in lines if all(line[key] == value for key, value in facts.items())]

    daemon.until(lambda: len(found()) >= count, f"{count} programs are told of by {event}")
    return found()


def started(daemon: Daemon, count: int) -> list[str]:
    return told(daemon, count, "worker.spawned")


def stopped(daemon: Daemon, count: int) -> list[str]:
    """Those that were told to stop."""
    return told(daemon, count, "program.changed", state="STOPPING")


def ctl(daemon: Daemon, *arguments: str) -> None:
    command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(daemon.conf), *arguments]
    subprocess.run(command, capture_output=True, timeout=60, check=True)


def test_the_daemon_starts_by_priority_and_stops_in_reverse(tmp_path: Path) -> None:
    with Daemon(tmp_path, programs()) as daemon:
        assert started(daemon, 6) == IN_ORDER
        daemon.until_state("m", "RUNNING")
        daemon.stop()
        assert stopped(daemon, 6) == IN_ORDER[::-1]


def test_all_and_groups_start_by_priority_and_stop_in_reverse(tmp_path: Path) -> None:
    with Daemon(tmp_path, programs("autostart=false")) as daemon:
        ctl(daemon, "start", "all")
        assert started(daemon, 6) == IN_ORDER
        ctl(daemon, "stop", "all")
        assert stopped(daemon, 6) == IN_ORDER[::-1]
        ctl(daemon, "start", "h:*", "g:*")
        assert started(daemon, 9)[6:] == ["h:c", "g:b", "g:a"]  # names are taken as they were given
        ctl(daemon, "restart", "g:*")
        assert stopped(daemon, 8)[6:] == ["g:a", "g:b"]
        assert started(daemon, 11)[9:] == ["g:b", "g:a"]


def test_clients_of_supervisor_start_all_by_priority_and_stop_in_reverse(tmp_path: Path) -> None:
    with (
        Daemon(tmp_path, programs("autostart=false")) as daemon,
        xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket)) as proxy,
    ):
        proxy.supervisor.startAllProcesses()
        assert started(daemon, 6) == IN_ORDER
        proxy.supervisor.stopAllProcesses()
        assert stopped(daemon, 6) == IN_ORDER[::-1]


def test_update_starts_what_is_new_by_priority(tmp_path: Path) -> None:
    with Daemon(tmp_path, "") as daemon:
        daemon.write(programs())
        daemon.call("update")
        assert started(daemon, 6) == IN_ORDER

        daemon.write("")
        daemon.call("update")
        assert stopped(daemon, 6) == IN_ORDER[::-1]


def test_programs_restart_by_priority_after_a_host_crash(tmp_path: Path) -> None:
    with Daemon(tmp_path, programs()) as daemon:
        started(daemon, 6)
        daemon.until_state("m", "RUNNING")
        pids = [program["pid"] for program in daemon.call("status")["programs"]]
        daemon.die()
        subprocess.run(["kill", "-9", *map(str, pids)], check=True)
        daemon.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all are gone")
        with contextlib.closing(sqlite3.connect(tmp_path / "state/ledger.sqlite3")) as ledger, ledger:
            ledger.execute("UPDATE attempts SET boot_id = 'before the reboot'")

        daemon.start()

        assert started(daemon, 12)[6:] == IN_ORDER


@pytest.mark.parametrize("how", ["daemon", "all"])
def test_depends_on_wins_over_priority(tmp_path: Path, how: str) -> None:
    base = "priority=900\n" + ("" if how == "daemon" else "autostart=false")
    needy = f"priority=1\ndepends_on=base\n{'' if how == 'daemon' else 'autostart=false'}"
    written = SLEEPER.format(name="needy", keys=needy)
    with Daemon(tmp_path, written + SLEEPER.format(name="base", keys=base)) as daemon:
        if how == "all":
            ctl(daemon, "start", "all")
        assert started(daemon, 2) == ["base", "needy"]
        daemon.until_state("needy", "RUNNING")
        daemon.stop()
        assert stopped(daemon, 2) == ["needy", "base"]
