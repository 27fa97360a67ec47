"""The daemon that ends by itself, with a status that tells how."""

from pathlib import Path

from tests.system.harness import PATIENCE_S, Daemon, job

SLEEPER = "[program:sleeper]\ncommand=/bin/sleep 100000\n"
BROKEN = "[program:broken]\ncommand=/bin/sh -c 'exit 3'\nstartretries=0\n"


def ends(daemon: Daemon) -> int:
    daemon.launch()
    assert daemon.process is not None
    return daemon.process.wait(PATIENCE_S)


def test_fatal_ends_it_with_70_once_a_program_is_given_up(tmp_path: Path) -> None:
    assert ends(Daemon(tmp_path, SLEEPER + BROKEN, "exit_on=fatal")) == 70


def test_done_ends_it_with_0_once_training_is_done_and_so_does_the_next_one(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, job("digits", tmp_path, STEPS=5), "exit_on=done")

    assert ends(daemon) == 0
    assert ends(daemon) == 0  # nothing is wanted any more: a restarted container ends again
    assert daemon.events("worker.spawned") == ["worker.spawned"]


def test_done_with_a_program_that_failed_ends_it_with_70(tmp_path: Path) -> None:
    assert ends(Daemon(tmp_path, job("digits", tmp_path, STEPS=5) + BROKEN, "exit_on=done")) == 70


def test_a_sigterm_before_training_is_done_is_not_taken_for_its_end(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, SLEEPER, "exit_on=fatal, done")
    with daemon:
        assert daemon.process is not None
        daemon.process.terminate()
        assert daemon.process.wait(PATIENCE_S) == 143
