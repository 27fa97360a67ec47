"""Which variables hold a value of their own on each replica, and how are these values saved, restored and merged?

TensorFlow saves one value for each variable: the sum, the mean or the first replica's, as its aggregation says, and
gives every replica the same share of it. So the values of all replicas are saved besides. If the number of replicas has
changed, they are merged:

- variables that are summed when they are read (counters, accumulated gradients, Keras metrics): the first replica gets
  the total, the others zero, so that the sum is exactly what it was;
- variables of which only the first replica's value counts: that value;
- all others (moving averages): the mean over the saved replicas, computed in float64 in their order.

Of several processes that train together, each has the values of its own replicas only. The replicas of all are numbered
process by process, so saved values are assigned by that number, however many processes there are now.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

SEED_NAME = "seed_generator_state"  # what Keras calls the variable of a SeedGenerator
_SUM = ("sum", tf.VariableAggregation.SUM)
_FIRST = ("only_first_replica", tf.VariableAggregation.ONLY_FIRST_REPLICA)


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the `processes` that train together this one is: number `rank`, from 0."""

    rank: int = 0
    processes: int = 1


ALONE = Place()


def replica_copies(variable: Any) -> tuple[Any, ...]:
    """The parts of a TensorFlow or Keras variable of the replicas in this process; itself if it has no parts."""
    inner = _inner(variable)
    return tuple(getattr(inner, "values", (inner,)))


def is_distributed(variable: Any) -> bool:
    """Whether a strategy made it, with a part for each replica."""
    return hasattr(_inner(variable), "values")


def _inner(variable: Any) -> Any:
    return variable.value if isinstance(variable, tf.keras.Variable) else variable


def assign_copies(variable: Any, values: Sequence[np.ndarray[Any, Any]], place: Place = ALONE) -> None:
    """Assigns the replicas in this process their saved values, or what these merge to for this number of replicas.

    `values`: of all replicas of all processes that saved, process by process.
    """
    copies = replica_copies(variable)
    total, first = place.processes * len(copies), place.rank * len(copies)
    if len(values) != total:
        is_common = len(values) == 1 and not is_distributed(variable)  # each process has it whole
        values = [values[0]] * total if is_common else _merged(variable, values, total)
    for number, copy in enumerate(copies, first):
        copy.assign(values[number])


def _merged(variable: Any, values: Sequence[np.ndarray[Any, Any]], count: int) -> list[np.ndarray[Any, Any]]:
    kind, aggregation = values[0].dtype, getattr(variable, "aggregation", None)
    values = list(values)
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
    layers = [variable for variable in keras_variables if not variable.trainable and variable.name != SEED_NAME]
    known = {id(layer.value) for layer in layers}
    return (*layers, *(variable for variable in tracked if is_own_variable(variable) and id(variable) not in known))


_OF_METRICS = ("update_state", "result", "reset_state", "variables")


class MetricState:
    """Gives and takes the state of a Keras metric: each replica's values of its variables, in their order.

    No tf.train.Checkpoint takes a Keras metric, so a loop keeps its metrics in `run.state`.
    """

    def __init__(self, metric: tf.keras.Metric, place: Place = ALONE) -> None:
        self._metric = metric
        self._place = place

    @property
    def variables(self) -> Sequence[Any]:
        """Those of the metric."""
        return list(self._metric.variables)

    def state_dict(self) -> list[list[np.ndarray[Any, Any]]]:
        """The values, by variable and replica of this process."""
        return [[np.asarray(copy.numpy()) for copy in replica_copies(variable)] for variable in self._metric.variables]

    def load_state_dict(self, state: Sequence[Sequence[np.ndarray[Any, Any]]]) -> None:
        """`state`: by variable, the values of the replicas of all processes.

        Raises ValueError if the metric has other variables than when the state was saved.
        """
        if len(state) != len(self._metric.variables):
            raise ValueError(
                f"the metric {self._metric.name} had {len(state)} variables and has {len(self._metric.variables)}"
            )
        for variable, copies in zip(self._metric.variables, state, strict=True):
            assign_copies(variable, copies, self._place)

    @classmethod
    def of(cls, value: Any, place: Place = ALONE) -> "MetricState | None":
        """That of a Keras metric, also of Keras 2 (tf_keras); None for anything else."""
        is_metric = isinstance(value, tf.Module) and all(hasattr(value, name) for name in _OF_METRICS)
        return cls(value, place) if is_metric or isinstance(value, tf.keras.Metric) else None


Completion = Callable[[int, Sequence[np.ndarray[Any, Any]]], Sequence[np.ndarray[Any, Any]]]
"""Makes of the values that the chief saved of the variable with a number those of the replicas of all processes."""


class TrackedMetrics(ABC):
    """An object in a tf.train.Checkpoint that keeps metrics, of which each process has values of its own."""

    @property
    @abstractmethod
    def metric_variables(self) -> list[Any]:
        """Their variables, always in the same order."""

    @abstractmethod
    def complete_metrics(self, complete: Completion, place: Place) -> None:
        """Called after a restore, in the process at `place`: what was restored are the chief's values."""
