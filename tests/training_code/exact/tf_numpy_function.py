"""A compiled step that calls Python by numpy_function and py_function, which read numbers that an epoch sets."""

import numpy as np
import tensorflow as tf

import worker

strategy = worker.strategy()
tf.keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).batch(8)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.05)
optimizer.build(model.trainable_variables)


class Config:
    scale = 1.0
    cutoff = 3.0


cfg = Config()


def clip(values):
    return np.clip(values * cfg.scale, -cfg.cutoff, cfg.cutoff).astype(np.float32)


@tf.function
def train_step(batch):
    clipped = tf.numpy_function(clip, [batch], tf.float32)
    clipped.set_shape([None, 4])
    shifted = tf.py_function(lambda t: t + 0.01 * cfg.scale, [clipped], tf.float32)
    shifted.set_shape([None, 4])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(shifted) - 1.0) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


with worker.Run(
    tf.train.Checkpoint(model=model, optimizer=optimizer), strategy=strategy, directory="checkpoints"
) as run:
    for epoch in run.epochs(4):
        cfg.scale = 1.0 + 0.1 * epoch
        cfg.cutoff = 3.0 - 0.2 * epoch
        for batch in run.batches(dataset):
            run.step_done(loss=train_step(batch))
print(f"{float(sum(tf.reduce_sum(v) for v in model.variables)):.9f}")
