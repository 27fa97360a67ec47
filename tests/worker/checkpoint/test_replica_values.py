"""Variables that hold a value of their own on each replica come back on each, or are merged if their number changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from worker.state.replica_values import replica_copies

pytestmark = pytest.mark.tensorflow
SUM, MEAN, FIRST = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA


def one_device() -> Any:
    return tf.distribute.MirroredStrategy(["/cpu:0"])


def own(strategy: Any, aggregation: Any, dtype: Any = tf.float32) -> Any:
    """A variable as scripts make them to accumulate gradients or to count on each replica."""
    with strategy.scope():
        return tf.Variable(
            tf.zeros([2], dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )


def set_values(variable: Any, values: list[Any]) -> None:
    for copy, value in zip(replica_copies(variable), values, strict=True):
        copy.assign(value)


def values_of(variable: Any) -> list[list[float]]:
    return [copy.numpy().tolist() for copy in replica_copies(variable)]


def saved(strategy: Any, folder: Path, variable: Any, values: list[Any]) -> None:
    with worker.Run(tf.train.Checkpoint(own=variable), strategy=strategy, directory=folder) as run:
        set_values(variable, values)
        run.step_done()


@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
def test_each_replica_gets_its_own_value_back(two_replicas: Any, tmp_path: Path, aggregation: Any) -> None:
    values = np.float32([[0.1, 0.7], [0.3, 1e-9]])
    saved(two_replicas, tmp_path, own(two_replicas, aggregation), list(values))

    again = own(two_replicas, aggregation)
    with worker.Run(tf.train.Checkpoint(own=again), strategy=two_replicas, directory=tmp_path):
        restored = values_of(again)

    assert restored == values.tolist()


@pytest.mark.parametrize(
    ("aggregation", "dtype", "merged"),
    [
        (SUM, tf.float32, [4.0, 6.0]),
        (SUM, tf.int64, [4, 6]),
        (MEAN, tf.float32, [2.0, 3.0]),
        (FIRST, tf.float32, [1.0, 2.0]),
    ],
)
def test_fewer_replicas_get_what_the_aggregation_says(
    two_replicas: Any, tmp_path: Path, aggregation: Any, dtype: Any, merged: list[float], capsys: Any
) -> None:
    numbers = dtype.as_numpy_dtype
    saved(two_replicas, tmp_path, own(two_replicas, aggregation, dtype), [numbers([1, 2]), numbers([3, 4])])

    again = own(one_device(), aggregation, dtype)
    with worker.Run(tf.train.Checkpoint(own=again), strategy=one_device(), directory=tmp_path):
        restored = values_of(again)

    assert restored == [merged]
    assert "written by 2 replicas, now 1" in capsys.readouterr().err


def test_a_sum_stays_exact_on_more_replicas(two_replicas: Any, tmp_path: Path) -> None:
    saved(one_device(), tmp_path, own(one_device(), SUM, tf.int64), [np.int64([3, 5])])

    again = own(two_replicas, SUM, tf.int64)
    with worker.Run(tf.train.Checkpoint(own=again), strategy=two_replicas, directory=tmp_path):
        restored = values_of(again)

    assert restored == [[3, 5], [0, 0]]


def test_moving_averages_of_fewer_replicas_are_the_mean(two_replicas: Any, tmp_path: Path) -> None:
    def normalized(strategy: Any) -> Any:
        with strategy.scope():
            return tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.BatchNormalization()])

    model = normalized(two_replicas)
    with worker.Run(tf.train.Checkpoint(model=model), strategy=two_replicas, directory=tmp_path) as run:
        set_values(model.layers[0].moving_mean, [np.float32([1, 2]), np.float32([3, 5])])
        run.step_done()

    again = normalized(one_device())
    with worker.Run(tf.train.Checkpoint(model=again), strategy=one_device(), directory=tmp_path):
        restored = values_of(again.layers[0].moving_mean)

    assert restored == [[2.0, 3.5]]
