"""`shuffle(n).repeat().batch(b).take(m)` in each of several epochs: the passes of the shuffle go on from epoch to epoch."""

import numpy as np
import tensorflow as tf

import worker

strategy = worker.strategy()
tf.keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(x).shuffle(24).repeat().batch(8).take(7)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.05)
optimizer.build(model.trainable_variables)
with worker.Run(
    tf.train.Checkpoint(model=model, optimizer=optimizer), strategy=strategy, directory="checkpoints"
) as run:
    for epoch in run.epochs(4):
        for batch in run.batches(dataset):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(batch) - 1.0) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            run.step_done(loss=loss)
print(f"{float(sum(tf.reduce_sum(v) for v in model.variables)):.9f}")
