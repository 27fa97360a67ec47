"""A training on three replicas is killed and ends with equal bits; on two it goes on with what all three had."""

import json
import shutil
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


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of one that was killed at step 7, amid its second epoch of five steps, and its values then."""
    folder = tmp_path_factory.mktemp("killed")
    (_, before), _ = train(folder, 3, 7)
    return folder, before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Its values at the end."""
    return train(tmp_path_factory.mktemp("undisturbed"), 3)[0][-1]


@pytest.mark.nightly  # test_multiworker.py kills one on two replicas, and the next test restores what three had
@pytest.mark.timeout(600)
def test_killed_training_on_three_replicas_ends_with_equal_bits(
    tmp_path: Path, killed: tuple[Path, dict[str, Any]], undisturbed: dict[str, Any]
) -> None:
    shutil.copytree(killed[0], tmp_path / "c")

    ended, _ = train(tmp_path / "c", 3)

    assert ended[-1] == undisturbed


@pytest.mark.nightly  # as the one before, also in the first epoch and at its end
@pytest.mark.timeout(900)
def test_killed_again_and_again_it_ends_with_equal_bits(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    for step in (1, 5, 8):
        train(tmp_path, 3, step)

    ended, _ = train(tmp_path, 3)

    assert ended[-1] == undisturbed


@pytest.mark.timeout(600)
def test_two_replicas_go_on_with_the_state_of_three(tmp_path: Path, killed: tuple[Path, dict[str, Any]]) -> None:
    folder, before = killed
    shutil.copytree(folder, tmp_path / "c")

    (after,), said = train(tmp_path / "c", 2, -1)

    assert after["step"] == before["step"] == 7
    assert after["total"] == pytest.approx(before["total"], rel=1e-6)
    assert after["mean"] == pytest.approx(before["mean"], rel=1e-6)
    assert after["metric"] == pytest.approx(before["metric"], rel=1e-6)
    assert "3 replicas" in said
