"""Trainings on shuffled data with noise in the step are killed, also at an epoch's end, and end with equal bits."""

import sys
from pathlib import Path

import pytest

from tests import forked

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CHILD = Path(__file__).parents[1] / "children" / "shuffled.py"
KILLS = (5, 7, 13)  # steps: an epoch has five, and its tail reads the dataset too


def train(kind: str, folder: Path, replicas: int, kill_at: int) -> tuple[int, str]:
    """How the training ended, and the hash of its state."""
    command = [sys.executable, str(CHILD), kind, str(folder), str(replicas), str(kill_at)]
    done = forked.run(command, timeout=240)
    assert done.returncode in (0, -9), done.stderr[-2000:]
    return done.returncode, done.stdout.strip()


@pytest.mark.nightly  # test_passes.py reads the same from every position; the corpus kills tf_dataset_per_epoch
@pytest.mark.parametrize(("kind", "replicas"), [("dataset", 2), ("files", 1), ("function", 1)])
def test_killed_training_on_shuffled_data_ends_with_equal_bits(kind: str, replicas: int, tmp_path: Path) -> None:
    undisturbed = train(kind, tmp_path / "undisturbed", replicas, 0)

    for step in KILLS:
        assert train(kind, tmp_path / "killed", replicas, step)[0] == -9
    assert train(kind, tmp_path / "killed", replicas, 0) == undisturbed
