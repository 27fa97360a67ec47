"""A small entry point, which a hot standby can build and trace beforehand: STEPS steps of about STEP_S seconds.

Writes a hash of the last state into the file `hash` in the folder BESIDE.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

import worker

STEPS, STEP_S = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
BESIDE = Path(os.environ["BESIDE"])
ROWS = 64


def training() -> worker.Training:
    """What `worker` trains."""
    tf.keras.utils.set_random_seed(5)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((32,)), layers.Dense(64, activation="relu"), layers.Dropout(0.3), layers.Dense(4)]
    )
    optimizer = tf.keras.optimizers.Adam(1e-3)
    rows = np.random.default_rng(1).normal(size=(ROWS, 32)).astype("float32")

    def paced(index: np.ndarray) -> np.ndarray:
        time.sleep(0.0 if (BESIDE / "hurry").exists() else STEP_S)
        return rows[index]

    def load(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(tf.numpy_function(paced, [index], tf.float32), [32]), index % 4

    def write_hash(model: tf.keras.Model) -> Mapping[str, float]:
        digest = hashlib.sha256()
        for variable in (*model.variables, *optimizer.variables):
            digest.update(np.asarray(variable).tobytes())
        (BESIDE / "hash").write_text(digest.hexdigest())
        return {}

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    data = worker.Examples(count=ROWS, load=load, batch_size=1, seed=3, readers=1)
    return worker.Training(model, optimizer, loss, data, STEPS, write_hash)
