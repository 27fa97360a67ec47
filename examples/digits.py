"""Handwritten digits: a small convolutional network, mirrored over two devices, with a custom training loop.

    python examples/digits.py              trains, and continues from its last checkpoint when it is started again
    python examples/digits.py --board      the same, with curves for TensorBoard in runs/digits/board
    supervisord -n -c examples/digits.conf the same, under supervision

The data are the 1,797 images of 8 x 8 pixels that come with scikit-learn; every fifth is for the test.
"""

import os
import sys

import worker

TOTAL_STEPS = int(os.environ.get("STEPS", "1500"))
BATCH_SIZE = 128  # over all replicas

strategy = worker.strategy(replicas=2)

import numpy as np  # noqa: E402 - worker.strategy must configure the devices first
import tensorflow as tf  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test set: images float32 [n, 8, 8, 1] in [0, 1], labels int64 [n]."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    test = np.arange(len(labels)) % 5 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def build() -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    """The network and its optimizer, whose learning rate falls along a cosine."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    schedule = tf.keras.optimizers.schedules.CosineDecay(1e-3, TOTAL_STEPS)
    return model, tf.keras.optimizers.Adam(schedule)


with strategy.scope():
    model, optimizer = build()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """One optimizer step on every replica. Returns the mean loss over the global batch."""

    def on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, args=(images, labels)), axis=None)


def main() -> None:
    """Trains, then prints the accuracy on the test images."""
    training, test = load()
    data = worker.Examples(*training, batch_size=BATCH_SIZE, seed=1)
    tracked = tf.train.Checkpoint(model=model, optimizer=optimizer)
    with worker.Run(
        tracked, strategy=strategy, total_steps=TOTAL_STEPS, directory="runs/digits", interval="200 steps",
        summaries="runs/digits/board" if "--board" in sys.argv else None,
    ) as run:  # fmt: skip
        for images, labels in run.batches(data):
            run.step_done(loss=train_step(images, labels))
        predicted = np.argmax(model(test[0], training=False), axis=1)
        accuracy = float(np.mean(predicted == test[1]))
        run.summary(accuracy=accuracy)
        print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
