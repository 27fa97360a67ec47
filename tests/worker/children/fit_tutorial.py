"""Fits a small model as a tutorial does, on arrays or on a PyDataset; prints where it is and, at the end, a hash.

Arguments: the data (arrays, pydataset or shuffled) and, to be killed there, where to stand still: `batch 7`,
`validation 1` or `end 1` (of an epoch).
"""

import hashlib
import json
import sys
import time
from typing import Any

import worker

strategy = worker.strategy()

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

HOLD_AT = " ".join(sys.argv[2:])
COUNT = 30  # of 8 in a batch: the last has 6


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Shuffles its rows after each epoch and adds noise to each batch."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y
        self.rows = np.arange(len(x))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rows = self.rows[index * 8 : index * 8 + 8]
        return self.x[rows] + np.random.normal(size=3).astype("float32"), self.y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.rows)


class Places(keras.callbacks.Callback):  # type: ignore[misc]
    """Prints the places where a test kills, and stands still at one of them."""

    def _at(self, place: str) -> None:
        print(place, flush=True)
        if place == HOLD_AT:
            time.sleep(600)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at(f"batch {int(self.model.optimizer.iterations.numpy())}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at(f"validation {self.epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._at(f"end {epoch}")


def main() -> None:
    keras.utils.set_random_seed(7)
    numbers = np.random.default_rng(5)
    x, y = numbers.normal(size=(COUNT, 3)).astype("float32"), numbers.normal(size=COUNT).astype("float32")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", metrics=["mae"])
    data: dict[str, Any] = {
        "arrays": {"x": x, "y": y, "batch_size": 8},
        "pydataset": {"x": Rows(x, y)},
        "shuffled": {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30).batch(8)},
    }
    losses: list[float] = []
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(float(logs["loss"]))),
        Places(),
    ]
    history = worker.keras.fit(
        model, **data[sys.argv[1]], epochs=3, validation_data=(x[:9], y[:9]), callbacks=callbacks, verbose=0
    )
    digest = hashlib.sha256(json.dumps([history.history, history.epoch, losses], default=float).encode())
    for variable in [*model.variables, *model.optimizer.variables]:
        digest.update(variable.numpy().tobytes())
    print(f"hash {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
