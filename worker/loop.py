"""The ready-made loop: `python -m worker package.module:function` trains what the function describes."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import tensorflow as tf

from worker import batch_spec, microbatch
from worker.process import attempt
from worker.run.run import Run


@dataclass(frozen=True, slots=True)
class Training:
    """What the loop needs. Made by the entry point's function, inside `strategy.scope()`.

    `loss(labels, predictions)` gives one figure per example (a Keras loss with `reduction="none"`), or one per element
    of an example, whose mean counts. `data` is what `Run.batches` takes, of (inputs, labels) pairs in global batches.
    `evaluate`: called at the end of training with the model; its figures become the job's results.
    """

    model: tf.keras.Model
    optimizer: tf.keras.optimizers.Optimizer
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    data: Any
    total_steps: int
    evaluate: Callable[[tf.keras.Model], Mapping[str, float]] | None = None


Step = Callable[[Any, Any], Any]
"""One optimizer step on (inputs, labels) on every replica; gives its figures by name."""


def train(training: Training, strategy: tf.distribute.Strategy, step: Step | None = None) -> None:
    """Trains to the end, resuming and saving as the job says. `step`: its compiled step, if it is there already."""
    tracked = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    with Run(tracked, strategy=strategy, total_steps=training.total_steps) as run:
        microbatches = run.split
        step = step or train_step(training, strategy, microbatches)
        remember = batch_spec.recorder(attempt.current_attempt())
        for inputs, labels in run.batches(training.data):
            remember(inputs, labels)
            run.step_done(**step(inputs, labels))
        if training.evaluate is not None:
            results = training.evaluate(training.model)
            run.summary(**results)
            sys.stdout.write(" ".join(f"{name} {value:.4f}" for name, value in results.items()) + "\n")


def train_step(training: Training, strategy: tf.distribute.Strategy, microbatches: int = 1) -> Step:
    """A compiled function: one optimizer step on every replica; gives each replica's mean `loss`, and the norm of its
    gradient (`gradient_norm`), unless the optimizer scales the loss: then infinite ones are normal.

    The gradients of the replicas are added up, so each replica's loss is divided by the global batch size, not by its
    own: the sum is then the gradient of the mean loss over the global batch, for any number of replicas,
    and of parts that each replica's batch is divided into (`microbatches`).
    """
    model, optimizer, loss, replicas = training.model, training.optimizer, training.loss, strategy.num_replicas_in_sync

    def share_of(part: tuple[Any, Any], rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
        inputs, labels = part
        with tf.GradientTape() as tape:
            of_example = loss(labels, model(inputs, training=True))
            of_example = tf.reduce_mean(tf.reshape(of_example, [tf.shape(of_example)[0], -1]), axis=1)
            share = tf.nn.compute_average_loss(of_example, global_batch_size=rows * replicas)
        return share, tape.gradient(share, model.trainable_variables)

    def on_replica(inputs: Any, labels: Any) -> dict[str, tf.Tensor]:
        rows = tf.shape(tf.nest.flatten(inputs)[0])[0]
        share, gradients = microbatch.accumulate(lambda part: share_of(part, rows), (inputs, labels), microbatches)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        figures = {"loss": share * replicas}
        if not isinstance(optimizer, tf.keras.optimizers.LossScaleOptimizer):
            figures["gradient_norm"] = tf.linalg.global_norm(gradients) * replicas
        return figures

    @tf.function  # type: ignore[untyped-decorator]
    def on_all(inputs: Any, labels: Any) -> Any:
        return strategy.run(on_replica, args=(inputs, labels))

    return cast("Step", on_all)
