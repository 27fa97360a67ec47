"""Handwritten digits with Keras' model.fit: resumes at the exact batch, with its callbacks as they were.

    python examples/fit.py               trains, and continues from its last checkpoint when it is started again
    supervisord -n -c examples/fit.conf  the same, under supervision

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn; every fifth is for the test.
"""

import os

import worker

EPOCHS = int(os.environ.get("EPOCHS", "20"))
BATCH_SIZE = 64

strategy = worker.strategy()

import numpy as np  # noqa: E402 - worker.strategy must configure the devices first
import tensorflow as tf  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from worker.keras import fit  # noqa: E402


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test set: images float32 [n, 8, 8, 1] in [0, 1], labels int64 [n]."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    test = np.arange(len(labels)) % 5 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def build() -> tf.keras.Model:
    """The network, compiled."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.4),
            layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Trains, then prints the accuracy on the test images."""
    training, test = load()
    with strategy.scope():
        model = build()
    callbacks = [
        tf.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2),
        tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=6, restore_best_weights=True),
    ]
    data = worker.Examples(*training, batch_size=BATCH_SIZE, seed=1)
    history = fit(
        model, data, epochs=EPOCHS, callbacks=callbacks, validation_data=test, strategy=strategy, directory="runs/fit",
        interval="50 steps", verbose=2,
    )  # fmt: skip
    accuracy = model.evaluate(*test, verbose=0)[1]
    print(f"{len(history.epoch)} epochs, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
