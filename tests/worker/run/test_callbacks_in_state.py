"""Keras' own callbacks that a script's loop calls are kept in run.state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch

pytestmark = pytest.mark.tensorflow
CALLBACKS = tf.keras.callbacks


def plateau(model: Any) -> Any:
    callback = CALLBACKS.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=0.1)
    callback.set_model(model)
    return callback


def listed(model: Any) -> Any:
    stopping = CALLBACKS.EarlyStopping("loss", patience=9, restore_best_weights=True)
    return CALLBACKS.CallbackList([plateau(model), stopping], add_history=True, model=model)


@pytest.mark.parametrize("make", [plateau, listed])
def test_callback_goes_on_after_a_restart(
    make: Callable[[Any], Any], tmp_path: Path, begin: Callable[[Launch], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def train(folder: Path, dies_in: int) -> tuple[Any, float]:
        begin(Launch())
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        callback = make(model)
        callback.on_train_begin()
        with worker.Run(
            tf.train.Checkpoint(model=model, optimizer=model.optimizer), directory=folder, interval="1 steps",
            state={"callback": callback}, strict=True,
        ) as run:  # fmt: skip
            for epoch in run.epochs(7):
                model.layers[0].bias.assign([float(epoch)])
                run.step_done()
                if epoch == dies_in:
                    raise LookupError
                callback.on_epoch_end(epoch, {"loss": 1.0})
        histories = [part.best_weights for part in getattr(callback, "callbacks", []) if hasattr(part, "best_weights")]
        return histories, float(model.optimizer.learning_rate)

    with pytest.raises(LookupError):
        train(tmp_path / "rough", dies_in=4)

    rough, calm = train(tmp_path / "rough", dies_in=-1), train(tmp_path / "calm", dies_in=-1)

    assert rough[1] == calm[1] < 0.01
    assert all(
        np.array_equal(*pair) for one, two in zip(rough[0], calm[0], strict=True) for pair in zip(one, two, strict=True)
    )
    assert "callback" not in capsys.readouterr().err.replace(str(tmp_path), "")
