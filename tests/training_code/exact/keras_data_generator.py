"""The DataGenerator class of many tutorials: a PyDataset that shuffles its indexes at each epoch's end."""

import keras
import numpy as np
import tensorflow as tf

import worker.keras

worker.strategy()
keras.utils.set_random_seed(14)


class DataGenerator(keras.utils.PyDataset):
    "Generates data for Keras"

    def __init__(self, list_IDs, labels, batch_size=6, shuffle=True, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.labels = labels
        self.list_IDs = list_IDs
        self.shuffle = shuffle
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.list_IDs) / self.batch_size))

    def __getitem__(self, index):
        indexes = self.indexes[index * self.batch_size : (index + 1) * self.batch_size]
        ids = [self.list_IDs[k] for k in indexes]
        x = np.stack([np.sin(np.arange(5) * (i + 1)) for i in ids]).astype("float32")
        return x, np.array([self.labels[i] for i in ids], "float32")[:, None]

    def on_epoch_end(self):
        "Updates indexes after each epoch"
        self.indexes = np.arange(len(self.list_IDs))
        if self.shuffle:
            np.random.shuffle(self.indexes)


ids = list(range(30))
training = DataGenerator(ids, {i: float(i % 3) for i in ids})
model = keras.Sequential(
    [keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)]
)
model.compile(optimizer="rmsprop", loss="mae")
history = worker.keras.fit(model, training, epochs=5, verbose=0, directory="checkpoints")
losses = [round(value, 6) for value in history.history["loss"]]
print(losses, f"{sum(float(tf.reduce_sum(w)) for w in model.weights):.6f}")
