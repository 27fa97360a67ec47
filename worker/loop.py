"""The ready-made loop: `python -m worker package.module:function` trains what the function describes."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import tensorflow as tf

from supervisor.protocol.wire.exits import WorkerExit
from worker import batch_spec, microbatch
from worker.process.attempt import Attempt
from worker.process.startup import current_attempt
from worker.run.run import Run


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that the loop needs. The entry point's function returns one; it is called inside `strategy.scope()`.

    `loss(labels, predictions)` returns one value per example (a Keras loss with `reduction="none"`), or one per element
    of an example, of which the mean is taken. `data` is anything that `Run.batches` takes, with (inputs, labels) pairs
    in global batches. `evaluate` is called with the model at the end of training; the metrics that it returns become
    the job's results.
    """

    model: tf.keras.Model
    optimizer: tf.keras.optimizers.Optimizer
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    data: Any
    total_steps: int
    evaluate: Callable[[tf.keras.Model], Mapping[str, float]] | None = None


TrainStep = Callable[[Any, Any], Any]
"""One optimizer step on (inputs, labels) on every replica; returns its metrics by name."""


def build_training(describe: Callable[[], object], strategy: tf.distribute.Strategy, present: Attempt) -> Training:
    """Calls the entry point's function. Exits with BAD_LAUNCH if it doesn't return a Training."""
    with strategy.scope():
        training = describe()
    if not isinstance(training, Training):
        name = getattr(describe, "__qualname__", repr(describe))
        present.exit_with_error(
            WorkerExit.BAD_LAUNCH, f"cannot train: {name} returned a {type(training).__name__}, not a worker.Training"
        )
    return training


def train(training: Training, strategy: tf.distribute.Strategy, step: TrainStep | None = None) -> None:
    """Trains to the end; resumes and saves as the job's configuration says.

    `step`: the compiled step, if a standby has traced it already.
    """
    tracked = tf.train.Checkpoint(model=training.model, optimizer=training.optimizer)
    with Run(tracked, strategy=strategy, total_steps=training.total_steps) as run:
        microbatches = run.split  # read also if the step exists: it tells the run that the batches are divided
        step = step or train_step(training, strategy, microbatches)
        record_spec = batch_spec.recorder(current_attempt())
        for inputs, labels in run.batches(training.data):
            record_spec(inputs, labels)
            run.step_done(**step(inputs, labels))
        if training.evaluate is not None:
            results = training.evaluate(training.model)
            run.summary(**results)
            sys.stdout.write(" ".join(f"{name} {value:.4f}" for name, value in results.items()) + "\n")


def train_step(training: Training, strategy: tf.distribute.Strategy, microbatches: int = 1) -> TrainStep:
    """Returns a compiled function that makes one optimizer step on every replica.

    It returns each replica's mean `loss` and the norm of its gradient (`gradient_norm`). There is no `gradient_norm` if
    the optimizer scales the loss, because infinite gradients are normal then.

    The gradients of the replicas are added up, so each replica's loss is divided by the global batch size, not by its
    own: the sum is then the gradient of the mean loss over the global batch, for any number of replicas, and for any
    number of parts that each replica's batch is divided into (`microbatches`).
    """
    model, optimizer, replicas = training.model, training.optimizer, strategy.num_replicas_in_sync
    loss = _with_autograph(training.loss)

    def weighted_gradient(part: tuple[Any, Any], rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
        inputs, labels = part
        with tf.GradientTape() as tape:
            per_example = loss(labels, model(inputs, training=True))
            per_example = tf.reduce_mean(tf.reshape(per_example, [tf.shape(per_example)[0], -1]), axis=1)
            share = tf.nn.compute_average_loss(per_example, global_batch_size=rows * replicas)
        return share, tape.gradient(share, model.trainable_variables)

    def on_replica(inputs: Any, labels: Any) -> dict[str, tf.Tensor]:
        rows = tf.shape(tf.nest.flatten(inputs)[0])[0]
        share, gradients = microbatch.accumulate(
            lambda part: weighted_gradient(part, rows), (inputs, labels), microbatches
        )
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metrics = {"loss": share * replicas}
        if not isinstance(optimizer, tf.keras.optimizers.LossScaleOptimizer):
            metrics["gradient_norm"] = tf.linalg.global_norm(gradients) * replicas
        return metrics

    @tf.function(autograph=False)  # type: ignore[untyped-decorator] # there is nothing to convert; saves 0.2 s of a start
    def on_all(inputs: Any, labels: Any) -> Any:
        return strategy.run(on_replica, args=(inputs, labels))

    return cast("TrainStep", on_all)


def _with_autograph(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss function may have Python's `if` over tensors; Keras' own losses have none."""
    if not (inspect.isfunction(loss) or inspect.ismethod(loss)):
        return loss
    api = tf.__internal__.autograph  # as Keras 2 and strategy.run convert the functions that they are given
    return cast("Callable[..., Any]", api.tf_convert(loss, api.control_status_ctx()))
