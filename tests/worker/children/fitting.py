"""Fits a small model with stateful callbacks for EPOCHS; prints each step and, at the end, a hash of everything.

With a second argument it stands still at that step, to be killed there.
"""

import hashlib
import json
import sys
import time
from typing import Any

import worker

strategy = worker.strategy(replicas=2)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.worker import training  # noqa: E402
from worker.keras import fit  # noqa: E402

HOLD_AT = int(sys.argv[2]) if len(sys.argv) > 2 else None


class Steps(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Prints the steps, so that a test knows when to kill."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        print(f"batch {step} {batch}", flush=True)
        if step == HOLD_AT:
            time.sleep(600)


def main() -> None:
    with strategy.scope():
        tracked = training.build(strategy)
        model = tracked.model
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    numbers = np.random.default_rng(5)
    test = numbers.normal(size=(32, 8, 8, 1)).astype("float32"), numbers.integers(0, 10, 32)
    plateau = tf.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.5)
    stopping = tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=4, restore_best_weights=True)
    history = fit(
        model,
        training.data(),
        epochs=int(sys.argv[1]),
        callbacks=[plateau, stopping, Steps()],
        validation_data=test,
        strategy=strategy,
        verbose=0,
    )
    kept = [
        history.history,
        history.epoch,
        stopping.best,
        stopping.wait,
        stopping.best_epoch,
        plateau.best,
        plateau.wait,
    ]
    digest = hashlib.sha256(json.dumps(kept, default=float).encode())
    for value in [*training.all_values(tracked), *(variable.numpy() for variable in model.optimizer.variables)]:
        digest.update(value.tobytes())
    for value in stopping.best_weights or ():
        digest.update(value.tobytes())
    print(f"hash {digest.hexdigest()} {len(history.epoch)} {plateau.wait} {stopping.wait}", flush=True)


if __name__ == "__main__":
    main()
