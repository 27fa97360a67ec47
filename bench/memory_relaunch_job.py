"""The job of bench.memory_relaunch: SIZE_MB of embeddings whose step takes milliseconds, which records its events.

With WAITS_FOR_DISK set, it does not say that it can restore from memory, so it waits until that is written.
"""

import os
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from bench.relaunch_job import ENDLESS  # records imports, restores and steps

SIZE_MB = float(os.environ.get("SIZE_MB", "100"))
TABLES, WIDTH, ROWS = 8, 64, 4096
STEP_S = 0.02

if "STEPKEEPER_LAUNCH" in os.environ or "worker.process.attempt" in sys.modules:
    from dataclasses import replace

    from worker.process.control_pipe import WorkerChannel

    _hello = WorkerChannel._hello
    if os.environ.get("WAITS_FOR_DISK"):
        WorkerChannel._hello = lambda channel: replace(_hello(channel), restores_memory=False)  # type: ignore[method-assign]


def described() -> Any:
    """The entry point for stepkeeper's loop."""
    import worker

    rows = int(SIZE_MB * 1e6 / (4 * WIDTH * TABLES))
    keys = tf.keras.Input((TABLES,), dtype="int32")
    looked_up = [tf.keras.layers.Embedding(rows, WIDTH)(keys[:, number]) for number in range(TABLES)]
    model = tf.keras.Model(keys, tf.keras.layers.Dense(1)(tf.keras.layers.add(looked_up)))
    examples = np.random.default_rng(1).integers(0, rows, (ROWS, TABLES)).astype("int32")

    def load(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def paced(index: np.ndarray) -> np.ndarray:
            time.sleep(STEP_S / 8)
            return examples[index]

        return tf.ensure_shape(tf.numpy_function(paced, [index], tf.int32), [TABLES]), tf.constant(1.0)

    loss = tf.keras.losses.MeanSquaredError(reduction="none")
    data = worker.Examples(count=ROWS, load=load, batch_size=8, seed=3, readers=1)
    return worker.Training(model, tf.keras.optimizers.SGD(0.01), loss, data, ENDLESS)
