"""Arrays in memory, as `model.fit` takes them: in another order each epoch, resumed anywhere without reading."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from worker.internals import keras_data
from worker.internals.keras_data import tree
from worker.keras.data.fit_data import EpochBatches, FitData
from worker.state.dataset_passes import PassLog
from worker.state.description import BATCH_SIZE, CONTENT, rows_of_array, sample_of_content
from worker.state.state_file import Position


def are_arrays(*parts: Any) -> bool:
    """Whether Keras takes these, at any depth of tuples, lists and dicts, as arrays in memory."""
    return bool(keras_data.are_convertible(parts))


def split_for_validation(arrays: tuple[Any, Any, Any], share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    """(x, y, sample_weight) for training, and the last examples for the validation, as `validation_split` does."""
    training, validation = keras_data.split_for_validation(arrays, validation_split=share)
    return training, validation


class ArrayData(FitData):
    """Arrays with one entry for each example.

    Keras itself checks and converts them, and makes weights of class weights. The order is a function of (seed, epoch),
    so nothing before a position has to be read.
    """

    counts_examples = False

    def __init__(
        self,
        arrays: tuple[Any, Any, Any],
        batch_size: int | None,
        steps: int | None,
        shuffle: bool,
        seed: int,
        class_weight: Any = None,
    ) -> None:
        """`arrays`: x, y and sample_weight. `steps`: those of an epoch, from which Keras derives a batch size."""
        converted = keras_data.convert_arrays(arrays, batch_size, steps, class_weight)
        self._arrays, self._count, self._batch_size = converted
        self._shuffle = shuffle
        self.seed = seed

    def count_batches(self, position: Position) -> int:
        return math.ceil(self._count / self._batch_size)

    def element_spec(self) -> Any:
        return self._batches(Position()).element_spec

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        left = math.ceil((self._count - self._consumed(position)) / self._batch_size)
        order = "shuffled" if self._shuffle else "as they are"
        arrays = [getattr(item, "array", item) for item in tree.flatten(self._arrays)]
        rows = [rows_of_array(array) for array in arrays if isinstance(array, np.ndarray | tf.Tensor)]
        passes.described = {
            "number of examples": self._count,
            BATCH_SIZE: self._batch_size,
            "order": order,
            CONTENT: sample_of_content([row for row in rows if row is not None]),
            **({"seed": self.seed} if self._shuffle else {}),
        }
        return EpochBatches(self._batches(position), model, left)

    def has_no_batch_left(self, position: Position) -> bool:
        return self._consumed(position) >= self._count

    def position_after(self, start: Position, batches: int) -> Position:
        examples = min(self._consumed(start) + batches * self._batch_size, self._count)
        return Position(start.epoch, start.batch + batches, examples)

    def save(self, position: Position) -> Any:
        return {"seed": self.seed}, {}

    def restore(self, saved: Any, arrays: Any) -> None:
        self.seed = saved.get("seed", self.seed)

    def _consumed(self, position: Position) -> int:
        return position.batch * self._batch_size if position.examples is None else position.examples

    def _batches(self, position: Position) -> tf.data.Dataset:
        key = tf.constant([self.seed, position.epoch], tf.int64)

        def gather(numbers: tf.Tensor, arrays: Any) -> Any:
            rows = numbers
            if self._shuffle:
                rows = tf.random.experimental.index_shuffle(numbers, seed=key, max_index=self._count - 1)
            return tree.traverse(lambda part: _rows_of(part, rows), arrays)

        numbers = tf.data.Dataset.range(self._consumed(position), self._count).batch(self._batch_size)
        arrays = tf.data.Dataset.from_tensors(self._arrays).repeat()  # not constants of the graph, which are copied
        batches = tf.data.Dataset.zip(numbers, arrays).map(gather, num_parallel_calls=2, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return batches.prefetch(2).with_options(options)


def _rows_of(part: Any, rows: tf.Tensor) -> Any:
    """These rows of one array. None leaves a container to be searched for arrays."""
    if isinstance(part, keras_data.SparseArray):
        return keras_data.rows_of_sparse(part, rows)
    if isinstance(part, list | tuple | dict):
        return None
    return tf.gather(part, rows, axis=0) if tf.is_tensor(part) else part
