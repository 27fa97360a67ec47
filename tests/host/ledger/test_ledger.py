"""The ledger remembers through everything that happens to daemons, hosts and disks."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from supervisor.core.goodput import MeterReading, TimeSpent
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.host.ledger import ledger as ledger_module
from supervisor.host.ledger import schema
from supervisor.host.ledger import writer as ledger_writer
from supervisor.host.ledger.attempts import MAX_TEXT, AttemptRecord, OpenAttempt
from supervisor.host.ledger.ledger import CLOSE_WAIT_S, Ledger, LedgerError
from tests.fuzzing import cases
from tests.host.conftest import PATIENCE_S, Spawned
from tests.reading import descriptors
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that others use may take long for a sync."""
    monkeypatch.setattr(ledger_writer, "READ_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(ledger_module, "CLOSE_WAIT_S", PATIENCE_S)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite3")
    yield made
    made.close()


def _attempt(ledger: Ledger, number: int, begins: int | None, ends: int | None, program: str = "digits") -> None:
    """An attempt that restored at step `begins` (None: never did) and was killed after step `ends`."""
    ledger.attempts.attempt_started(program, number, 1000 + number, 77, number * 100.0)
    if begins is not None:
        ledger.attempts.attempt_restored(program, number, f"step-{begins:010d}.a1" if begins else None, begins)
    ledger.attempts.attempt_ended(program, number, "crash", "killed by SIGKILL", None, 9, ends, number * 100.0 + 50)


def _lost(ledger: Ledger) -> list[int | None]:
    return [record.lost_steps for record in ledger.attempts.history("digits")]


def test_wanted_state_is_stored(ledger: Ledger, tmp_path: Path) -> None:
    ledger.wanted.record_wanted("digits", True)
    ledger.wanted.record_wanted("charlm", True)
    ledger.wanted.record_wanted("charlm", False)
    ledger.close()

    with closing(Ledger(tmp_path / "ledger.sqlite3")) as later:
        assert later.wanted.wanted_programs() == {"charlm": False, "digits": True}


@pytest.mark.parametrize("set_s", [-18000.0, 0.0, 18000.0])
def test_an_attempt_whose_end_nobody_saw_lasted_no_longer_than_the_host_has_run(ledger: Ledger, set_s: float) -> None:
    """Somebody sets the wall clock, by hours, while no daemon runs."""
    ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - 60.0) * os.sysconf("SC_CLK_TCK"))
    ledger.attempts.attempt_started("digits", 1, 4242, ticks, time.time() - 60.0 - set_s)

    ledger.attempts.attempt_ended("digits", 1, "lost", "exit status unknown", None, None, None, time.time())

    (record,) = ledger.attempts.history("digits")
    assert record.ran_s == pytest.approx(60.0, abs=3.0)


def test_an_end_takes_no_step_back_and_the_account_knows_how_far_its_attempt_came(ledger: Ledger) -> None:
    ledger.attempts.attempt_started("digits", 1, 4242, 77, 1000.0)
    ledger.attempts.attempt_restored("digits", 1, None, 0)
    ledger.attempts.attempt_progressed("digits", 1, 100)
    ledger.accounts.store("digits", MeterReading(1, {}, TimeSpent.TRAINING, 96, 96), 0.0)

    account = ledger.accounts.load_last("digits")
    ledger.attempts.attempt_ended("digits", 1, "crash", "killed", None, 9, 98, 1050.0, 50.0)

    assert account is not None and (account.reached, account.status.furthest) == (100, 100)
    assert [record.to_step for record in ledger.attempts.history("digits")] == [100]


def test_an_attempt_is_told_whole(ledger: Ledger) -> None:
    ledger.attempts.attempt_started("digits", 3, 4242, 77, 1000.0)
    ledger.checkpoints.checkpoint_refused("digits", 3, "step-0000000200.a2", "ckpt.index is missing", 1001.0)
    ledger.checkpoints.checkpoint_refused("digits", 3, "step-0000000150.a2", "is not JSON", 1001.5)
    ledger.attempts.attempt_restored("digits", 3, "step-0000000100.a2", 100, ("cores is 1, was 2", "xla is , was --x"))
    ledger.checkpoints.checkpoint_committed("digits", 3, "step-0000000110.a3", 110, 0.5, 0.1, 1002.0)
    ledger.checkpoints.checkpoint_committed("digits", 3, "step-0000000120.a3", 120, 0.5, 0.1, 1003.0)
    ledger.attempts.attempt_ended("digits", 3, "crash", "killed by SIGKILL", None, 9, 127, 1004.0)

    assert ledger.attempts.history("digits") == [
        AttemptRecord(
            attempt=3,
            started_wall_at=1000.0,
            ended_wall_at=1004.0,
            restored="step-0000000100.a2",
            from_step=100,
            to_step=127,
            cause="crash",
            text="killed by SIGKILL",
            exit_code=None,
            signal=9,
            lost_steps=None,
            refused=(("step-0000000200.a2", "ckpt.index is missing"), ("step-0000000150.a2", "is not JSON")),
            checkpoints=2,
            changed=("cores is 1, was 2", "xla is , was --x"),
            ran_s=4.0,
        )
    ]


def test_lost_steps_lie_between_an_end_and_the_next_beginning(ledger: Ledger) -> None:
    _attempt(ledger, 1, 0, 127)
    _attempt(ledger, 2, 120, 200)
    _attempt(ledger, 3, 200, None)

    assert _lost(ledger) == [7, 0, None]


def test_an_attempt_that_never_trained_is_no_beginning(ledger: Ledger) -> None:
    _attempt(ledger, 1, 0, 127)
    _attempt(ledger, 2, None, None)
    _attempt(ledger, 3, 100, 130)

    assert _lost(ledger) == [27, None, None]


def test_lost_steps_are_never_negative(ledger: Ledger) -> None:
    _attempt(ledger, 1, 0, 90)  # its last words were lost, its last checkpoint was not
    _attempt(ledger, 2, 100, 130)

    assert _lost(ledger) == [0, None]


def test_what_an_attempt_lost_is_not_known_if_no_daemon_saw_its_end(ledger: Ledger) -> None:
    """It came as far as its last checkpoint, at least; the next one began there."""
    for number, cause in enumerate(("lost", "preemption", "stopped", "crash"), 1):
        ledger.attempts.attempt_started("digits", number, 1000 + number, 77, number * 100.0)
        ledger.attempts.attempt_restored("digits", number, "c", number * 10)
        reached = number * 10 + (13 if cause == "crash" else 10)
        ledger.attempts.attempt_ended("digits", number, cause, "gone", None, None, reached, number * 100.0 + 50)
    _attempt(ledger, 5, 50, None)

    assert _lost(ledger) == [None, None, 0, 3, None]


def test_without_last_words_the_last_checkpoint_tells_how_far_it_came(ledger: Ledger) -> None:
    ledger.attempts.attempt_started("digits", 1, 4242, 77, 1000.0)
    ledger.attempts.attempt_restored("digits", 1, None, 0)
    ledger.checkpoints.checkpoint_committed("digits", 1, "step-0000000050.a1", 50, 0.1, 0.1, 1001.0)
    ledger.attempts.attempt_progressed("digits", 1, 60)
    ledger.attempts.attempt_progressed("digits", 1, 55)
    ledger.attempts.attempt_ended("digits", 1, "lost", "gone", None, None, None, 1002.0)

    assert ledger.attempts.history("digits")[0].to_step == 60


def test_an_attempt_that_never_became_a_process_is_told_too(ledger: Ledger) -> None:
    ledger.attempts.attempt_ended("digits", 1, "spawn", "no such command", None, None, None, 1000.0)

    (record,) = ledger.attempts.history("digits")
    assert (record.started_wall_at, record.ended_wall_at, record.text) == (1000.0, 1000.0, "no such command")
    assert ledger.attempts.unfinished_attempts() == []
    assert ledger.attempts.last_attempts() == {"digits": 1}


def test_history_is_the_last_attempts_newest_last(ledger: Ledger) -> None:
    for number in range(1, 31):
        _attempt(ledger, number, 0, number)
    _attempt(ledger, 1, 0, 5, program="charlm")

    assert [record.attempt for record in ledger.attempts.history("digits", limit=3)] == [28, 29, 30]
    assert [record.attempt for record in ledger.attempts.history("digits")] == list(range(11, 31))
    assert ledger.attempts.history("unknown") == []


def test_attempts_without_an_end_are_found(ledger: Ledger) -> None:
    _attempt(ledger, 1, 0, 100)
    ledger.attempts.attempt_started("digits", 2, 4242, 77, 1000.0)
    ledger.attempts.attempt_started("charlm", 9, 4243, 78, 1000.0)

    assert ledger.attempts.unfinished_attempts() == [
        OpenAttempt("charlm", 9, 4243, 78, started_at=1000.0),
        OpenAttempt("digits", 2, 4242, 77, started_at=1000.0),
    ]
    assert ledger.attempts.last_attempts() == {"charlm": 9, "digits": 2}


def test_an_attempt_of_an_earlier_boot_is_known_as_such(ledger: Ledger, tmp_path: Path) -> None:
    ledger.attempts.attempt_started("digits", 1, 4242, 77, 1000.0)
    ledger.attempts.attempt_started("charlm", 1, 4243, 78, 1000.0)
    assert len(ledger.attempts.unfinished_attempts()) == 2
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as shell, shell:
        shell.execute("UPDATE attempts SET boot_id = 'another' WHERE program = 'digits'")

    assert [(attempt.program, attempt.of_this_boot) for attempt in ledger.attempts.unfinished_attempts()] == [
        ("charlm", True),
        ("digits", False),
    ]


def test_durations_of_the_last_saves_are_stored(ledger: Ledger) -> None:
    for number in range(5):
        ledger.checkpoints.checkpoint_committed(
            "digits", 1, f"step-{number}", number, float(number), 0.1, 1000.0 + number
        )
    ledger.checkpoints.checkpoint_committed("charlm", 1, "step-9", 9, 7.5, 0.1, 1000.0)

    ledger.checkpoints.checkpoint_measured("digits", 1, "step-3", 4096)

    assert ledger.checkpoints.recent_saves(3) == {"digits": [(2.0, 0), (3.0, 4096), (4.0, 0)], "charlm": [(7.5, 0)]}


def test_a_locked_ledger_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.05)
    path = tmp_path / "ledger.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")  # as a person's own shell does
        with pytest.raises(LedgerError, match="database is locked"):
            Ledger(path)

    with closing(Ledger(path)) as later:
        assert later.set_aside is None


def test_removed_group_stays_removed_until_added(ledger: Ledger) -> None:
    ledger.wanted.record_removed("digits")
    ledger.wanted.record_removed("digits")
    ledger.wanted.record_removed("charlm")
    ledger.wanted.record_added("charlm")

    assert ledger.wanted.removed_programs() == {"digits"}


@pytest.mark.integration
async def test_a_kill_loses_nothing_that_was_written(tmp_path: Path, start_child: Callable[..., Spawned]) -> None:
    path = tmp_path / "ledger.sqlite3"
    writer = start_child("bookkeeper.py", str(path))
    said = 0
    while said < 20:
        said = int(await writer.line())
    writer.process.send_signal(9, group=False)
    await writer.exit()

    with closing(Ledger(path)) as later:
        assert later.set_aside is None
        assert later.attempts.last_attempts()["digits"] >= said
        assert len(later.attempts.history("digits", 1000)) >= said
        assert later.wanted.wanted_programs() == {"digits": True}


def test_many_readers_do_not_disturb_the_writer(ledger: Ledger) -> None:
    seen: list[int] = []
    readers = [
        threading.Thread(target=lambda: seen.append(len(ledger.attempts.history("digits", 1000)))) for _ in range(8)
    ]

    for number in range(1, 201):
        _attempt(ledger, number, 0, number)
        if number % 25 == 0:
            readers[number // 25 - 1].start()
    for reader in readers:
        reader.join()

    assert len(ledger.attempts.history("digits", 1000)) == 200
    assert sorted(seen)[0] >= 25  # each sees at least what was queued before it looked
    assert ledger.last_error is None


def test_a_daemon_that_reads_another_connections_lock_waits(ledger: Ledger, tmp_path: Path) -> None:
    ledger.wanted.wanted_programs()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        ledger.wanted.record_wanted("digits", True)
        shell.execute("COMMIT")

    assert ledger.wanted.wanted_programs() == {"digits": True}


@pytest.mark.parametrize(
    "content", [b"not a database, but longer than a header" * 50, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_corrupt_ledger_is_set_aside_and_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    for number in (1, 2):
        path.write_bytes(content)
        with closing(Ledger(path)) as fresh:
            assert fresh.set_aside == tmp_path / f"ledger.sqlite3.corrupt-{number}"
            assert fresh.set_aside.read_bytes() == content
            assert fresh.wanted.wanted_programs() == {}


@cases(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(start=47, damage=b"\x05")  # "unsupported file format"
@example(start=18, damage=b"\x05")  # "attempt to write a readonly database"
@example(start=0, damage=b"x")
@given(start=st.integers(0, 30_000), damage=st.binary(min_size=1, max_size=4096))
def test_no_damage_to_the_file_stops_the_daemon(start: int, damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    for leftover in tmp_path.iterdir():
        leftover.unlink()
    with closing(Ledger(path)) as before:
        for number in range(1, 40):
            _attempt(before, number, 0, number)
    content = bytearray(path.read_bytes())
    content[start : start + len(damage)] = damage
    path.write_bytes(content)

    try:
        after = Ledger(path)
    except LedgerError as error:
        assert "nothing was changed" in str(error), "damage has made another version's number of the version"
        return
    with closing(after):
        after.wanted.record_wanted("digits", True)
        try:
            after.attempts.history("digits")
        except LedgerError as error:
            assert "cannot read the ledger" in str(error)


def test_a_ledger_that_lacks_a_table_is_set_aside(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as shell:
        shell.execute("DROP TABLE refusals")

    with closing(Ledger(tmp_path / "ledger.sqlite3")) as fresh:
        assert fresh.set_aside is not None


def test_ledger_that_can_not_be_created_says_so(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger(tmp_path / "missing" / "ledger.sqlite3")
    with pytest.raises(LedgerError, match="cannot open the ledger"):
        Ledger(tmp_path)


def test_only_the_daemons_user_can_read_it(ledger: Ledger, tmp_path: Path) -> None:
    ledger.wanted.record_wanted("digits", True)
    ledger.wanted.wanted_programs()

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_text_no_database_takes_is_kept_as_far_as_possible(ledger: Ledger) -> None:
    ledger.attempts.attempt_ended("digits", 1, "crash", "no file caf\udce9 \0", 1, None, None, 1000.0)

    assert ledger.attempts.history("digits")[0].text == "no file caf? \0"
    assert ledger.last_error is None


def test_a_record_that_can_never_be_written_blocks_nothing_and_is_counted(ledger: Ledger) -> None:
    ledger.attempts.attempt_progressed("digits", 1, 2**70)
    ledger.wanted.record_wanted("digits", True)

    assert ledger.wanted.wanted_programs() == {"digits": True}
    assert ledger.last_error is not None and "1 record lost" in ledger.last_error


def fill(ledger: Ledger, size: int) -> None:
    for number in range(size // MAX_TEXT):
        ledger.checkpoints.checkpoint_refused("digits", 1, f"step-{number:010d}.a1", "x" * MAX_TEXT, 1000.0)


@pytest.mark.integration
def test_on_a_full_disk_it_waits_says_so_and_goes_on_later(small_disk: Path) -> None:
    with closing(Ledger(small_disk / "ledger.sqlite3")) as ledger:
        ledger.wanted.record_wanted("digits", True)
        ledger.wanted.wanted_programs()
        with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        fill(ledger, 100_000)
        ledger.wanted.record_wanted("digits", False)

        assert ledger.attempts.history("digits") == []  # what is on the disk, without waiting for the rest
        assert asyncio.run(ledger.wanted.until_recorded()) is not None
        assert (
            ledger.last_error is not None
            and "disk is full; it is tried again and nothing is lost yet" in ledger.last_error
        )
        (small_disk / "filler").unlink()
        assert asyncio.run(ledger.wanted.until_recorded()) is None, "it is tried at once when somebody waits"
        assert ledger.last_error is None
    with closing(Ledger(small_disk / "ledger.sqlite3")) as later:
        assert later.wanted.wanted_programs() == {"digits": False}


@pytest.mark.integration
def test_a_full_disk_does_not_keep_the_daemon_from_leaving(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_writer, "RETRY_S", 600.0)
    ledger = Ledger(small_disk / "ledger.sqlite3")
    fill(ledger, 400_000)
    wait_until(lambda: ledger.last_error is not None)
    began = time.monotonic()

    ledger.close()

    assert time.monotonic() - began < CLOSE_WAIT_S  # it does not wait for the next try, until it would give up


def test_writes_after_close_are_dropped_without_error(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close()
    ledger.wanted.record_wanted("digits", True)
    ledger.close()

    with closing(Ledger(tmp_path / "ledger.sqlite3")) as later:
        assert later.wanted.wanted_programs() == {}


# --- what is wanted survives the ledger -------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_what_is_wanted_survives_a_lost_ledger(tmp_path: Path, content: bytes | None):
    path = tmp_path / "ledger.sqlite3"
    with closing(Ledger(path)) as ledger:
        ledger.wanted.record_wanted("on", True)
        ledger.wanted.record_wanted("off", False)
        ledger.wanted.record_removed("gone")
        ledger.attempts.attempt_started("on", 3, 4711, 99, 1000.0)
    for each in tmp_path.glob("ledger.sqlite3*"):
        each.unlink()
    if content is not None:
        path.write_bytes(content)

    with closing(Ledger(path)) as later:
        assert later.wanted.wanted_programs() == {"on": True, "off": False}
        assert later.wanted.removed_programs() == {"gone"}
        assert later.is_lost == (not content)
        assert later.last_error is not None


def test_deleted_ledger_is_made_again_with_all_its_content(ledger: Ledger, tmp_path: Path):
    ledger.attempts.attempt_ended("digits", 1, "crash", "no", 1, None, 7, 1000.0)
    assert len(ledger.attempts.history("digits")) == 1
    for path in tmp_path.iterdir():
        path.unlink()

    ledger.attempts.attempt_ended("digits", 2, "crash", "no", 1, None, 9, 1000.0)

    assert [attempt.attempt for attempt in ledger.attempts.history("digits")] == [1, 2]
    assert ledger.last_error is not None and "was deleted" in ledger.last_error
    ledger.close()
    with closing(Ledger(tmp_path / "ledger.sqlite3")) as later:
        assert [attempt.attempt for attempt in later.attempts.history("digits")] == [1, 2]
        assert later.last_error is None


def test_ledger_that_is_damaged_while_it_is_in_use_is_set_aside(ledger: Ledger, tmp_path: Path):
    ledger.wanted.record_wanted("digits", False)
    ledger.attempts.attempt_started("digits", 1, 4711, 99, 1000.0)
    ledger.job_states.store("digits", PersistedFacts(restore_below_step=20), "abc")
    assert len(ledger.attempts.history("digits")) == 1
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (tmp_path / "ledger.sqlite3").open("r+b") as file:
        file.write(b"\xff" * file.seek(0, os.SEEK_END))
        file.seek(0)
        file.write(b"\xff" * 50_000)

    ledger.attempts.attempt_progressed("digits", 1, 5)

    assert [attempt.attempt for attempt in ledger.attempts.unfinished_attempts()] == [1]
    assert (tmp_path / "ledger.sqlite3.corrupt-1").exists()
    assert ledger.last_error is not None and "corrupt-1" in ledger.last_error
    assert ledger.wanted.wanted_programs() == {"digits": False}
    recalled = ledger.job_states.load("digits")
    assert recalled is not None and recalled.facts.restore_below_step == 20


def test_where_a_start_begins_is_recorded_only_with_the_ledger_itself(ledger: Ledger, tmp_path: Path):
    """Of an order to begin from scratch, the file of what is wanted knows nothing."""
    ledger.wanted.record_wanted("digits", False)
    assert ledger.wanted.wanted_programs() == {"digits": False}
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.wanted.record_wanted("digits", True)
        ledger.job_states.store("digits", PersistedFacts(begin_at=0), "abc")
        wait_until(lambda: '"digits": true' in (tmp_path / "wanted.json").read_text())
        assert asyncio.run(ledger.wanted.until_recorded()) is None

        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(ledger.wanted.until_recorded(with_decisions=True), 0.1))
        other.execute("ROLLBACK")
        assert asyncio.run(ledger.wanted.until_recorded(with_decisions=True)) is None


@pytest.mark.slow
def test_locked_ledger_keeps_no_stop_from_being_recorded(ledger: Ledger, tmp_path: Path):
    ledger.wanted.record_wanted("digits", True)
    assert ledger.wanted.wanted_programs() == {"digits": True}
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.wanted.record_wanted("digits", False)
        wait_until(lambda: '"digits": false' in (tmp_path / "wanted.json").read_text())

        assert asyncio.run(ledger.wanted.until_recorded()) is None
        other.execute("ROLLBACK")


def test_ledger_with_impossible_attempts_is_repaired(ledger: Ledger, tmp_path: Path):
    ledger.attempts.attempt_started("digits", 7, 4711, 99, 1000.0)
    ledger.attempts.attempt_started("digits", 1 << 60, 4711, 99, 1000.0)
    ledger.close()

    with closing(Ledger(tmp_path / "ledger.sqlite3")) as later:
        assert later.repaired == 1
        assert later.attempts.last_attempts() == {"digits": 7}


def test_descriptors_do_not_grow(ledger: Ledger) -> None:
    ledger.wanted.wanted_programs()
    before = descriptors()
    for _ in range(50):
        ledger.wanted.wanted_programs()

    assert len(os.listdir("/proc/self/fd")) == before


def test_attempts_that_trained_and_are_over_are_counted_with_how_long_they_ran(ledger: Ledger) -> None:
    _attempt(ledger, 1, begins=0, ends=7)
    _attempt(ledger, 2, begins=None, ends=None)
    ledger.attempts.attempt_started("digits", 3, 1003, 77, 300.0)
    ledger.attempts.attempt_restored("digits", 3, None, 0)

    assert ledger.attempts.ended_attempts("digits") == [(50.0, "crash")]


def test_the_longest_silence_of_each_section_is_remembered_as_it_was_told_last(ledger: Ledger):
    ledger.job_states.record_hang_history("digits", {"step": 4.0, "save": 9.0})
    ledger.job_states.record_hang_history("digits", {"step": 2.0})
    ledger.job_states.record_hang_history("other", {"step": 50.0})

    assert ledger.job_states.hang_history("digits") == {"step": 2.0, "save": 9.0}


def test_a_clock_that_is_set_changes_neither_durations_nor_what_is_newest(ledger: Ledger) -> None:
    for number, at in enumerate((90_000.0, 90_001.0, 3_600.0)):  # set back by a day before the last one
        ledger.checkpoints.checkpoint_committed("digits", 1, f"step-{number}", number, float(number), 0.1, at)
    ledger.attempts.attempt_started("digits", 1, 7, 7, 90_000.0)
    ledger.attempts.attempt_restored("digits", 1, None, 0)
    ledger.attempts.attempt_ended("digits", 1, "crash", "killed", None, 9, 2, 3_700.0, 100.0)
    _attempt(ledger, 2, 0, 2)

    assert ledger.checkpoints.recent_saves(2) == {"digits": [(1.0, 0), (2.0, 0)]}
    assert ledger.attempts.ended_attempts("digits") == [(100.0, "crash"), (50.0, "crash")]
    assert [attempt.ran_s for attempt in ledger.attempts.history("digits")] == [100.0, 50.0]
