"""`fit` takes what `model.fit` takes: interrupted anywhere, it ends with the bits of an undisturbed run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol.launch import Launch
from tests.worker.keras.test_fit import StopsAt, same_weights, untuned
from worker.keras import fit

pytestmark = pytest.mark.tensorflow
COUNT = 22  # examples: the last of 6 batches has 2
X = np.random.default_rng(0).normal(size=(COUNT, 3)).astype("float32")
Y = np.arange(COUNT, dtype="float32")


@pytest.fixture(autouse=True)
def _new_attempt(begin: Callable[[Launch], None]) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def regression(**options: Any) -> Any:
    """A model whose weights depend on the order of its examples."""
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dropout(0.2), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(1e-2), **{"loss": "mse", "metrics": ["mae"], **options})
    return model


class Sequence(tf.keras.utils.PyDataset):  # type: ignore[misc]
    """As in tutorials: shuffles its rows at the end of each epoch, with NumPy's global generator."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows = np.arange(COUNT)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        rows = self.rows[index * 4 : index * 4 + 4]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.rows)


class Augmenting(Sequence):
    """Draws random numbers for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + np.random.normal(size=x.shape).astype("float32"), y + self.generator.random(y.shape, "float32")

    def on_epoch_end(self) -> None:
        pass


def noisy() -> Iterator[Any]:
    """A finite generator of one epoch, with noise of the global generator."""
    for start in range(0, COUNT, 4):
        yield X[start : start + 4] + np.random.normal(size=3).astype("float32"), Y[start : start + 4]


def endless() -> Iterator[Any]:
    numbers = np.random.default_rng(3)
    while True:
        rows = numbers.integers(0, COUNT, 4)
        yield X[rows], Y[rows]


def pairs() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 4},
    "arrays in order": lambda: {"x": X, "y": Y, "batch_size": 4, "shuffle": False},
    "tensors and weights": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "sample_weight": Y / 9, "batch_size": 4},
    "arrays split": lambda: {"x": X, "y": Y, "batch_size": 3, "validation_split": 0.3},
    "class weights": lambda: {"x": X, "y": Y % 2, "batch_size": 4, "class_weight": {0: 1.0, 1: 3.0}},
    "arrays in steps": lambda: {"x": X, "y": Y, "batch_size": 4, "steps_per_epoch": 4},
    "endless": lambda: {"x": pairs().shuffle(9).repeat().batch(4).with_options(untuned()), "steps_per_epoch": 6},
    "dataset in steps": lambda: {"x": pairs().shuffle(9).batch(4).with_options(untuned()), "steps_per_epoch": 3},
    "shuffled": lambda: {"x": pairs().shuffle(9).batch(4).with_options(untuned())},
    "weighed dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y % 2)).shuffle(9).batch(4).with_options(untuned()),
        "class_weight": {0: 1.0, 1: 3.0},
    },
    "PyDataset": lambda: {"x": Sequence()},
    "PyDataset with workers": lambda: {"x": Sequence(workers=2, max_queue_size=3)},
    "PyDataset with noise": lambda: {"x": Augmenting(), "shuffle": False},
    "generator": lambda: {"x": noisy},
    "endless generator": lambda: {"x": endless, "steps_per_epoch": 6},
    "generator object": lambda: {"x": endless(), "steps_per_epoch": 6},
}


class FailsAfter(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Fails in the tail of an epoch: in its validation, or at its end."""

    def __init__(self, epoch: int, where: str) -> None:
        super().__init__()
        self.epoch = epoch
        self.where = where
        self.now = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.now = epoch

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.where == "validation" and self.now == self.epoch:
            raise LookupError("on purpose")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.where == "end" and epoch == self.epoch:
            raise LookupError("on purpose")


def trained(folder: Path, make: Callable[[], dict[str, Any]], *stops: Any, **options: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    np.random.seed(1)
    model = regression()
    given = {"validation_data": (X[:9], Y[:9]), **make(), **options}
    if "validation_split" in given:
        del given["validation_data"]
    fit(
        model,
        **{"epochs": 3, "callbacks": list(stops), "verbose": 0, "directory": folder, "interval": "1 steps", **given},
    )
    return model


@pytest.mark.slow
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_fit_interrupted_anywhere_ends_like_an_undisturbed_one(
    make: Callable[[], dict[str, Any]], tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    undisturbed = trained(tmp_path / "calm", make)
    last = int(undisturbed.optimizer.iterations) - 1
    stops = [StopsAt(1), FailsAfter(0, "validation"), FailsAfter(1, "end"), StopsAt(last)]
    for stop in stops:
        with pytest.raises(LookupError):
            trained(tmp_path / "rough", make, stop)
        begin(Launch())
    disturbed = trained(tmp_path / "rough", make)

    assert disturbed.history.history == undisturbed.history.history
    assert same_weights(disturbed, undisturbed)
    assert disturbed.history.epoch == [0, 1, 2]
