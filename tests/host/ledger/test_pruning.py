"""The ledger forgets what is old, in pieces, and never what is needed."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.core.goodput import MeterReading, TimeSpent
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.pruning import LEAST_ATTEMPTS, PRUNED_AT_ONCE, SAVES_KEPT, Pruning
from tests.waiting import wait_until

PATIENCE_S = 60.0


def filled(path: Path, attempts: int, ended_at: float) -> None:
    with closing(Ledger(path, Pruning(attempts=100_000, days=36_500))) as ledger:
        for attempt in range(1, attempts + 1):
            ledger.attempts.attempt_started("digits", attempt, 1, 1, ended_at - 1)
            ledger.accounts.store("digits", MeterReading(attempt, {TimeSpent.TRAINING: 1.0}, TimeSpent.DOWN), 0.0)
            ledger.attempts.attempt_ended("digits", attempt, "crash", "", 1, None, None, ended_at)
        ledger.attempts.attempt_started("digits", attempts + 1, 1, 1, ended_at)  # runs


def left(path: Path, pruning: Pruning, expected: int) -> list[int]:
    """The attempts that are left once there are as many as expected."""
    with closing(Ledger(path, pruning)) as ledger:
        wait_until(lambda: len(ledger.attempts.history("digits", 10_000)) == expected)
        kept = [attempt.attempt for attempt in ledger.attempts.history("digits", 10_000)]
        assert sorted(ledger.accounts.time_spent("digits")) == kept[:-1]
        return kept


def test_no_more_attempts_stay_than_are_to_be_kept(tmp_path: Path):
    filled(tmp_path / "ledger.sqlite3", 2 * PRUNED_AT_ONCE + 50, time.time())

    kept = left(tmp_path / "ledger.sqlite3", Pruning(attempts=30, days=365), 30)

    assert kept == list(range(2 * PRUNED_AT_ONCE + 22, 2 * PRUNED_AT_ONCE + 52))


def test_old_attempts_are_pruned_except_the_last_few(tmp_path: Path):
    filled(tmp_path / "ledger.sqlite3", 50, time.time() - 10 * 86400)

    kept = left(tmp_path / "ledger.sqlite3", Pruning(attempts=1000, days=5), LEAST_ATTEMPTS)

    assert kept == list(range(52 - LEAST_ATTEMPTS, 52))


def test_saves_that_are_forgotten_are_still_counted(tmp_path: Path):
    path, count = tmp_path / "ledger.sqlite3", SAVES_KEPT + PRUNED_AT_ONCE + 7
    with closing(Ledger(path)) as ledger:
        ledger.attempts.attempt_started("digits", 1, 1, 1, 1.0)
        for step in range(count):
            ledger.checkpoints.checkpoint_committed("digits", 1, f"step-{step}.a1", step, 1.0, 0.1, float(step))
            if step % 200 == 199:
                ledger.attempts.last_attempts()  # waits until all is written: the queue has room for so many

    with closing(Ledger(path)) as ledger:
        wait_until(lambda: len(ledger.checkpoints.recent_saves(10_000)["digits"]) <= SAVES_KEPT)
        assert len(ledger.checkpoints.recent_saves(10_000)["digits"]) == SAVES_KEPT
        assert ledger.attempts.history("digits")[0].checkpoints == count


@pytest.mark.thorough
def test_a_program_that_commits_without_end_grows_the_file_no_further(tmp_path: Path):
    """With the loop that once made 0.4 GB a minute; another program's records are all there."""
    path = tmp_path / "ledger.sqlite3"
    with closing(Ledger(path)) as ledger:
        ledger.attempts.attempt_started("victim", 1, 1, 1, 1.0)
        for step in range(300):
            ledger.checkpoints.checkpoint_committed("victim", 1, f"step-{step:010d}.a1", step, 1.0, 0.1, float(step))
        ledger.attempts.attempt_started("flood", 1, 1, 1, 1.0)
        sizes = []
        for step in range(8_000):
            ledger.checkpoints.checkpoint_committed("flood", 1, f"step-{step:010d}.a1", step, 1.0, 0.1, float(step))
            if step % 200 == 199:
                ledger.attempts.last_attempts()
                sizes.append(path.stat().st_size)

        assert len(ledger.checkpoints.recent_saves(100_000)["flood"]) <= SAVES_KEPT + 300
        assert len(ledger.checkpoints.recent_saves(100_000)["victim"]) == 300
    assert sizes[-1] - sizes[len(sizes) // 2] < 100_000, sizes


@pytest.mark.slow
def test_what_is_pruned_is_given_back_to_the_disk(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    with closing(Ledger(path, Pruning(attempts=100_000, days=36_500))) as ledger:
        for attempt in range(1, 2001):
            ledger.attempts.attempt_started("digits", attempt, 1, 1, 1.0)
            ledger.attempts.attempt_ended("digits", attempt, "crash", "x" * 4000, 1, None, None, 1.0)
        ledger.attempts.last_attempts()
    large = path.stat().st_size
    assert large > 8_000_000

    with closing(Ledger(path, Pruning(attempts=20, days=1))):
        wait_until(lambda: path.stat().st_size < 2_500_000, "the file is small again", PATIENCE_S)
        wal = path.with_name("ledger.sqlite3-wal")
        wait_until(lambda: wal.stat().st_size <= 1 << 20, "the journal is small again", PATIENCE_S)


def test_a_ledger_of_an_earlier_version_is_written_anew_once_when_half_of_it_is_free(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    with closing(Ledger(path)) as ledger:
        ledger.attempts.attempt_started("digits", 1, 1, 1, 1.0)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum = 0")
        connection.execute("VACUUM")
        connection.executemany(
            "INSERT INTO refusals VALUES ('digits', 1, ?, ?, 1.0)", [(f"n{n}", "x" * 4000) for n in range(1000)]
        )
        connection.commit()
        connection.execute("DELETE FROM refusals")
        connection.commit()
    assert path.stat().st_size > 4_000_000

    with closing(Ledger(path)) as ledger:
        wait_until(lambda: path.stat().st_size < 200_000, "the file is small", PATIENCE_S)
        assert ledger.attempts.last_attempts() == {"digits": 1}
