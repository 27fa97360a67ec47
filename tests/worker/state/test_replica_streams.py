"""Each replica draws random numbers of its own, and a restart continues the sequences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import worker
from worker.state.extra_state import ReplicaSeedGenerator

pytestmark = pytest.mark.tensorflow
layers = tf.keras.layers


class Noisy(layers.Layer):
    """A custom layer with a generator of its own, inside another model."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = tf.keras.random.SeedGenerator(5)

    def call(self, inputs: Any) -> Any:
        return inputs + tf.keras.random.normal(tf.shape(inputs), seed=self.seeds)


def build(strategy: Any) -> tf.train.Checkpoint:
    with strategy.scope():
        inner = tf.keras.Sequential([tf.keras.Input((64,)), Noisy()])
        model = tf.keras.Sequential([tf.keras.Input((64,)), inner, layers.Dropout(0.5, seed=3)])
    return tf.train.Checkpoint(model=model)


def draws(tracked: tf.train.Checkpoint, strategy: Any) -> Callable[[], list[list[float]]]:
    """The outputs of dropout and noise for ones, on each replica."""

    def on_replica() -> Any:
        return tracked.model(tf.ones([1, 64]), training=True)

    compiled = tf.function(lambda: strategy.run(on_replica))
    return lambda: [result.numpy().tolist() for result in strategy.experimental_local_results(compiled())]


def test_keras_alone_draws_the_same_on_all_replicas(two_replicas: Any) -> None:
    """This is why `replica_streams` exists."""
    first, second = draws(build(two_replicas), two_replicas)()

    assert first == second


def test_replicas_draw_different_numbers_and_the_first_one_the_same_as_before(two_replicas: Any) -> None:
    (plain, _) = draws(build(two_replicas), two_replicas)()
    tracked = build(two_replicas)
    worker.replica_streams(tracked.model)
    first, second = draws(tracked, two_replicas)()

    assert first == plain
    assert not {value for value in first[0] if value} & set(second[0]), "noise"
    dropped = [[value == 0.0 for value in part[0]] for part in (first, second)]
    assert dropped[0] != dropped[1], "dropout masks"


def test_restart_continues_the_random_sequence(two_replicas: Any, tmp_path: Path) -> None:
    tracked = build(two_replicas)
    worker.replica_streams(tracked.model)
    draw = draws(tracked, two_replicas)
    with worker.Run(tracked, strategy=two_replicas, directory=tmp_path) as run:
        before = draw()
        run.step_done()
    expected = [draw(), draw()]
    tracked = build(two_replicas)
    worker.replica_streams(tracked.model)
    with worker.Run(tracked, strategy=two_replicas, directory=tmp_path):
        draw = draws(tracked, two_replicas)
        found = [draw(), draw()]

    assert found == expected
    assert before not in expected


def test_outside_of_replicas_it_draws_as_keras_does() -> None:
    plain, own = tf.keras.random.SeedGenerator(7), ReplicaSeedGenerator(7)

    assert [own.next().numpy().tolist() for _ in range(3)] == [plain.next().numpy().tolist() for _ in range(3)]
