"""Trains on several replicas with state of the script's own on each, and kills itself: FOLDER REPLICAS KILL_AT

Prints, as JSON, what it restored and what it ended with; at a kill, what it had then. KILL_AT: a step; 0: never; -1: it
ends right after the restore.
"""

import hashlib
import json
import os
import signal
import sys
from typing import Any

import worker

folder, replicas, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
strategy = worker.strategy(replicas=replicas, deterministic=True)

import numpy as np  # noqa: E402 - the strategy comes first
import tensorflow as tf  # noqa: E402

np.random.seed(0)
rows = np.random.normal(size=(45, 6)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(45).batch(9)
ON_READ = tf.VariableSynchronization.ON_READ


def own(aggregation: Any) -> Any:
    return tf.Variable(0.0, trainable=False, synchronization=ON_READ, aggregation=aggregation)


with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((6,)), tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(6)]
    )
    optimizer = tf.keras.optimizers.Adam(1e-2)
    total, mean = own(tf.VariableAggregation.SUM), own(tf.VariableAggregation.MEAN)
    metric = tf.keras.metrics.Mean()


@tf.function(autograph=False)  # there is nothing to convert
def train_step(batch: Any) -> Any:
    def on_replica(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch + tf.random.normal(tf.shape(batch)), training=True) - batch) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        total.assign_add(loss / 3)
        mean.assign(0.9 * mean + loss)
        metric.update_state(loss)
        return loss

    return strategy.run(on_replica, args=(batch,))


def values() -> dict[str, Any]:
    copies = [*strategy.experimental_local_results(total), *strategy.experimental_local_results(mean)]
    digest = hashlib.sha256()
    for variable in [*model.variables, *optimizer.variables, *metric.variables]:
        copies += strategy.experimental_local_results(variable.value)
    for copy in copies:
        digest.update(np.asarray(copy).tobytes())
    return {
        "step": run.step,
        "digest": digest.hexdigest(),
        "total": float(total.read_value()),
        "mean": float(mean.read_value()),
        "metric": float(metric.result()),
    }


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, total=total, mean=mean)
with worker.Run(checkpoint, strategy=strategy, directory=folder, interval="1 steps", state={"loss": metric}) as run:
    print(json.dumps(values()), flush=True)
    if kill_at < 0:
        os._exit(0)
    for _ in run.epochs(3):
        metric.reset_state()
        for batch in run.batches(dataset):
            if run.step == kill_at > 0:
                run._checkpoints._wait_for_save()
                print(json.dumps(values()), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            run.step_done(loss=train_step(batch))
        optimizer.learning_rate.assign(optimizer.learning_rate * 0.9)
    print(json.dumps(values()))
