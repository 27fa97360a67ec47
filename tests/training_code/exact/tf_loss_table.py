"""A loop that writes a row for each step and a line for each epoch into files of its own."""

import csv
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf

import worker

worker.strategy()
tf.keras.utils.set_random_seed(4)

x = np.random.normal(size=(48, 3)).astype("float32")
y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=4).batch(12)
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)


@tf.function
def train_step(inputs, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - labels))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


table, notes = worker.LogFile("loss.csv"), worker.LogFile("notes.txt")
rows = csv.writer(table)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(checkpoint, state={"table": table, "notes": notes}, directory="checkpoints") as run:
    for epoch in run.epochs(3):
        for inputs, labels in run.batches(dataset):
            loss = train_step(inputs, labels)
            rows.writerow([run.step, float(loss)])
            run.step_done(loss=loss)
        error = float(tf.reduce_mean(tf.square(model(x) - y)))
        print(f"epoch {epoch}: {error:.6f}", file=notes)

table.flush()
notes.flush()
print(*(zlib.crc32(Path(name).read_bytes()) for name in ("loss.csv", "notes.txt")))
