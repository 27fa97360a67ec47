"""What is known of a program's process while somebody sets the clock."""

import time

import pytest

from supervisor.host.processes.process_status import Exit
from supervisor.runner.records.process import ProcessRecord

HOUR_S = 3600.0


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S], ids=["forth", "back"])
def test_a_start_moves_with_the_clock_while_the_process_runs_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
):
    wall_at, set_s = time.time(), 0.0
    monkeypatch.setattr(time, "time", lambda: wall_at + set_s)
    record = ProcessRecord()
    record.started(1, time.monotonic() - 60.0)
    assert record.started_wall_at == pytest.approx(wall_at - 60.0, abs=1.0)

    set_s = ahead_s

    assert record.started_wall_at == pytest.approx(wall_at + ahead_s - 60.0, abs=1.0)
    assert record.started_wall_at == record.started_wall_at
    record.ended(Exit(0, None))
    set_s = 0.0
    assert record.started_wall_at == pytest.approx(wall_at + ahead_s - 60.0, abs=1.0)
    assert record.run_time_s == pytest.approx(60.0, abs=1.0)
