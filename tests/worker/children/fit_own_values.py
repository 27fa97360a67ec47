"""Fits for one epoch on two processes and writes the epoch's metrics to FOLDER/logs-RANK: FOLDER DIE.

It dies in step DIE; 0: never.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import worker

folder, die = Path(sys.argv[1]), int(sys.argv[2])
strategy = worker.strategy("multiworker", deterministic=True, directory=folder / "ckpt")

import numpy as np  # noqa: E402 - the strategy comes first
import tensorflow as tf  # noqa: E402


class Death(tf.keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 == die and begun.pop() == 0:
            while not list((folder / "ckpt").glob("step-*")):
                pass
            os.kill(os.getpid(), signal.SIGKILL)


class Classifier(tf.keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> dict[str, Any]:
        """Keras reduces logs over processes along their first axis, which the scalars of its own step lack."""
        return {name: tf.reshape(value, [1]) for name, value in super().train_step(data).items()}


begun = [len(list((folder / "ckpt").glob("step-*")))]
with strategy.scope():
    model = Classifier([tf.keras.Input((2,)), tf.keras.layers.Dense(3)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
numbers = np.random.default_rng(1)
images, labels = numbers.normal(size=(48, 2)).astype("float32"), numbers.integers(0, 3, 48)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
history = worker.keras.fit(
    model, dataset, epochs=1, strategy=strategy, verbose=0, directory=folder / "ckpt", interval="2 steps",
    callbacks=[Death()],
)  # fmt: skip
rank = strategy.cluster_resolver.task_id
(folder / f"logs-{rank}").write_text(json.dumps(history.history))
