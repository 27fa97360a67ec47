"""What is not public of tf.data: of datasets what they read and draw, and who iterates over them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from worker.internals.required import require

_datasets = require(
    "tensorflow.python.data.ops.dataset_ops", "DatasetV2._inputs", "DatasetV2.reduce", "DatasetV2.element_spec"
)
_iterators = require("tensorflow.python.data.ops.iterator_ops", "OwnedIterator._create_iterator")
_device_iterators = require("tensorflow.python.data.ops.multi_device_iterator_ops", "OwnedMultiDeviceIterator")
_batch_sizes = require("tensorflow.python.data.experimental.ops.distribute", "compute_batch_size")


def batch_size_of(dataset: tf.data.Dataset) -> int:
    """The number of examples in each batch, as strategies ask for it. Raises whatever TensorFlow raises."""
    return int(_batch_sizes.compute_batch_size(dataset))


def inputs_of(dataset: tf.data.Dataset) -> list[Any]:
    """The datasets that a dataset reads from."""
    return list(dataset._inputs())


def functions_in(dataset: tf.data.Dataset) -> list[Any]:
    """The Python functions of one dataset, without those of the datasets that it reads."""
    return [part._func for part in vars(dataset).values() if callable(getattr(part, "_func", None))]


def tensors_in(dataset: tf.data.Dataset) -> list[Any]:
    """The tensors that a dataset itself consists of: arrays, names of files."""
    return list(getattr(dataset, "_tensors", ()))


def original_dataset(data: Any) -> Any:
    """The tf.data.Dataset behind a distributed one; anything else as it is."""
    return getattr(data, "_original_dataset", data)


def changes_each_pass(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset by itself has another order, or other numbers, in each pass."""
    again = getattr(dataset, "_reshuffle_each_iteration", getattr(dataset, "_rerandomize", False))
    return hasattr(dataset, "_seed") and again is not False and again is not None


def seeds_of(dataset: tf.data.Dataset) -> tuple[int, int] | None:
    """Both seeds of a dataset that draws random numbers; None for any other."""
    if not hasattr(dataset, "_seed") or not hasattr(dataset, "_seed2"):
        return None
    return int(dataset._seed), int(dataset._seed2)


def repetitions_of(dataset: tf.data.Dataset) -> int:
    """How often a `repeat` reads its input, -1 without end; 1 for any other dataset."""
    return int(dataset._count) if type(dataset).__name__ == "_RepeatDataset" else 1


def taken_of_input(dataset: tf.data.Dataset, taken: int | None) -> int | None:
    """How many elements a dataset takes from its input for so many of its own; None if that is unknown, as where
    TensorFlow may read ahead. `taken`: None: all that it has."""
    kind = type(dataset).__name__
    if kind == "_TakeDataset" and (count := int(dataset._count)) >= 0:
        return count if taken is None else min(count, taken)
    return int(dataset._batch_size) * taken if kind == "_BatchDataset" and taken is not None else None


def buffer_size_of(dataset: tf.data.Dataset) -> int | None:
    """Of a shuffle; None for a dataset without a buffer."""
    size = getattr(dataset, "_buffer_size", None)
    return None if size is None else int(size)


def generator_of(item: Any) -> Any:
    """The function of a `Dataset.from_generator`, if an object is what TensorFlow keeps of one; None for any other."""
    return item._generator if type(item).__name__ == "_GeneratorState" else None


ENDS_EARLY = ("_TakeDataset", "_TakeWhileDataset", "_DirectedInterleaveDataset", "_GroupByWindowDataset")
"""Classes of datasets that may end before their inputs do."""


def on_new_iterator(made: Callable[[Any, Any], None]) -> None:
    """From now on, calls `made` with each dataset that is read eagerly, and its iterator, None in `reduce`."""
    make, for_devices = _iterators.OwnedIterator._create_iterator, _device_iterators.OwnedMultiDeviceIterator
    reduce, begin_for_devices = tf.data.Dataset.reduce, for_devices.__init__

    def create_iterator(self: Any, dataset: Any) -> Any:
        made(dataset, self)
        return make(self, dataset)

    def begin_multi_device(self: Any, dataset: Any = None, *rest: Any, **named: Any) -> None:
        if dataset is not None:
            made(dataset, self)
        begin_for_devices(self, dataset, *rest, **named)

    def counted_reduce(self: Any, *rest: Any, **named: Any) -> Any:
        made(self, None)
        return reduce(self, *rest, **named)

    _iterators.OwnedIterator._create_iterator = create_iterator
    for_devices.__init__ = begin_multi_device
    tf.data.Dataset.reduce = counted_reduce
