"""fit with the usual callbacks, one of its own that collects losses, and a rate that falls on a plateau."""

import keras
import numpy as np
import tensorflow as tf

import worker.keras

worker.strategy()
keras.utils.set_random_seed(16)


class LossHistory(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []
        self.best = np.inf
        self.best_weights = None

    def on_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_loss"] < self.best:
            self.best = float(logs["val_loss"])
            self.best_weights = self.model.get_weights()


x = np.random.normal(size=(40, 5)).astype("float32")
y = (x @ np.arange(5, dtype="float32"))[:, None]
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
collected = LossHistory()
callbacks = [
    collected,
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=0.5),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=4, restore_best_weights=True),
    keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(f"epoch {epoch}: {logs['loss']:.4f}")),
]
worker.keras.fit(
    model, x, y, epochs=7, batch_size=10, validation_split=0.2, callbacks=callbacks, verbose=0, directory="checkpoints"
)
print(len(collected.losses), f"{collected.best:.6f}", f"{float(model.optimizer.learning_rate):.6f}")
