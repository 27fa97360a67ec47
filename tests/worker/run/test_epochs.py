"""A loop over epochs that dies anywhere, in an epoch's head or tail too, ends with the state of one that never died."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]  # each night a case is trained forty times
EPOCHS, BATCHES = 2, 2


class Died(Exception):
    """Leaves the run as a death does: nothing is saved."""


class Moments:
    """Counts the moments of a training; raises Died at the one that was chosen."""

    def __init__(self, dies_at: int | None) -> None:
        self._dies_at = dies_at
        self.count = 0

    def passes(self) -> None:
        self.count += 1
        if self.count == self._dies_at:
            raise Died


def over_epochs(run: worker.Run) -> Iterator[int]:
    return run.epochs(EPOCHS)


def while_loop(run: worker.Run) -> Iterator[int]:
    while run.epoch < EPOCHS:
        yield run.epoch


def ranged(run: worker.Run) -> Iterator[int]:
    yield from range(run.epoch, EPOCHS)


SOURCES: dict[str, Callable[[], Any]] = {
    "examples": lambda: worker.Examples(np.arange(4.0 * BATCHES), batch_size=4, seed=3),
    "dataset": lambda: tf.data.Dataset.range(4 * BATCHES).map(lambda each: tf.cast(each, tf.float64)).batch(4),
    "function": lambda: lambda epoch: tf.data.Dataset.range(4 * BATCHES).shuffle(9, seed=epoch).batch(4),
}


def train(folder: Path, moments: Moments, source: str, loop: Callable[[worker.Run], Iterator[int]]) -> list[Any]:
    """A training whose head and tail change everything that is saved. Returns what it ends with."""
    random.seed(8), np.random.seed(8)
    weight, rate, seen = (tf.Variable(value, dtype=tf.float64) for value in (1.0, 1.0, 0.0))
    stats: dict[str, list[float]] = {"losses": []}
    tracked = tf.train.Checkpoint(weight=weight, rate=rate, seen=seen)
    data = SOURCES[source]()
    with worker.Run(tracked, directory=folder, interval="1 steps", state={"stats": stats, "best": 0.0}) as run:
        for epoch in loop(run):
            moments.passes()
            seen.assign(np.random.normal())
            run.state["epoch_loss"] = random.random()
            moments.passes()
            for batch in run.batches(data):
                moments.passes()
                noise = np.random.normal()
                weight.assign(weight * 0.5 + tf.cast(tf.reduce_sum(batch), tf.float64) * rate + noise)
                seen.assign_add(1)
                run.state["epoch_loss"] += float(weight)
                moments.passes()
                run.step_done(loss=float(weight))
                moments.passes()
            rate.assign(rate * 0.5)
            moments.passes()
            stats["losses"].append(float(weight) + run.state["epoch_loss"])
            run.state["best"] = max(run.state["best"], float(weight))
            moments.passes()
            weight.assign_add(random.random() + epoch)
    return [run.step, float(weight), float(rate), float(seen), dict(run.state), np.random.normal(), random.random()]


CASES = [*itertools.product(SOURCES, [over_epochs]), ("dataset", while_loop), ("examples", ranged)]


@pytest.mark.parametrize(
    ("source", "loop", "first", "every"),
    [
        *((*case, 1 + number % 3, 3) for number, case in enumerate(CASES)),  # all moments, over the cases
        *(pytest.param(*case, 1, 1, marks=pytest.mark.nightly) for case in CASES),
    ],
)
def test_death_at_any_moment_of_an_epoch_changes_nothing(
    source: str,
    loop: Callable[[worker.Run], Iterator[int]],
    first: int,
    every: int,
    tmp_path: Path,
    begin: Callable[[Launch], None],
) -> None:
    begin(Launch(on_nan="off"))
    undisturbed = Moments(None)
    expected = train(tmp_path / "undisturbed", undisturbed, source, loop)
    assert undisturbed.count == EPOCHS * (4 + 3 * BATCHES)

    for moment in range(first, undisturbed.count + 1, every):
        folder = tmp_path / str(moment)
        with pytest.raises(Died):
            train(folder, Moments(moment), source, loop)
        assert train(folder, Moments(None), source, loop) == expected, f"died at moment {moment}"


def train_on_an_order(folder: Path, moments: Moments) -> list[Any]:
    """A training on indices that makes one more step behind those of each epoch. Returns what it ends with."""
    random.seed(8), np.random.seed(8)
    weight = tf.Variable(1.0, dtype=tf.float64)
    with worker.Run(tf.train.Checkpoint(weight=weight), directory=folder, interval="1 steps") as run:
        for _ in run.epochs(EPOCHS):
            moments.passes()
            for index in run.order(np.random.permutation(2 * BATCHES)):
                moments.passes()
                weight.assign(weight * 0.5 + index + np.random.normal())
                run.step_done(loss=float(weight))
            moments.passes()
            weight.assign_add(np.random.normal())
            run.step_done(loss=float(weight))
            moments.passes()
            weight.assign(weight * 0.5)
    return [run.step, float(weight), np.random.normal(), random.random()]


def test_death_at_any_moment_of_an_epoch_over_an_order_changes_nothing(
    tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    begin(Launch(on_nan="off"))
    undisturbed = Moments(None)
    expected = train_on_an_order(tmp_path / "undisturbed", undisturbed)
    assert (undisturbed.count, expected[0]) == (EPOCHS * (3 + 2 * BATCHES), EPOCHS * (2 * BATCHES + 1))

    for moment in range(1, undisturbed.count + 1):
        folder = tmp_path / str(moment)
        with pytest.raises(Died):
            train_on_an_order(folder, Moments(moment))
        assert train_on_an_order(folder, Moments(None)) == expected, f"died at moment {moment}"
