"""A character language model: a small transformer that learns Python from Python's own standard library.

    python -m worker examples.charlm:training    the ready-made loop, from the folder that holds examples/

The text is the source of this interpreter's standard library, which is on every machine. The learning rate rises for
the first steps and then falls along a cosine; after a restart it continues where it was.
"""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

import worker

TOTAL_STEPS = int(os.environ.get("STEPS", "600"))
WARMUP_STEPS = TOTAL_STEPS // 10
BATCH_SIZE = 32  # windows, over all replicas
WINDOW = 96  # characters
WIDTH = 96
HEADS = 4
BLOCKS = 2
TEXT_CHARACTERS = 2_000_000
TEST_WINDOWS = 256
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
UNKNOWN = "?"  # replaces characters that are not in the alphabet


def text() -> str:
    """The first two million characters of the standard library's modules, in alphabetical order."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "".join(module.read_text(errors="replace") for module in modules)[:TEXT_CHARACTERS]


def windows() -> tuple[np.ndarray, np.ndarray]:
    """Characters and the ones that follow them: two int32 arrays [n, WINDOW] of indices into the alphabet."""
    index_of = {character: number for number, character in enumerate(ALPHABET)}
    unknown = index_of[UNKNOWN]
    codes = np.fromiter((index_of.get(character, unknown) for character in text()), dtype="int32")
    count = (len(codes) - 1) // WINDOW
    return codes[: count * WINDOW].reshape(count, WINDOW), codes[1 : count * WINDOW + 1].reshape(count, WINDOW)


class PositionEmbedding(tf.keras.layers.Layer):
    """Adds a learned vector for each position in the window. Input and output: float32 [batch, WINDOW, WIDTH]."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Creates the vectors."""
        self.places = self.add_weight(name="places", shape=shape[1:], initializer="random_normal")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The sum."""
        return inputs + self.places


def block(inputs: tf.Tensor) -> tf.Tensor:
    """One transformer block with causal attention."""
    layers = tf.keras.layers
    normed = layers.LayerNormalization()(inputs)
    attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(normed, normed, use_causal_mask=True)
    inputs = layers.Add()([inputs, attended])
    hidden = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(inputs))
    return layers.Add()([inputs, layers.Dropout(0.1)(layers.Dense(WIDTH)(hidden))])


def build() -> tf.keras.Model:
    """From indices into the alphabet, int32 [batch, WINDOW], to scores of the next one, float32 [batch, WINDOW, 96]."""
    layers = tf.keras.layers
    inputs = tf.keras.Input((WINDOW,), dtype="int32")
    hidden = PositionEmbedding()(layers.Embedding(len(ALPHABET), WIDTH)(inputs))
    for _ in range(BLOCKS):
        hidden = block(hidden)
    return tf.keras.Model(inputs, layers.Dense(len(ALPHABET))(layers.LayerNormalization()(hidden)))


def training() -> worker.Training:
    """The entry point of `python -m worker`, which calls it inside the strategy's scope."""
    inputs, labels = windows()
    schedule = tf.keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0, decay_steps=TOTAL_STEPS - WARMUP_STEPS, warmup_target=3e-3, warmup_steps=WARMUP_STEPS
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def evaluate(model: tf.keras.Model) -> Mapping[str, float]:
        """The mean number of bits per character of the last windows, which the model was not trained on."""
        nats = loss(labels[-TEST_WINDOWS:], model(inputs[-TEST_WINDOWS:], training=False))
        return {"bits_per_character": float(tf.reduce_mean(nats)) / np.log(2.0)}

    return worker.Training(
        model=build(),
        optimizer=tf.keras.optimizers.AdamW(schedule, weight_decay=0.01),
        loss=loss,
        data=worker.Examples(inputs[:-TEST_WINDOWS], labels[:-TEST_WINDOWS], batch_size=BATCH_SIZE, seed=1),
        total_steps=TOTAL_STEPS,
        evaluate=evaluate,
    )
