"""`fit` resumes at the exact example of a dataset: each weight counts how often its example was trained on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from tests.worker import training
from tests.worker.keras.test_fit import (
    StopsAt,
    compiled,
    same_weights,
    untuned,
)
from worker.keras import fit
from worker.keras.data.end_of_data import EndOfData

pytestmark = pytest.mark.tensorflow
COUNT = 24


def counting(strategy: Any) -> Any:
    """A model whose weight i decreases by one each time that example i is trained on."""
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((COUNT,)), tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(tf.keras.optimizers.SGD(1.0), loss=lambda labels, found: tf.reduce_sum(found))
    return model


def pairs(batch: int, drop: bool = False) -> tf.data.Dataset:
    examples = tf.data.Dataset.from_tensor_slices((np.eye(COUNT, dtype="float32"), np.zeros(COUNT, "float32")))
    shuffled = examples.shuffle(COUNT, seed=3, reshuffle_each_iteration=False)
    return shuffled.batch(batch, drop_remainder=drop).with_options(untuned())


def of_unknown_length(batch: int) -> tf.data.Dataset:
    return pairs(batch).filter(lambda inputs, labels: True)


def with_none(batch: int) -> tf.data.Dataset:
    return of_unknown_length(batch).map(lambda inputs, labels: (inputs, labels, None))


SOURCES: dict[str, Callable[[int], Any]] = {
    "dataset": pairs,
    "of fixed batches": lambda batch: pairs(batch, drop=True),
    "of unknown length": of_unknown_length,
    "of unknown length, with None": with_none,
    "function of the epoch": lambda batch: lambda epoch: pairs(batch),
}


def taken(strategy: Any, data: Any, directory: Path, stop_at: int = -1, **options: Any) -> np.ndarray:
    """Trains, from the start or a checkpoint. Returns how often each example was trained on since the first start."""
    model = counting(strategy)
    model.set_weights([np.zeros((COUNT, 1), "float32")])
    keys = {"strategy": strategy, "verbose": 0, "directory": directory, "interval": "1 steps", "epochs": 1, **options}
    try:
        fit(model, data, callbacks=[StopsAt(stop_at)], **keys)
    except LookupError:
        assert stop_at >= 0
    return -model.get_weights()[0][:, 0]


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize(("first", "then"), [pytest.param(4, 6, marks=pytest.mark.nightly), (8, 3)])
def test_each_example_is_trained_on_once_when_the_batch_size_changes(
    make: Callable[[int], Any], first: int, then: int, tmp_path: Path
) -> None:
    strategy = tf.distribute.get_strategy()
    before = taken(strategy, make(first), tmp_path, stop_at=2)
    after = taken(strategy, make(then), tmp_path)

    assert before.sum() == 2 * first
    assert after.tolist() == [1.0] * COUNT


def in_order(batch: int) -> Iterator[tuple[Any, Any]]:
    for first in range(0, COUNT, batch):
        yield np.eye(COUNT, dtype="float32")[first : first + batch], np.zeros(batch, "float32")


class InOrder(tf.keras.utils.PyDataset):  # type: ignore[misc]
    """The same batches by their number."""

    def __len__(self) -> int:
        return COUNT // 4

    def __getitem__(self, number: int) -> Any:
        return list(in_order(4))[number]


@pytest.mark.parametrize("other", [lambda: in_order(4), InOrder()], ids=["generator", "PyDataset"])
def test_data_of_another_kind_go_on_where_the_ones_before_were(other: Any, tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()
    examples = tf.data.Dataset.from_tensor_slices((np.eye(COUNT, dtype="float32"), np.zeros(COUNT, "float32")))
    taken(strategy, examples.batch(4).with_options(untuned()), tmp_path, stop_at=2)

    after = taken(strategy, other, tmp_path, shuffle=False)

    assert after.tolist() == [1.0] * COUNT


def test_two_replicas_then_one_then_two_train_on_each_example_once(two_replicas: Any, tmp_path: Path) -> None:
    """Batches of 4 for each replica."""
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    first = taken(two_replicas, pairs(8), tmp_path, stop_at=1)
    second = taken(one, pairs(4), tmp_path, stop_at=3)
    third = taken(two_replicas, pairs(8), tmp_path)

    assert (first.sum(), second.sum()) == (8, 16)
    assert third.tolist() == [1.0] * COUNT


def test_batch_that_can_not_be_cut_is_refused_with_what_to_do(tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()

    def weighed(batch: int) -> tf.data.Dataset:
        """One weight for the whole batch: the weight of a part of it is unknown."""
        return pairs(batch).map(lambda inputs, labels: (inputs, labels, tf.constant(1.0)))

    taken(strategy, weighed(4), tmp_path, stop_at=2)
    with pytest.raises(ValueError, match=r"middle of a batch: 8 examples .* another size .* use a batch size"):
        taken(strategy, weighed(6), tmp_path)
    fits = taken(strategy, weighed(2), tmp_path)

    assert fits.tolist() == [1.0] * COUNT


def test_distributed_dataset_is_refused_before_training(two_replicas: Any) -> None:
    dataset = two_replicas.experimental_distribute_dataset(pairs(8))

    with pytest.raises(ValueError, match=r"distributed dataset, .* give the tf\.data\.Dataset itself"):
        fit(counting(two_replicas), dataset, epochs=1, strategy=two_replicas)


def test_batch_size_may_be_a_numpy_number(tmp_path: Path) -> None:
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    examples = worker.Examples(np.eye(COUNT, dtype="float32"), np.zeros(COUNT, "float32"), batch_size=np.int64(4))

    taken(one, examples, tmp_path, stop_at=3)

    assert list(taken(one, examples, tmp_path)) == [1] * COUNT


class FailsAtTheEndOf(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Fails after an epoch's last step, before the end of the epoch is complete."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            raise LookupError("on purpose")


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(StopsAt(8), id="within"),
        pytest.param(FailsAtTheEndOf(0), id="end"),
        pytest.param(FailsAtTheEndOf(1), marks=pytest.mark.nightly, id="end 1"),
    ],
)
def test_dataset_of_unknown_length_ends_like_an_undisturbed_run(stop: Any, tmp_path: Path) -> None:
    """With metrics and without a strategy, where Keras creates their variables only at the first step."""
    strategy = tf.distribute.get_strategy()
    images, labels = (part.numpy() for part in training.data()._tensors)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16).filter(lambda images, labels: True)

    def fitted(folder: str, *stops: Any) -> Any:
        tf.keras.utils.set_random_seed(1)
        model = compiled(strategy, metrics=["accuracy"])
        fit(
            model, dataset.with_options(untuned()), epochs=2, callbacks=stops, strategy=strategy, verbose=0,
            validation_data=(images[:32], labels[:32]), directory=tmp_path / folder, interval="1 steps",
        )  # fmt: skip
        return model

    undisturbed = fitted("calm")
    with pytest.raises(LookupError):
        fitted("rough", stop)
    disturbed = fitted("rough")

    assert int(disturbed.optimizer.iterations.numpy()) == 12
    assert disturbed.history.history == undisturbed.history.history
    assert disturbed.history.epoch == [0, 1]
    assert same_weights(disturbed, undisturbed)


SHAPES: dict[str, Callable[[tf.Tensor], Any]] = {
    "one part": lambda row: row,
    "none first": lambda row: (None, row),
    "none last": lambda row: (row, None),
    "none within": lambda row: ({"a": row, "b": None}, (row, None)),
    "a dict": lambda row: {"a": None, "b": row},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_end_of_data_is_known_with_the_last_batch_also_with_parts_that_are_none(
    shape: Callable[[tf.Tensor], Any],
) -> None:
    dataset = tf.data.Dataset.range(5).batch(2).filter(lambda row: True).map(shape)
    ending = EndOfData(dataset)
    found = list(ending.dataset)

    assert ending.batches == 3
    assert ending.dataset.element_spec == dataset.element_spec
    for one, other in zip(found, dataset, strict=True):
        tf.nest.assert_same_structure(one, other)
        assert str(one) == str(other)
