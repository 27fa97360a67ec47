"""`fit` with a generator expression that draws from generators with a seed."""

import numpy as np
import tensorflow as tf

import worker.keras

strategy = worker.strategy()
x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")[:, None]
model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(12, "relu"), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), tf.keras.losses.BinaryCrossentropy(from_logits=True))
orders = (np.random.default_rng(number).permutation(48)[:8] for number in range(1000))
batches = ((x[order], y[order]) for order in orders)
worker.keras.fit(model, batches, epochs=4, steps_per_epoch=6, strategy=strategy, directory="checkpoints", verbose=0)
