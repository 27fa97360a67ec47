"""Indices that a loop gives to run.order in each epoch, and shuffles in place, are named unless run.state has them."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import History
from worker.files import FilesRun


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


@pytest.mark.parametrize("is_kept", [False, True])
def test_list_of_indices_that_epochs_shuffle_in_place_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_kept: bool
) -> None:
    """A restart has it as the script makes it first, though the order of the epoch comes back."""
    indices = list(range(8))
    with FilesRun(History(), directory=tmp_path, state={"indices": indices} if is_kept else {}) as run:
        for _ in run.epochs(4):
            random.shuffle(indices)
            for number in run.order(indices, 4):
                run.step_done(loss=sum(number))

    said = [line for line in capfd.readouterr().err.splitlines() if "cannot resume exactly" in line]
    assert ["indices (" in line for line in said] == [True] * (not is_kept), said


def test_indices_that_no_epoch_changes_and_those_that_each_draws_are_not_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    indices = np.arange(8)
    with FilesRun(History(), directory=tmp_path) as run:
        for epoch in run.epochs(6):
            drawn = np.random.permutation(8)
            for number in run.order(drawn if epoch > 3 else indices, 4):
                run.step_done(loss=sum(number))

    assert "cannot resume exactly" not in capfd.readouterr().err
