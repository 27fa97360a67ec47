"""Values that each replica has for itself: variables that are read as a sum, a mean or the first, and Keras metrics."""

from typing import Any

import tensorflow as tf

from worker.data import collectives
from worker.state.replica_values import replica_copies


class OwnValues:
    """Variables that each replica updates for itself, and Keras metrics."""

    def __init__(self, strategy: Any) -> None:
        gang = collectives.gang_of(strategy)
        self.rank = 0 if gang is None else gang.rank
        aggregations = tf.VariableAggregation
        with strategy.scope():
            self.variables = {
                name: tf.Variable(
                    tf.zeros([2], dtype),
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=aggregation,
                )
                for name, aggregation, dtype in (
                    ("sum", aggregations.SUM, tf.float32),
                    ("count", aggregations.SUM, tf.int64),
                    ("mean", aggregations.MEAN, tf.float32),
                    ("first", aggregations.ONLY_FIRST_REPLICA, tf.float32),
                )
            }
            self.metrics = {
                "Mean": tf.keras.metrics.Mean(),
                "Sum": tf.keras.metrics.Sum(),
                "Accuracy": tf.keras.metrics.Accuracy(),
            }
        self.alone = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregations.SUM,
        )
        """Made outside of the scope: each process has one."""
        self._update = tf.function(lambda step: strategy.run(self._on_replica, args=(step,)), autograph=False)

    def _on_replica(self, step: Any) -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        value = (tf.cast(replica, tf.float32) + 0.3) * tf.sqrt(tf.cast(step, tf.float32) + 1.0)
        for variable in self.variables.values():
            variable.assign_add(tf.cast([value * 10, value / 3], variable.dtype))
        self.metrics["Mean"].update_state(value)
        self.metrics["Sum"].update_state(value)
        self.metrics["Accuracy"].update_state([1, 2, 3], tf.stack([1, 2, 3 + replica * (step % 2)]))

    def update(self, step: int) -> None:
        """What one step does to them."""
        self._update(tf.constant(step))
        self.alone.assign_add(0.1 * (self.rank + 1))

    def values(self) -> dict[str, list[Any]]:
        """The values in this process, by name."""
        kept = {**self.variables, "alone": self.alone}
        for name, metric in self.metrics.items():
            kept |= {f"{name}.{number}": each for number, each in enumerate(metric.variables)}
        return {name: [copy.numpy().tolist() for copy in replica_copies(each)] for name, each in kept.items()}
