"""Keras metrics, which no tf.train.Checkpoint takes, are kept in run.state: to the last bit, on every replica."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from worker.state.replica_values import replica_copies

pytestmark = pytest.mark.tensorflow


def metric_of(strategy: Any) -> Any:
    with strategy.scope():
        metric = tf.keras.metrics.Mean(name="loss")
        metric.reset_state()
    return metric


def values_of(metric: Any) -> list[list[Any]]:
    return [[copy.numpy() for copy in replica_copies(variable)] for variable in metric.variables]


def test_each_replica_gets_its_part_of_a_metric_back(two_replicas: Any, tmp_path: Path) -> None:
    metric = metric_of(two_replicas)
    weight = tf.Variable(1.0)

    @tf.function
    def step() -> None:
        def on_replica() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            metric.update_state(tf.cast(replica, tf.float32) / 3 + 0.1)

        two_replicas.run(on_replica)

    with worker.Run(
        tf.train.Checkpoint(weight=weight), strategy=two_replicas, directory=tmp_path, state={"loss": metric}
    ) as run:
        step()
        run.step_done()
    before = values_of(metric)

    again = metric_of(two_replicas)
    with worker.Run(
        tf.train.Checkpoint(weight=weight), strategy=two_replicas, directory=tmp_path, state={"loss": again}
    ):
        restored = values_of(again)

    assert before[0][0] != before[0][1]
    assert restored == before


def test_metric_that_nobody_keeps_is_named_with_what_to_write(
    two_replicas: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forgotten, kept = metric_of(two_replicas), metric_of(two_replicas)
    with worker.Run(
        tf.train.Checkpoint(weight=tf.Variable(1.0)), strategy=two_replicas, directory=tmp_path, state={"kept": kept}
    ) as run:
        forgotten.update_state(np.float32(1))
        kept.update_state(np.float32(1))
        run.step_done()

    said = capsys.readouterr().err
    assert "reached as forgotten" in said and "reached as kept" not in said
    assert "worker.Run(state={...})" in said


class OldMean(tf.Module):  # type: ignore[misc]
    """A metric and a model as in Keras 2, whose classes are not those of `tf.keras`."""

    def __init__(self) -> None:
        super().__init__()
        self.total = tf.Variable(0.0)
        object.__setattr__(self, "_train_counter", tf.Variable(0))  # no dependency of its checkpoints

    def update_state(self, value: float) -> None:
        self.total.assign_add(value)

    def result(self) -> Any:
        return self.total

    def reset_state(self) -> None:
        self.total.assign(0.0)


def test_metric_of_keras_2_is_kept_and_the_counters_of_its_models_are_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric, model = OldMean(), OldMean()
    for expected in (1.0, 2.0):
        metric = OldMean()
        with worker.Run(tf.train.Checkpoint(weight=model.total), directory=tmp_path, state={"mean": metric}) as run:
            for _ in range(1):
                metric.update_state(1.0)
                model.update_state(1.0)
                run.step_done()

        assert float(metric.result()) == expected
    assert "checkpoints do not include" not in capsys.readouterr().err
