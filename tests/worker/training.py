"""A training small enough for tests: convolution, batch normalisation, dropout, Adam."""

from typing import Any

import numpy as np
import tensorflow as tf

import worker

EXAMPLES = 96
BATCH = 16


def data(seed: int = 1) -> worker.Examples:
    numbers = np.random.default_rng(0)
    images = numbers.normal(size=(EXAMPLES, 8, 8, 1)).astype("float32")
    labels = numbers.integers(0, 10, EXAMPLES)
    return worker.Examples(images, labels, batch_size=BATCH, seed=seed)


def build(strategy: Any, width: int = 8, dropout: bool = True) -> tf.train.Checkpoint:
    layers = tf.keras.layers
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((8, 8, 1)),
                layers.Conv2D(width, 3),
                layers.BatchNormalization(),
                *([layers.Dropout(0.5)] if dropout else []),
                layers.Flatten(),
                layers.Dense(10, name="head"),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(1e-2, 200))
    return tf.train.Checkpoint(model=model, optimizer=optimizer)


def step_of(tracked: tf.train.Checkpoint, strategy: Any) -> Any:
    """One optimizer step on every replica; returns each replica's share of the loss."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    model, optimizer = tracked.model, tracked.optimizer

    def on_replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(labels, model(images, training=True)))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    # there is nothing to convert, and each of a thousand processes would do it again
    return tf.function(lambda images, labels: strategy.run(on_replica, args=(images, labels)), autograph=False)


def train(run: worker.Run, tracked: tf.train.Checkpoint, strategy: Any) -> None:
    """Makes the remaining steps of `run`."""
    step = step_of(tracked, strategy)
    for images, labels in run.batches(data()):
        run.step_done(loss=step(images, labels))


def all_values(tracked: tf.train.Checkpoint) -> list[np.ndarray]:
    """Every value that decides the next step, on every replica."""
    variables = [*tracked.model.variables, *tracked.optimizer.variables]
    return [copy.numpy() for variable in variables for copy in getattr(variable.value, "values", [variable.value])]
