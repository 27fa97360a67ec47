"""`fit` with a callback that counts in its attributes and lowers the rate."""

import keras
import numpy as np
import tensorflow as tf

import worker.keras

worker.strategy()
keras.utils.set_random_seed(33)


class Plateau(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.best, self.wait = float("inf"), 0

    def on_train_batch_end(self, batch, logs=None):
        if logs["loss"] < self.best - 0.5:
            self.best, self.wait = logs["loss"], 0
        else:
            self.wait += 1
            if self.wait % 2 == 0:
                self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate * 0.5)


data = np.random.normal(size=(32, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(8)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
worker.keras.fit(model, data, data, epochs=4, batch_size=8, callbacks=[Plateau()], verbose=0, directory="checkpoints")
print(f"weights {sum(float(tf.reduce_sum(w)) for w in model.trainable_variables):.6f}")
