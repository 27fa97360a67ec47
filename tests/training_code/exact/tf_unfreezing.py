"""Fine-tuning in two stages: a layer is frozen, and trainable from the second epoch on."""

import numpy as np
import tensorflow as tf

import worker

worker.strategy()
tf.keras.utils.set_random_seed(31)
x = np.random.normal(size=(24, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)
base = tf.keras.layers.Dense(6, activation="relu", name="base")
model = tf.keras.Sequential([tf.keras.Input((5,)), base, tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(12)


def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


base.trainable = False
with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer), directory="checkpoints") as run:
    for epoch in run.epochs(5):
        if epoch >= 1:
            base.trainable = True
        for inputs, targets in run.batches(dataset):
            run.step_done(loss=train_step(inputs, targets))

print(f"weights {sum(float(tf.reduce_sum(weight)) for weight in model.weights):.7f}")
