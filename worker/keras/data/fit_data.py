"""What `fit` can train on, as one interface: opens the batches of an epoch from a position on.

Keras would make several iterators in each `model.fit`: one to build the model, one in advance. A shuffled dataset has
another order in each, and a generator loses batches. So here each opening makes exactly one, and Keras reads from it.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks.findings import Finding
from worker.data import collectives
from worker.data.batches import as_batch_source, check_shared_by_rows, shared_by_rows
from worker.data.description import describe_data
from worker.data.examples import Examples
from worker.internals.keras_data import DataAdapter
from worker.keras.data.end_of_data import EndOfData
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

DISTRIBUTED_REFUSED = (
    "cannot fit with a distributed dataset, which can't be resumed within an epoch; give the tf.data.Dataset itself: "
    "fit spreads it over the replicas"
)


class EpochBatches(DataAdapter):  # type: ignore[misc]
    """The batches of one `model.fit`: Keras reads them from `iterator`.

    `spec`: their structure and shapes. `batches`: their number; None: `end_of_data` knows it once the last was read.
    """

    def __init__(self, dataset: tf.data.Dataset, model: Any, batches: int | None, end_of_data: Any = None) -> None:
        self.iterator = iter(model.distribute_strategy.experimental_distribute_dataset(shared_by_rows(dataset)))
        self.spec = dataset.element_spec
        self.batches = batches
        self.end_of_data = end_of_data

    @property
    def known_batches(self) -> int | None:
        """The number of batches, as soon as it is known."""
        return self.batches if self.end_of_data is None else self.end_of_data.batches

    def of_length(self, batches: int) -> "EpochBatches":
        """The next so many of these batches, from where training is."""
        part = copy.copy(self)
        part.batches, part.end_of_data = batches, None
        return part

    def get_tf_dataset(self) -> Any:
        """Called by Keras."""
        return _AlreadyOpen(self.iterator)

    @property
    def num_batches(self) -> int | None:
        """Called by Keras."""
        return self.batches

    batch_size = has_partial_batch = partial_batch_size = None


class _AlreadyOpen(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """Gives each caller the one iterator. Keras distributes and rebatches no dataset of this type."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


class FitData:
    """The data of a `fit`."""

    counts_examples = True
    """Whether the number of examples in its batches is known only in the step (see `ExampleCounter`)."""
    lost: tuple[str, ...] = ()
    """A text for each part of a checkpoint's state of the data that could not be restored."""
    not_saved: tuple[str, ...] = ()
    """Names of state that no checkpoint holds, as no restart could make it again."""
    each_epoch_anew = False
    """Whether each epoch has a pass of its own, also with `steps_per_epoch`."""

    def count_batches(self, position: Position) -> int | None:
        """The number of batches of the whole pass that `position` is in; None: not known before its end."""
        raise NotImplementedError

    def element_spec(self) -> Any:
        """The structure and shapes of a batch."""
        raise NotImplementedError

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        """The batches from `position` on, until the end of the pass. `passes`: those of the run."""
        raise NotImplementedError

    def begin_training(self, resumed: bool) -> None:
        """Called once, after the state was restored."""

    def begin_epoch(self) -> None:
        """Called before an epoch is opened at its first batch."""

    def end_epoch(self) -> None:
        """Called when the batches of an epoch have ended, before the validation."""

    def has_no_batch_left(self, position: Position) -> bool:
        """Whether an epoch that was begun with smaller batches has too few examples left for one of today's size."""
        del position
        return False

    def position_after(self, start: Position, batches: int) -> Position:
        """The position that many batches later in the epoch."""
        return Position(start.epoch, start.batch + batches, None)

    def next_epoch(self, end: Position, consumed: Callable[[], int | None]) -> Position:
        """The first position of the next epoch, once training is at `end`, with so many examples `consumed`."""
        del consumed
        return Position(end.epoch + 1)

    def roots(self) -> list[Any]:
        """Where the search for state that is not saved begins."""
        return []

    def unsaveable(self) -> Mapping[str, Any]:
        """What of it can't be saved, by its name: it must not change while training runs."""
        return {}

    def note_trained(self, objects: Iterable[Any]) -> None:
        """`objects`: what training changes."""

    def find_problems(self) -> list[Finding]:
        """What of this data can't be resumed exactly."""
        return []

    def fingerprint(self) -> Any:
        """Of the first batches, where the description of the data does not tell whether other processes read the same.

        As JSON.
        """
        return None

    def save(self, position: Position) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray[Any, Any]]]:
        """What a checkpoint at `position` has to know of the data, as JSON and arrays."""
        del position
        return {}, {}

    def restore(self, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Sets what `save` returned."""


class ExamplesData(FitData):
    """A `worker.Examples`."""

    counts_examples = False

    def __init__(self, examples: Examples, class_weights: Callable[..., Any] | None = None) -> None:
        """`class_weights`: adds the weight of each example to a batch."""
        self._examples = examples
        self._class_weights = class_weights

    def count_batches(self, position: Position) -> int:
        return self._examples.per_epoch

    def element_spec(self) -> Any:
        return _weighed(self._examples.open(Position()), self._class_weights).element_spec

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        untuned = tf.data.Options()  # `Examples` gains nothing from tuning, and closing each iterator would wait for it
        untuned.autotune.enabled = False
        left = (self._examples.count - self._examples.consumed(position)) // self._examples.batch_size
        examples = self._examples.open(position)
        passes.described = describe_data(self._examples, examples, position.epoch, passes.last_described)
        dataset = _weighed(examples.take(left), self._class_weights)
        return EpochBatches(dataset.with_options(untuned), model, left)

    def has_no_batch_left(self, position: Position) -> bool:
        return self._examples.consumed(position) > 0 and self._examples.is_over(position)

    def position_after(self, start: Position, batches: int) -> Position:
        examples = self._examples.consumed(start) + batches * self._examples.batch_size
        return Position(start.epoch, start.batch + batches, examples)

    def roots(self) -> list[Any]:
        return [self._examples.load]


class DatasetData(FitData):
    """A tf.data.Dataset of one pass, or a function from the epoch to its dataset."""

    def __init__(self, data: Any, class_weights: Callable[..., Any] | None = None, endless: bool = False) -> None:
        """`class_weights`: adds the weight of each example to a batch. `endless`: whether it need not end.

        Raises TypeError or ValueError for data that can't be resumed.
        """
        if isinstance(data, tf.distribute.DistributedDataset):
            raise ValueError(DISTRIBUTED_REFUSED)
        as_batch_source(data)
        self._data = data
        self._class_weights = class_weights
        self._endless = endless
        self.each_epoch_anew = not isinstance(data, tf.data.Dataset)
        if not self.each_epoch_anew:
            self._check_end(data)

    def count_batches(self, position: Position) -> int | None:
        count = -1 if self.each_epoch_anew else _cardinality(self._data)
        return count if count >= 0 else None

    def element_spec(self) -> Any:
        return _weighed(self._data(0) if self.each_epoch_anew else self._data, self._class_weights).element_spec

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        batches = self._open(position, model, passes)
        passes.opened()
        return batches

    def _open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        dataset = as_batch_source(self._data, passes=passes).open(position)
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(DISTRIBUTED_REFUSED)
        self._check_end(dataset)
        check_shared_by_rows(dataset, collectives.worker_count(model.distribute_strategy))
        passes.described = describe_data(self._data, passes.data, position.epoch, passes.last_described)
        dataset = _weighed(dataset, self._class_weights)
        count = _cardinality(dataset)
        if count >= 0 or self._endless:
            return EpochBatches(dataset, model, count if count >= 0 else None)
        ending = EndOfData(dataset)
        return EpochBatches(ending.dataset, model, None, ending)

    def roots(self) -> list[Any]:
        return [self._data]

    def _check_end(self, dataset: tf.data.Dataset) -> None:
        if not self._endless and _cardinality(dataset) == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "cannot fit with a dataset without end: the first epoch would never be over; remove .repeat(), or give "
                "steps_per_epoch="
            )


def _weighed(dataset: tf.data.Dataset, class_weights: Callable[..., Any] | None) -> tf.data.Dataset:
    return dataset if class_weights is None else dataset.map(class_weights)


def _cardinality(dataset: tf.data.Dataset) -> int:
    return int(tf.data.experimental.cardinality(dataset))
