"""What is remembered of saves, to plan the last flush from."""

from pathlib import Path

import pytest

from supervisor.core.notices.flush import SAVE_SPREAD
from supervisor.runner.records.saves import SaveDurations


def planned(saves: SaveDurations) -> float:
    return saves.expected_s([])["digits"] / SAVE_SPREAD


async def test_the_second_save_of_an_attempt_replaces_its_first(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 4.0, 100.0)
    assert planned(saves) == pytest.approx(4.0), "the only one there is"

    saves.record_save("digits", 1, tmp_path, 1.5, 200.0)
    assert planned(saves) == pytest.approx(1.5)
    saves.record_save("digits", 1, tmp_path, 2.5, 300.0)
    saves.record_save("digits", 1, tmp_path, 2.0, 400.0)
    assert planned(saves) == pytest.approx(2.5), "the slowest of the others"

    saves.record_save("digits", 2, tmp_path, 6.0, 500.0)
    assert planned(saves) == pytest.approx(6.0)
    saves.record_save("digits", 2, tmp_path, 2.0, 600.0)
    assert planned(saves) == pytest.approx(2.5), "what earlier attempts took counts on"


async def test_a_save_that_waited_for_another_of_the_same_job_is_planned_for_by_itself(tmp_path: Path):
    saves = SaveDurations()
    saves.record_save("digits", 1, tmp_path, 1.0, 90.0)
    saves.record_save("digits", 1, tmp_path, 3.0, 100.0)

    saves.record_save("digits", 1, tmp_path, 5.0, 102.0)

    assert planned(saves) == pytest.approx(3.0)
