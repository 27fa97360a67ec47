"""Which variables hold a value of their own on each replica, and how are these values saved, restored and merged?

TensorFlow saves one value for each variable: the sum, the mean or the first replica's, as its aggregation says, and
gives every replica the same share of it. So the values of all replicas are saved besides. If the number of replicas has
changed, they are merged:

- variables that are summed when they are read (counters, accumulated gradients, Keras metrics): the first replica gets
  the total, the others zero, so that the sum is exactly what it was;
- variables of which only the first replica's value counts: that value;
- all others (moving averages): the mean over the saved replicas, computed in float64 in their order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

SEED_NAME = "seed_generator_state"  # what Keras calls the variable of a SeedGenerator
_SUM = ("sum", tf.VariableAggregation.SUM)
_FIRST = ("only_first_replica", tf.VariableAggregation.ONLY_FIRST_REPLICA)


def replica_copies(variable: Any) -> tuple[Any, ...]:
    """Each replica's part of a TensorFlow or Keras variable; the variable itself if there is one replica."""
    inner = variable.value if isinstance(variable, tf.keras.Variable) else variable
    return tuple(getattr(inner, "values", (inner,)))


def assign_copies(variable: Any, values: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assigns each replica's part its saved value, or what the saved values merge to for this number of replicas."""
    copies = replica_copies(variable)
    if len(copies) != len(values):
        values = _merged(variable, values, len(copies))
    for copy, value in zip(copies, values, strict=True):
        copy.assign(value)


def _merged(variable: Any, values: Sequence[np.ndarray[Any, Any]], count: int) -> list[np.ndarray[Any, Any]]:
    kind, aggregation = values[0].dtype, getattr(variable, "aggregation", None)
    if aggregation in _SUM:
        total = np.sum(values, axis=0, dtype=kind)
        return [total, *(np.zeros_like(total) for _ in range(count - 1))]
    if aggregation in _FIRST or not np.issubdtype(kind, np.floating):
        return [values[0]] * count
    return [np.mean(values, axis=0, dtype=np.float64).astype(kind)] * count


def is_own_variable(variable: Any) -> bool:
    """Whether a variable of the script's own (not a Keras layer's) has a value of its own on each replica."""
    on_read = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return isinstance(variable, tf.Variable) and on_read


def per_replica_variables(keras_variables: Iterator[Any], tracked: Sequence[Any]) -> tuple[Any, ...]:
    """The variables whose values differ between replicas, in the order in which the model was made.

    `keras_variables`: of the tracked Keras layers; each replica updates those that are not trained. `tracked`: all
    objects of the checkpoint.
    """
    layers = [each for each in keras_variables if not each.trainable and each.name != SEED_NAME]
    known = {id(each.value) for each in layers}
    return (*layers, *(each for each in tracked if is_own_variable(each) and id(each) not in known))


_OF_METRICS = ("update_state", "result", "reset_state", "variables")


class MetricState:
    """Gives and takes the state of a Keras metric: each replica's values of its variables, in their order.

    No tf.train.Checkpoint takes a Keras metric, so a loop keeps its metrics in `run.state`.
    """

    def __init__(self, metric: tf.keras.Metric) -> None:
        self._metric = metric

    def state_dict(self) -> list[list[np.ndarray[Any, Any]]]:
        """The values, by variable and replica."""
        return [[np.asarray(copy.numpy()) for copy in replica_copies(each)] for each in self._metric.variables]

    def load_state_dict(self, state: Sequence[Sequence[np.ndarray[Any, Any]]]) -> None:
        """Raises ValueError if the metric has other variables than when the state was saved."""
        if len(state) != len(self._metric.variables):
            raise ValueError(
                f"the metric {self._metric.name} had {len(state)} variables and has {len(self._metric.variables)}"
            )
        for variable, copies in zip(self._metric.variables, state, strict=True):
            assign_copies(variable, copies)

    @classmethod
    def of(cls, value: Any) -> "MetricState | None":
        """That of a Keras metric, also of Keras 2 (tf_keras); None for anything else."""
        is_metric = isinstance(value, tf.Module) and all(hasattr(value, name) for name in _OF_METRICS)
        return cls(value) if is_metric or isinstance(value, tf.keras.Metric) else None
