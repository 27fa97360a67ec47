"""The ledger's thread: who asks whether something is written gets an answer, whenever the question comes."""

import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from supervisor.host.ledger import ledger_file
from supervisor.host.ledger.ledger_file import LedgerFile
from supervisor.host.ledger.pruning import Pruning
from supervisor.host.ledger.schema import LedgerError, open_or_create
from supervisor.host.ledger.write_queue import QUEUED_OF_ONE, QUEUED_WRITES
from supervisor.host.ledger.writer import LedgerWriter
from tests.waiting import wait_until


def test_question_that_comes_during_the_write_is_answered_after_it(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    asked: list[Future[None]] = []
    begun, go_on = threading.Event(), threading.Event()

    def write_before() -> bool:
        begun.set()
        return go_on.wait(60)

    writer = LedgerWriter(LedgerFile(connection, Pruning(), path, write_before))
    try:
        writer.enqueue("INSERT INTO programs VALUES (?, ?)", "digits", 1)
        assert begun.wait(60)
        asked.append(writer.written())
        go_on.set()

        wait_until(asked[0].done, "the answer, with nothing written after it", timeout_s=10)
    finally:
        go_on.set()
        writer.close(60)


def test_what_is_queued_together_is_written_as_a_whole(tmp_path: Path):
    """The end of an attempt, and what was decided about the next one: a kill in between must not leave half of it."""
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    writer = LedgerWriter(LedgerFile(connection, Pruning(), path))
    try:
        with writer.together():
            writer.enqueue(REFUSAL, "digits", "end", "why", of="digits")
            with writer.together():
                writer.enqueue(REFUSAL, "digits", "inside", "why", of="digits")
            asked = writer.written()
            with pytest.raises(TimeoutError):
                asked.result(0.1)
            assert written(tmp_path) == {}
            writer.enqueue(REFUSAL, "digits", "decision", "why", of="digits")

        writer.written().result(10)
        assert written(tmp_path) == {"digits": 3}
    finally:
        writer.close(60)


def test_what_was_queued_before_a_group_is_written_beside_it(tmp_path: Path):
    with stuck(tmp_path) as writer:
        writer.enqueue(REFUSAL, "before", "n", "why", of="before")
        with writer.together():
            writer.enqueue(REFUSAL, "inside", "n", "why", of="inside")
    assert written(tmp_path) == {"before": 1, "inside": 1}


REFUSAL = "INSERT OR REPLACE INTO refusals VALUES (?, 1, ?, ?, 1.0)"


@contextmanager
def stuck(folder: Path) -> Iterator[LedgerWriter]:
    """A writer whose disk does not answer until the block ends; then all that it took is written."""
    path = folder / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    go_on = threading.Event()
    writer = LedgerWriter(LedgerFile(connection, Pruning(), path, lambda: go_on.wait(60)))
    try:
        yield writer
    finally:
        go_on.set()
        writer.close(60)


def written(folder: Path) -> Counter[str]:
    """How many refusals of each program are in the file."""
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as connection:
        return Counter(dict(connection.execute("SELECT program, count(*) FROM refusals GROUP BY program")))


def test_a_program_that_floods_the_queue_drops_its_own_records_only(tmp_path: Path):
    with stuck(tmp_path) as writer:
        for number in range(2 * QUEUED_WRITES):
            writer.enqueue(REFUSAL, "flood", f"n{number}", "why", of="flood")
        taken = [writer.enqueue(REFUSAL, "victim", f"n{number}", "why", of="victim") for number in range(500)]
        is_wanted = writer.enqueue("INSERT INTO programs VALUES (?, ?)", "victim", 0)

        assert all(taken) and is_wanted
        assert writer.left_out("flood") == 2 * QUEUED_WRITES - QUEUED_OF_ONE
        assert writer.left_out("victim") == 0
        assert writer.failure_text is None
    assert written(tmp_path) == {"flood": QUEUED_OF_ONE, "victim": 500}


def test_a_program_with_few_records_has_room_beside_any_number_that_flood(tmp_path: Path):
    with stuck(tmp_path) as writer:
        for number in range(15):
            for record in range(QUEUED_OF_ONE):
                writer.enqueue(REFUSAL, f"flood{number}", f"n{record}", "why", of=f"flood{number}")

        assert all(writer.enqueue(REFUSAL, "victim", f"n{record}", "why", of="victim") for record in range(90))
        assert writer.enqueue("INSERT INTO programs VALUES (?, ?)", "victim", 0)
    assert written(tmp_path)["victim"] == 90


def test_a_program_has_so_many_bytes_in_the_queue_whatever_their_number(tmp_path: Path):
    with stuck(tmp_path) as writer:
        taken = [writer.enqueue(REFUSAL, "flood", f"n{number}", "x" * 60_000, of="flood") for number in range(100)]

        assert sum(taken) == 17
        assert writer.left_out("flood") == 83


def test_a_value_that_cannot_be_encoded_costs_that_record_only(tmp_path: Path):
    def not_json() -> str:
        return json.dumps(float("inf"), allow_nan=False)

    with stuck(tmp_path) as writer:
        writer.enqueue("INSERT OR REPLACE INTO series VALUES (?, ?)", "liar", not_json, of="liar")
        writer.enqueue(REFUSAL, "victim", "n", "why", of="victim")
    assert written(tmp_path) == {"victim": 1}


def test_new_file_that_can_not_be_made_yet_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk of a damaged ledger is full, too: once there is space, it is written again, without a restart."""
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    writer = LedgerWriter(
        LedgerFile(connection, Pruning(), path, vital=lambda: [("INSERT INTO programs VALUES (?, ?)", ("a", 1))])
    )
    made, is_full = ledger_file.open_or_create, True

    def open_(place: Path) -> tuple[sqlite3.Connection, Path | None]:
        if is_full:
            raise LedgerError("database or disk is full")
        return made(place)

    monkeypatch.setattr(ledger_file, "open_or_create", open_)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("INSERT INTO programs VALUES ('x', 1)")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with path.open("r+b") as file:
            file.write(b"x" * file.seek(0, os.SEEK_END))
            file.seek(0)
            file.write(b"x" * 50_000)
        writer.enqueue(REFUSAL, "digits", "first", "why", of="digits")
        wait_until(lambda: writer.failure_text, "it fails", timeout_s=10)
        assert "full" in (writer.failure_text or "")

        is_full = False
        writer.written()  # asks for another try
        wait_until(lambda: writer.failure_text is None, "it is written", timeout_s=10)
        assert written(tmp_path) == {"digits": 1}
        with closing(sqlite3.connect(path)) as reading:
            assert reading.execute("SELECT * FROM programs").fetchall() == [("a", 1)]
        assert [place.name for place in tmp_path.glob("*.corrupt-*")] == ["ledger.sqlite3.corrupt-1"]
    finally:
        writer.close(60)


def test_record_that_can_not_be_made_costs_itself_alone(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    writer = LedgerWriter(LedgerFile(connection, Pruning(), path))

    def broken() -> str:
        raise KeyError("series")

    try:
        writer.enqueue("INSERT OR REPLACE INTO series VALUES (?, ?)", "digits", broken)
        writer.enqueue(REFUSAL, "digits", "first", "why", of="digits")
        writer.written().result(10)

        assert written(tmp_path) == {"digits": 1}
        assert writer.failure_text is not None and "1 record lost" in writer.failure_text
    finally:
        writer.close(60)


def test_error_that_nobody_thought_of_is_tried_again(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    tries = list[int]()

    def write_before() -> bool:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        return True

    writer = LedgerWriter(LedgerFile(connection, Pruning(), path, write_before))
    try:
        writer.enqueue(REFUSAL, "digits", "first", "why", of="digits")
        wait_until(lambda: writer.failure_text, "it is shown")
        writer.written()
        wait_until(lambda: writer.failure_text is None, "it is written", timeout_s=10)
        assert written(tmp_path) == {"digits": 1}
    finally:
        writer.close(60)
