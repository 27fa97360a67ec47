"""A training on three replicas is killed and ends with equal bits; on two it goes on with what all three had."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CHILD = Path(__file__).parents[1] / "children" / "three_replicas.py"


def train(folder: Path, replicas: int, kill_at: int = 0) -> tuple[list[dict[str, Any]], str]:
    """What the training printed, its values at the restore and at its end, and its messages."""
    command = [sys.executable, str(CHILD), str(folder), str(replicas), str(kill_at)]
    done = forked.run(command, timeout=280)
    assert done.returncode == (-9 if kill_at > 0 else 0), done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.timeout(900)
def test_killed_training_on_three_replicas_ends_with_equal_bits(tmp_path: Path) -> None:
    undisturbed, _ = train(tmp_path / "undisturbed", 3)

    for step in (1, 5, 8):  # an epoch has five steps
        train(tmp_path / "killed", 3, step)
    killed, _ = train(tmp_path / "killed", 3)

    assert killed[-1] == undisturbed[-1]


@pytest.mark.timeout(600)
def test_two_replicas_go_on_with_the_state_of_three(tmp_path: Path) -> None:
    (_, before), _ = train(tmp_path, 3, 7)

    (after,), said = train(tmp_path, 2, -1)

    assert after["step"] == before["step"] == 7
    assert after["total"] == pytest.approx(before["total"], rel=1e-6)
    assert after["mean"] == pytest.approx(before["mean"], rel=1e-6)
    assert after["metric"] == pytest.approx(before["metric"], rel=1e-6)
    assert "3 replicas" in said
