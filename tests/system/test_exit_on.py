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


def test_done_waits_until_the_last_checkpoint_is_in_the_mirror(tmp_path: Path) -> None:
    (tmp_path / "store" / "digits").mkdir(parents=True)
    daemon = Daemon(tmp_path, job("digits", tmp_path, f"mirror=file://{tmp_path}/store", STEPS=5), "exit_on=done")

    assert ends(daemon) == 0
    (newest,) = (path.name for path in (tmp_path / "digits").glob("step-0000000005*"))
    assert list((tmp_path / "store").rglob(f"{newest}/MANIFEST.json"))


def test_training_whose_last_checkpoint_is_not_in_the_mirror_is_not_done(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "digits").mkdir(parents=True)
    digits = job("digits", tmp_path, f"mirror=file://{store}", STEPS=60, STEP_S=0.02, EVERY=1000)
    with Daemon(tmp_path, digits, "exit_on=fatal, done") as daemon:
        daemon.until_step("digits", 5)
        daemon.until(lambda: daemon.status("digits")["job"]["mirror"]["epoch"], "the mirror is there")
        store.rename(tmp_path / "away")
        store.write_text("a file where the folder should be")
        daemon.until_state("digits", "SUCCEEDED")
        daemon.until(lambda: daemon.status("digits")["job"]["mirror"]["error"], "the upload fails")

        assert daemon.stop() == 143
