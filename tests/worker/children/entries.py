"""Entry points, good and bad."""

import tensorflow as tf

import worker
from tests.worker import training

NOT_A_FUNCTION = 5


def good() -> worker.Training:
    tracked = training.build(tf.distribute.get_strategy())
    return worker.Training(
        model=tracked.model,
        optimizer=tracked.optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        data=training.data(),
        total_steps=4,
        evaluate=lambda model: {"accuracy": 0.25},
    )


def raises() -> worker.Training:
    raise LookupError("no such corpus")


def gives_nothing() -> None:
    return None
