"""A job's series in the ledger and back."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.series import MAX_BUCKETS, MAX_METRICS, MetricSeries
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.series import from_json, snapshot, to_json
from tests.fuzzing import JSON, cases


def recorded(steps: int) -> MetricSeries:
    series = MetricSeries()
    for step in range(steps):
        series.add(step, 1e9 + step, 1 + step // 400, {"loss": 1 / (step + 1), "<b>": float(step)}, step_s=0.25)
    return series


@pytest.mark.parametrize("steps", [0, 1, 3000])
def test_all_of_it_comes_back(tmp_path: Path, steps: int):
    ledger = Ledger(tmp_path / "ledger")
    ledger.series.store("digits", recorded(steps))
    found = ledger.series.load("digits")
    ledger.close()

    assert {name: (each.per_bucket, each.buckets) for name, each in found.by_name.items()} == {
        name: (each.per_bucket, each.buckets) for name, each in recorded(steps).by_name.items()
    }


@cases(200)
@given(st.text() | JSON.map(json.dumps))
def test_damaged_row_is_no_series(text: str):
    from_json(text)


def test_row_that_is_too_long_is_cut(tmp_path: Path):
    row = [1, 1, 1.0, 1, 1, 1.0, 1.0, 1.0]
    content = {
        f"m{number}": {"per_bucket": 1, "buckets": [row] * (MAX_BUCKETS + 1)} for number in range(MAX_METRICS + 1)
    }

    found = from_json(json.dumps(content)).by_name

    assert len(found) == MAX_METRICS
    assert {len(each.buckets) for each in found.values()} == {MAX_BUCKETS}


@pytest.mark.parametrize("value", ["NaN", "1e999", "-1", '"1e999"', "null"])
def test_impossible_number_is_no_series(tmp_path: Path, value: str):
    text = to_json(snapshot(recorded(1))).replace("[0,0,", f"[0,{value},", 1)

    assert list(from_json(text).by_name) == ["<b>", "steps_per_second"], "the others stay"


def test_greatest_step_that_a_worker_can_report_comes_back():
    series = MetricSeries()
    series.add((1 << 63) - 1, 0.0, 1, {"loss": 1.0})

    assert from_json(to_json(snapshot(series))).by_name["loss"].buckets == series.by_name["loss"].buckets


def test_rows_that_wait_for_the_disk_are_written_once_with_the_latest_content(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    with closing(sqlite3.connect(tmp_path / "ledger")) as shell:
        shell.execute("BEGIN EXCLUSIVE")
        for steps in range(1, 50):
            ledger.series.store("digits", recorded(steps))
        queued = len(ledger._writer._queue)
        shell.rollback()
    ledger.close()
    again = Ledger(tmp_path / "ledger")
    found = again.series.load("digits")
    again.close()

    assert queued <= 2, "one that is being tried, and one with what came later"
    assert len(found.by_name["loss"].buckets) == 49


def test_series_of_others_are_not_touched(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.series.store("a", recorded(5))
    ledger.series.store("b", recorded(7))
    ledger.series.store("a", recorded(6))
    found = len(ledger.series.load("b").by_name["loss"].buckets)
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as shell:
        (rows,) = shell.execute("SELECT count(*) FROM series").fetchone()

    assert (found, rows) == (7, 2)
