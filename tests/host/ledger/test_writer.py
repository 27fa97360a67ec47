"""The ledger's thread: who asks whether something is written gets an answer, whenever the question comes."""

import threading
from concurrent.futures import Future
from pathlib import Path

from supervisor.host.ledger.schema import open_or_create
from supervisor.host.ledger.writer import LedgerWriter, Pruning
from tests.waiting import wait_until


def test_question_that_comes_during_the_write_is_answered_after_it(tmp_path: Path):
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    asked: list[Future[None]] = []
    begun, go_on = threading.Event(), threading.Event()

    def write_before() -> bool:
        begun.set()
        return go_on.wait(60)

    writer = LedgerWriter(connection, Pruning(), path, write_before)
    try:
        writer.enqueue("INSERT INTO programs VALUES (?, ?)", "digits", 1)
        assert begun.wait(60)
        asked.append(writer.written())
        go_on.set()

        wait_until(asked[0].done, "the answer, with nothing written after it", timeout_s=10)
    finally:
        go_on.set()
        writer.close(60)
