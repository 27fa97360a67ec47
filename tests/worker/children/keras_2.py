"""Trains a model of tf_keras (Keras 2) in FOLDER on some replicas; leaves at a step without a word, or prints a hash.

`keras_2.py FOLDER REPLICAS [STEP]`
"""

import hashlib
import os
import signal
import sys

import tensorflow as tf
import tf_keras

import worker

STEPS = 18


def main() -> None:
    folder, replicas = sys.argv[1], int(sys.argv[2])
    leaves_at = int(sys.argv[3]) if len(sys.argv) > 3 else None
    strategy = worker.strategy(replicas=replicas, deterministic=True, directory=folder)
    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(4, activation="relu", input_shape=(3,)),
                tf_keras.layers.BatchNormalization(),
                tf_keras.layers.Dropout(0.5),
                tf_keras.layers.Dense(1),
            ]
        )
        optimizer = tf_keras.optimizers.Adam(tf_keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9))
        optimizer.build(model.trainable_variables)
        metric = tf_keras.metrics.Mean()
    inputs = tf.random.stateless_normal((24, 3), seed=(1, 2))
    data = tf.data.Dataset.from_tensor_slices((inputs, tf.ones((24, 1)))).shuffle(24).batch(4)

    def train(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(loss)
        return loss

    @tf.function
    def step(*batch: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("MEAN", strategy.run(train, args=batch), axis=None)

    tracked = tf.train.Checkpoint(model=model, optimizer=optimizer, metric=metric)
    with worker.Run(tracked, directory=folder, interval="1 steps", strategy=strategy) as run:
        for _ in run.epochs(3):
            for batch in run.batches(strategy.experimental_distribute_dataset(data)):
                run.step_done(loss=step(*batch))
                if run.step == leaves_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    digest = hashlib.sha256()
    for variable in (*model.variables, *optimizer.variables, *metric.variables):
        for each in getattr(variable, "values", (variable,)):
            digest.update(each.numpy().tobytes())
    print(f"hash {int(tf.convert_to_tensor(optimizer.iterations).numpy())} {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
