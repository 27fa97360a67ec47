"""Trains on shuffled data with noise in its step, as tutorials do, and kills itself: KIND FOLDER REPLICAS KILL_AT

Prints a hash of its final state. KILL_AT: a step; 0: never.
"""

import hashlib
import os
import signal
import sys
from typing import Any

import worker

kind, folder, replicas, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
strategy = worker.strategy(replicas=replicas, deterministic=True)

import numpy as np  # noqa: E402 - the strategy comes first
import tensorflow as tf  # noqa: E402

EPOCHS = 3
np.random.seed(0)
rows = np.random.normal(size=(40, 6)).astype("float32")


def one_dataset() -> Any:
    return tf.data.Dataset.from_tensor_slices(rows).shuffle(40).batch(8).prefetch(tf.data.AUTOTUNE)


def of_files() -> Any:
    def part(number: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(rows).shard(4, number).shuffle(5)

    files = tf.data.Dataset.range(4).shuffle(4).interleave(part, num_parallel_calls=2)
    return files.cache().shuffle(7).map(lambda row: row + tf.random.normal([6])).batch(8)


dataset = of_files() if kind == "files" else one_dataset()
with strategy.scope():
    encoder = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(4)])
    decoder = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(6)])
    optimizer = tf.keras.optimizers.Adam(1e-2)
    weights = encoder.trainable_variables + decoder.trainable_variables
    optimizer.build(weights)


@tf.function(autograph=False)  # there is nothing to convert
def train_step(batch: Any) -> Any:
    def on_replica(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, spread = tf.split(encoder(batch), 2, axis=1)
            code = mean + tf.random.normal(tf.shape(mean)) * tf.exp(spread / 2)
            loss = tf.reduce_mean((decoder(code) - batch) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return strategy.run(on_replica, args=(batch,))


checkpoint = tf.train.Checkpoint(encoder=encoder, decoder=decoder, optimizer=optimizer)
source = (lambda epoch: one_dataset()) if kind == "function" else dataset
with worker.Run(checkpoint, strategy=strategy, directory=folder, interval="1 steps", strict=True) as run:
    for _ in run.epochs(EPOCHS):
        for batch in run.batches(source):
            run.step_done(loss=train_step(batch))
            if run.step == kill_at:
                run._checkpoints._wait_for_save()
                os.kill(os.getpid(), signal.SIGKILL)
        for batch in dataset.take(2):
            decoder(encoder(batch)[:, :2])
        tf.random.normal([3])

digest = hashlib.sha256()
for variable in [*weights, *optimizer.variables]:
    digest.update(variable.numpy().tobytes())
print(digest.hexdigest())
