"""Programs that are stopped by a command, under a real daemon."""

from pathlib import Path

from tests.system.harness import Daemon

STUBBORN = "[program:p]\ncommand=/bin/sh -c 'trap \"\" TERM; touch {0}/up; while :; do sleep 0.05; done'\nstartsecs=0\n"


def stopped(folder: Path, keys: str) -> dict[str, object]:
    """How the program ended after a stop, by the ledger."""
    with Daemon(folder, STUBBORN.format(folder) + keys) as daemon:
        daemon.until((folder / "up").exists, "the signal is ignored from now on")
        daemon.call("stop", name="p")
        return dict(daemon.call("history", name="p")["attempts"][0])


def test_the_command_ends_what_ignores_the_signal(tmp_path: Path) -> None:
    ended = stopped(tmp_path, "stop_command=/bin/sh -c 'kill -USR1 $SUPERVISOR_PROGRAM_PID'\nstopwaitsecs=100\n")

    assert (ended["signal"], ended["cause"]) == (10, "stopped")


def test_the_signal_follows_a_command_that_fails(tmp_path: Path) -> None:
    ended = stopped(tmp_path, "stop_command=/nonexistent/command\nstopsignal=USR2\nstopwaitsecs=100\n")

    assert (ended["signal"], ended["cause"]) == (12, "stopped")


def test_the_kill_comes_in_time_whatever_the_command_does(tmp_path: Path) -> None:
    ended = stopped(tmp_path, "stop_command=/bin/sleep 100000\nstopwaitsecs=1\n")

    assert ended["signal"] == 9
