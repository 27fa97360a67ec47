"""What the time of a program went into."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.core.program.facts import State
from supervisor.host.ledger.ledger import Ledger
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
