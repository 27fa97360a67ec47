"""Several processes go through one order, which comes back in all of them; orders that differ are refused."""

import json
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.worker.gang import Gang

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]
CHILD = ROOT / "tests" / "worker" / "children" / "ordered.py"


def trained(folder: Path, stop: int, same: str = "yes") -> tuple[list[int | None], str]:
    gang = Gang([sys.executable, str(CHILD), str(folder), str(stop), same], 2, folder)
    return gang.wait(), gang.said()


def seen(folder: Path, rank: int, stop: int) -> list[list[int]]:
    found: list[list[int]] = json.loads((folder / f"seen-{rank}-{stop}").read_text())
    return found


def test_order_comes_back_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    statuses, said = trained(tmp_path, 99)

    assert statuses == [0, 0], said
    for rank in (0, 1):
        whole = [*seen(tmp_path, rank, 2), *seen(tmp_path, rank, 99)]
        assert sorted(whole) == [[epoch, index] for epoch in (0, 1) for index in range(4)]
    assert seen(tmp_path, 0, 99) == seen(tmp_path, 1, 99)


def test_orders_that_differ_are_refused(tmp_path: Path) -> None:
    statuses, said = trained(tmp_path, 99, same="no")

    assert 0 not in statuses
    assert "the workers go through the epoch in different orders" in said
