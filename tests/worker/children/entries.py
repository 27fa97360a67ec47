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


def exact() -> worker.Training:
    """Dropout, batch normalisation, Adam on a schedule; prints at the end how often its step was traced."""
    from worker import loop

    tracked = training.build(tf.distribute.get_strategy())
    steps = []
    make = loop.train_step

    def noted(*arguments: object) -> object:
        steps.append(make(*arguments))  # type: ignore[arg-type]
        return steps[-1]

    loop.train_step = noted  # type: ignore[assignment]

    def evaluate(model: tf.keras.Model) -> dict[str, float]:
        print("tracings", sum(step.experimental_get_tracing_count() for step in steps), flush=True)  # type: ignore[attr-defined]
        return {}

    return worker.Training(
        model=tracked.model,
        optimizer=tracked.optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        data=training.data(),
        total_steps=12,
        evaluate=evaluate,
    )
