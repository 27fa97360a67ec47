"""Finds, before the first step, what would fail deep inside TensorFlow, and explains what TensorFlow says of it."""

from typing import Any

import tensorflow as tf

from worker.state import extra_state
from worker.state.replica_values import is_own_variable

_OF_REPLICAS = ("PerReplica", "cross-replica context", "in a replica context")
"""What TensorFlow and Keras say of a step that was called without `strategy.run`."""


def check_tracked(tracked: tf.train.Checkpoint, strategy: tf.distribute.Strategy | None) -> None:
    """Raises ValueError if the checkpoint is empty, if its model is not made for the replicas of the strategy, or if it
    has a variable of which TensorFlow could save no value."""
    if not extra_state.tracked_objects(tracked, object)[1:]:
        raise ValueError(
            "cannot save an empty tf.train.Checkpoint(); give worker.Run everything that training changes, as "
            "tf.train.Checkpoint(model=model, optimizer=optimizer)"
        )
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    for variable in extra_state.tracked_objects(tracked, tf.Variable) if replicas > 1 else ():
        _require_aggregation(variable, replicas)
    for model in extra_state.tracked_objects(tracked, tf.keras.Model):
        for variable in model.trainable_variables:
            made_for = len(getattr(variable.value, "values", (variable.value,)))
            if strategy is None and made_for > 1:
                raise ValueError(
                    f"cannot train model {model.name!r}, which was made for {made_for} replicas, without its strategy: "
                    f"write worker.Run(..., strategy=strategy)"
                )
            if replicas > 1 and strategy is not None:
                _require_scope(model, variable, strategy)


def _require_aggregation(variable: tf.Variable, replicas: int) -> None:
    is_distributed = hasattr(variable, "values")  # one made outside of the scope is saved as any other
    if is_own_variable(variable) and is_distributed and variable.aggregation.name == "NONE":  # of two enumerations
        raise ValueError(
            f"cannot save {variable.name}: each of the {replicas} replicas has a value of its own, and TensorFlow was "
            f"not told how to make one of them; create it with aggregation=tf.VariableAggregation.SUM, MEAN or "
            f"ONLY_FIRST_REPLICA"
        )


def _require_scope(model: Any, variable: Any, strategy: tf.distribute.Strategy) -> None:
    if not strategy.extended.variable_created_in_scope(variable.value):
        raise ValueError(
            f"cannot train model {model.name!r} on {strategy.num_replicas_in_sync} replicas: {variable.path} was "
            f"created outside strategy.scope(); build model and optimizer inside it (the tf.train.Checkpoint may be "
            f"created anywhere)"
        )


def explain(error: BaseException, strategy: tf.distribute.Strategy | None) -> str | None:
    """What a script has to write, if an error shows that its step was not run on the replicas; None otherwise."""
    replicas = 1 if strategy is None else strategy.num_replicas_in_sync
    if replicas == 1 or not any(replica in str(error) for replica in _OF_REPLICAS):
        return None
    return (
        f"run.batches gives each of the {replicas} replicas its part of a batch, so the step has to run on them: write "
        f"strategy.run(train_step, args=(batch,)) where the script calls train_step(batch), inside of a "
        f"tf.function, and strategy.reduce(...) for one loss of all"
    )


def require_python_loop() -> None:
    """Raises RuntimeError if this is called while TensorFlow traces a function: it would run once only."""
    if tf.inside_function():
        where, what = "a tf.function", "it would run once, when the function is traced, and count no step after that"
    elif tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        where, what = "strategy.run", "each replica would count every step"
    else:
        return
    raise RuntimeError(
        f"cannot count a step inside {where}: {what}; call run.step_done in the Python loop, after the function "
        f"that trains"
    )
