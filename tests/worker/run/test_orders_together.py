"""Several processes go through one order, which comes back in all of them; orders that differ are refused."""

import json
import os
import sys
from pathlib import Path

import pytest

from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forked
from tests.places import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]
CHILD = ROOT / "tests" / "worker" / "children" / "ordered.py"


def trained(folder: Path, stop: int, same: str = "yes") -> tuple[int, str]:
    launch = Launch(strategy="multiworker", workers=2)
    environment = {**without_launch_variables(os.environ), **launch.to_environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(CHILD), str(folder), str(stop), same]
    done = forked.run(command, env=environment, timeout=280)
    return done.returncode, done.stderr


def seen(folder: Path, rank: int, stop: int) -> list[list[int]]:
    found: list[list[int]] = json.loads((folder / f"seen-{rank}-{stop}").read_text())
    return found


def test_order_comes_back_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    trained(tmp_path, 2)
    status, said = trained(tmp_path, 99)

    assert status == 0, said[-2000:]
    for rank in (0, 1):
        whole = [*seen(tmp_path, rank, 2), *seen(tmp_path, rank, 99)]
        assert sorted(whole) == [[epoch, index] for epoch in (0, 1) for index in range(4)]
    assert seen(tmp_path, 0, 99) == seen(tmp_path, 1, 99)


def test_orders_that_differ_are_refused(tmp_path: Path) -> None:
    status, said = trained(tmp_path, 99, same="no")

    assert status != 0
    assert "the workers go through the epoch in different orders" in said
