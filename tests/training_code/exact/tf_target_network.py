"""A network that learns from its own slow copy, which the loop sets behind `step_done`; the rate falls there too."""

import numpy as np
import tensorflow as tf

import worker

worker.strategy()
tf.keras.utils.set_random_seed(32)
x = np.random.normal(size=(24, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(6, "relu"), tf.keras.layers.Dense(1)])
target = tf.keras.models.clone_model(model)
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(6)


@tf.function
def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - targets - 0.1 * target(inputs)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, target=target, optimizer=optimizer)
with worker.Run(checkpoint, directory="checkpoints", state={"copies": 0}) as run:
    for epoch in run.epochs(3):
        for inputs, targets in run.batches(dataset):
            loss = train_step(inputs, targets)
            run.step_done(loss=loss)
            if run.step % 3 == 0:
                target.set_weights(model.get_weights())
                optimizer.learning_rate.assign(optimizer.learning_rate * 0.8)
                run.state["copies"] += 1

print(f"{run.state['copies']} copies, weights {sum(float(tf.reduce_sum(w)) for w in target.weights):.7f}")
