"""After a restart a call of fit that had ended before gives the history that it gave then."""

from types import SimpleNamespace

import pytest

from worker.keras.model_fit import _limit_history

pytestmark = pytest.mark.tensorflow


def test_epochs_of_later_calls_are_left_out() -> None:
    values = {"loss": [5.0, 4.0, 3.0, 2.0], "val_loss": [4.5, 2.5]}
    history = SimpleNamespace(epoch=[0, 1, 2, 3], history=values)

    _limit_history(history, 3, 2)

    assert history.epoch == [0, 1, 2]
    assert history.history == {"loss": [5.0, 4.0, 3.0], "val_loss": [4.5]}


def test_the_history_of_the_last_call_stays_whole() -> None:
    history = SimpleNamespace(epoch=[0, 1], history={"loss": [5.0, 4.0]})

    _limit_history(history, 2, 1)

    assert history.history == {"loss": [5.0, 4.0]}
