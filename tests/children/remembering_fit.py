"""A small Keras model that `worker.keras.fit` trains, with what is easily lost: dropout, Adam's moments, shuffled data.

STEPS steps of at least STEP_S seconds. Writes each step, and a hash of the last state, as `remembering.py` does, and
dies as that does.
"""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import worker
from tests.children.dying import DeathAtLine, die_if_told, rest_of_step

STEPS, STEP_S = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
BESIDE = Path(os.environ["BESIDE"])
BATCHES = 50  # of an epoch

tf.keras.utils.set_random_seed(5)
layers = tf.keras.layers
model = tf.keras.Sequential(
    [tf.keras.Input((32,)), layers.Dense(256, activation="relu"), layers.Dropout(0.3), layers.Dense(4)]
)
model.compile(tf.keras.optimizers.Adam(1e-3), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
numbers = np.random.default_rng(1)
rows = numbers.normal(size=(BATCHES * 16, 32)).astype("float32")
data = worker.Examples(rows, (rows[:, 0] > 0) + 2 * (rows[:, 1] > 0), batch_size=16, seed=3)


class Record(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Writes each step down, and takes its time."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        die_if_told(BESIDE, DeathAtLine())
        self.began = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        rest_of_step(BESIDE, self.began, STEP_S)
        value = float(tf.reduce_sum(model.weights[0]))
        with (BESIDE / "steps").open("a") as steps:
            steps.write(f"{int(model.optimizer.iterations)} {os.getpid()} {time.time():.3f} {value:.17g}\n")


worker.keras.fit(model, data, epochs=STEPS // BATCHES, callbacks=[Record()], verbose=0, directory=BESIDE / "ckpt")
digest = hashlib.sha256()
for variable in (*model.variables, *model.optimizer.variables):
    digest.update(np.asarray(variable).tobytes())
(BESIDE / "hash").write_text(digest.hexdigest())
