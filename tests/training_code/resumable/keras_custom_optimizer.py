"""A custom optimizer in a loop with accumulated gradients, early stopping by hand and a rate that the loop decays."""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import worker


class Lion(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=1e-3, beta_1=0.9, beta_2=0.99, name="my_lion", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.moments = [self.add_variable_from_reference(v, name="momentum") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        moment = self.moments[self._get_variable_index(variable)]
        update = tf.sign(moment * self.beta_1 + gradient * (1 - self.beta_1))
        self.assign_sub(variable, rate * update)
        self.assign(moment, moment * self.beta_2 + gradient * (1 - self.beta_2))


worker.strategy()
x, y = load_digits(return_X_y=True)
x = (x / 16.0).astype("float32")
x_train, y_train, x_val, y_val = x[:1500], y[:1500], x[1500:], y[1500:]
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(1024, seed=7).batch(50)

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
)
optimizer = Lion(1e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accumulated = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.trainable_variables]
accumulate_steps = 2


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss_value = loss_fn(y, model(x, training=True)) / accumulate_steps
    for total, gradient in zip(accumulated, tape.gradient(loss_value, model.trainable_weights)):
        total.assign_add(gradient)
    return loss_value * accumulate_steps


@tf.function
def apply_accumulated():
    optimizer.apply_gradients(zip(accumulated, model.trainable_weights))
    for total in accumulated:
        total.assign(tf.zeros_like(total))


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, accumulated=accumulated)
patience = 2
losses = []
with worker.Run(checkpoint, state={"best_val": float("inf"), "wait": 0, "losses": losses}) as run:
    for epoch in run.epochs(5):
        for step, (x_batch, y_batch) in enumerate(run.batches(train_dataset), run.batch):
            loss_value = train_step(x_batch, y_batch)
            if (step + 1) % accumulate_steps == 0:
                apply_accumulated()
            losses.append(float(loss_value))
            run.step_done()

        val_loss = float(loss_fn(y_val, model(x_val, training=False)))
        print(f"epoch {epoch}: loss {np.mean(losses[-30:]):.4f}, validation {val_loss:.4f}")
        optimizer.learning_rate = optimizer.learning_rate * 0.8
        if val_loss < run.state["best_val"]:
            run.state["best_val"] = val_loss
            run.state["wait"] = 0
        else:
            run.state["wait"] += 1
            if run.state["wait"] >= patience:
                print(f"stops early at epoch {epoch}")
                break
