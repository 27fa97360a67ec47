"""A custom loop that chooses its dataset from the number of the epoch."""

import numpy as np
import tensorflow as tf

import worker

strategy = worker.strategy()
x = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")[:, None]


def make_dataset(count):
    dataset = tf.data.Dataset.from_tensor_slices((x[:count], y[:count]))
    return dataset.shuffle(count).batch(8).prefetch(2)


easy, full = make_dataset(24), make_dataset(48)


model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(12, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)
loss_object = tf.keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = loss_object(labels, model(features, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(checkpoint, strategy=strategy, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        dataset = full if epoch >= 2 else easy
        for features, labels in run.batches(dataset):
            run.step_done(loss=train_step(features, labels))

print(f"loss {float(loss_object(y, model(x))):.8f}")
