"""What the time of a program went into."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.goodput import MeterReading, TimeSpent
from supervisor.core.program.facts import State
from supervisor.host.ledger.accounts import StoredAccount
from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.wire import messages
from supervisor.runner.records.goodput import GoodputRecorder


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    yield ledger
    ledger.close()


def test_seconds_count_for_the_state_in_which_they_passed(ledger: Ledger):
    recorder = GoodputRecorder("digits", ledger, now=0.0)
    recorder.count_state(State.STARTING, now=3.0)
    recorder.count_state(State.RUNNING, now=10.0)
    recorder.count_state(State.FAILED, now=11.0)
    recorder.count_state(State.ADOPTING, now=11.5)

    assert recorder.state_s == {"starting": 3.5, "running": 7.0, "down": 1.0}


def test_a_program_without_an_account_has_no_categories(ledger: Ledger):
    recorder = GoodputRecorder("web", ledger, now=0.0)

    assert (recorder.total_s(), recorder.save()) == ({}, None)


def test_what_an_adopted_worker_did_after_its_account_was_stored_is_no_replay(ledger: Ledger):
    """The first reports that it made without a daemon are of steps that the ledger has, and come after a long time."""
    recorder = GoodputRecorder("digits", ledger, now=0.0)
    status = MeterReading(1, {}, TimeSpent.TRAINING, step=96, furthest=100)
    recorder.start_meter(StoredAccount(status, 60.0, reached=100), 1)
    recorder.on_adopted(1, 120.0)

    for step in (97, 98, 110):
        recorder.on_message(messages.Progress(1, step, 0, 1000, 0.1, {}, None), time.monotonic())

    assert recorder.total_s()["replaying"] < 0.1
    assert recorder.total_s()["training"] == pytest.approx(60.0, abs=5.0)
