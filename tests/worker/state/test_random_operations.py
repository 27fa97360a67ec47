"""Stateful random operations draw the same numbers again from a restored state, wherever they are used."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from worker.state import extra_state, random_operations

pytestmark = pytest.mark.tensorflow

OPERATIONS: dict[str, Callable[[], Any]] = {
    "normal": lambda: tf.random.normal([4]),
    "truncated_normal": lambda: tf.random.truncated_normal([4]),
    "uniform": lambda: tf.random.uniform([4], 2.0, 5.0),
    "integers": lambda: tf.random.uniform([9], 0, 50, dtype=tf.int32),
    "shuffle": lambda: tf.random.shuffle(tf.range(20)),
    "categorical": lambda: tf.random.categorical([[0.0, 0.0, 1.0]], 20),
    "gamma": lambda: tf.random.gamma([2], [1.0, 2.0]),
    "poisson": lambda: tf.random.poisson([9], [20.0]),
    "dropout": lambda: tf.nn.dropout(tf.ones([40]), 0.5),
    "crop": lambda: tf.image.random_crop(tf.reshape(tf.range(900), [30, 30, 1]), [2, 2, 1]),
}
WAYS: dict[str, Callable[[Any, Callable[[], Any]], Callable[[], Any]]] = {
    "eagerly": lambda strategy, operation: operation,
    "in a function": lambda strategy, operation: tf.function(operation),
    "on every replica": lambda strategy, operation: tf.function(lambda: strategy.run(operation)),
    "on every replica, eagerly": lambda strategy, operation: lambda: strategy.run(operation),
    "compiled": lambda strategy, operation: tf.function(operation, jit_compile=True),
}
NOT_COMPILED = ("gamma", "poisson")
"""XLA has no kernels for these, stateful or not."""


@pytest.fixture
def exact(two_replicas: Any) -> Iterator[Any]:
    random_operations.make_exact(two_replicas)
    tf.random.set_seed(1)
    yield two_replicas
    random_operations._generators = None


def values(drawn: Any) -> list[Any]:
    return [np.ravel(part.numpy()).tolist() for part in getattr(drawn, "values", (drawn,))]


def is_in_every_run(name: str, way: str) -> bool:
    """All in a function. In other ways one that draws floating-point numbers, one that draws integers, one that
    shuffles, and one that draws within another operation; on replicas without a function the first and the third."""
    if way == "on every replica, eagerly":
        return name in ("normal", "shuffle")
    return way == "in a function" or name in ("normal", "integers", "shuffle", "dropout")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if is_in_every_run(name, way) else pytest.mark.nightly)
        for name in OPERATIONS
        for way in WAYS
    ],
)
def test_operation_repeats_its_numbers_from_a_restored_state(name: str, way: str, exact: Any) -> None:
    if way == "compiled" and name in NOT_COMPILED:
        pytest.skip("XLA has no kernel for it")
    draw = WAYS[way](exact, OPERATIONS[name])
    draw()
    before = extra_state.read_generators()
    first, second = values(draw()), values(draw())

    extra_state.write_generators(before)

    assert [values(draw()), values(draw())] == [first, second]
    assert first != second
    assert "replica" not in way or first[0] != first[1]


def test_shuffle_keeps_every_value(exact: Any) -> None:
    assert sorted(tf.random.shuffle(tf.range(50)).numpy().tolist()) == list(range(50))


def test_global_seed_begins_the_sequence_anew(exact: Any) -> None:
    first = values(tf.random.normal([3]))
    tf.random.set_seed(2)
    other = values(tf.random.normal([3]))
    tf.random.set_seed(1)

    assert values(tf.random.normal([3])) == first != other


def test_equal_seeds_of_operations_still_draw_equal_numbers(exact: Any) -> None:
    draw = tf.function(lambda: (tf.random.normal([3], seed=7), tf.random.normal([3], seed=7)))

    one, other = draw()
    assert values(one) == values(other)


@pytest.mark.parametrize("through_python", [False, True])
def test_functions_of_a_dataset_leave_the_state_alone(through_python: bool, exact: Any) -> None:
    def draw(number: Any) -> Any:
        return (
            tf.py_function(lambda: tf.random.uniform([]), [], tf.float32) if through_python else tf.random.uniform([])
        )

    before = random_operations.read()
    assert len({float(each) for each in tf.data.Dataset.range(3).map(draw)}) == 3

    assert random_operations.read() == before


def test_gamma_has_its_gradient(exact: Any) -> None:
    alpha = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(alpha)
        drawn = tf.random.gamma([5], alpha)

    assert np.all(tape.gradient(drawn, alpha).numpy() > 0)
