"""Seekable examples: arrays in memory, or what a function loads, in an order that can be resumed anywhere."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.data.resume_dataset import Batch
from worker.state.state_file import Position

_without_autograph: Callable[[Callable[..., Any]], Callable[..., Any]] = tf.autograph.experimental.do_not_convert
"""For functions of ours that tf.data traces: AutoGraph would take 0.3 s of each start, and convert nothing in them."""


class Examples:
    """Arrays in memory, or what a function loads, in a new order each epoch. Starts anywhere without skipping.

    The order is a function of (seed, epoch, index), so nothing is shuffled in a buffer. Examples that do not fill a
    last batch are left out of that epoch; each epoch leaves out others.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        count: int | None = None,
        load: Callable[[tf.Tensor], Any] | None = None,
        readers: int = 2,
    ) -> None:
        """Give either `arrays` or `count` and `load`.

        `arrays` have one entry per example and the same length; each may be a dict or a tuple of arrays, at any depth.
        A batch is a tuple of their slices; of one array, the slice itself. `load` returns the example with an index
        (int64 scalar, 0 to `count` - 1): tensors of the same shapes for all, as in `tf.data.Dataset.map`. `readers`
        examples are loaded in parallel, always in the same order. `batch_size` is the global one, over all replicas.
        Raises ValueError for other arguments, and for arrays of different lengths or too few examples.
        """
        if (load is None) != (count is None) or (load is None) != bool(arrays):
            raise ValueError("cannot make examples: give either arrays, or count= and load=")
        if readers < 1:
            raise ValueError(f"cannot read examples with {readers} readers; use 1 or more")
        self._tensors = _map_arrays(tf.convert_to_tensor, arrays)
        lengths = {int(tensor.shape[0]) for tensor in tf.nest.flatten(self._tensors)}
        counts = lengths if count is None else {int(count)}
        if len(counts) != 1:
            raise ValueError(f"cannot make examples of arrays with {sorted(counts)} entries; give all the same number")
        (self.count,) = counts
        if not 1 <= batch_size <= self.count:
            raise ValueError(
                f"cannot make batches of {batch_size} from {counted(self.count, 'example')}; use 1 to {self.count}"
            )
        self.batch_size = int(batch_size)  # JSON has no NumPy numbers
        self.load = load
        """Returns the example with an index; None for arrays."""
        self.seed = seed
        self.shuffle = shuffle
        self._readers = readers

    @property
    def tensors(self) -> list[Any]:
        """The arrays in memory; none with `load`."""
        return tf.nest.flatten(self._tensors) if self.load is None else []

    @property
    def per_epoch(self) -> int:
        """The number of whole batches in one epoch."""
        return self.count // self.batch_size

    def is_over(self, position: Position) -> bool:
        """Whether the remaining examples of the epoch do not fill a batch."""
        return self.count - self.consumed(position) < self.batch_size

    def left(self, position: Position) -> int:
        """The number of whole batches of the epoch that are left at `position`."""
        return (self.count - self.consumed(position)) // self.batch_size

    def open(self, position: Position) -> tf.data.Dataset:
        """The batches from `position` on, without end. The batches before it may have had another size."""
        first, left = self.consumed(position), self.left(position)

        @_without_autograph
        def rows_of_batch(number: tf.Tensor) -> tf.Tensor:
            later = number - left
            here = later < 0
            epoch = tf.constant(position.epoch, tf.int64)
            return self._row_indices(
                tf.where(here, epoch, epoch + 1 + later // self.per_epoch),
                tf.where(here, first + number * self.batch_size, later % self.per_epoch * self.batch_size),
            )

        numbers = tf.data.Dataset.range(2**62)
        if self.load is None:
            gathered = _without_autograph(lambda number: self._gather(rows_of_batch(number)))
            batches = numbers.map(gathered, **self._parallel)
        else:
            rows = numbers.map(rows_of_batch).unbatch()  # generating whole batches of indices is ten times as fast
            batches = rows.map(self.load, **self._parallel).batch(self.batch_size, drop_remainder=True)
            threads = tf.data.Options()  # by default as many load at once as there are cores: few for files
            threads.threading.private_threadpool_size = max(self._readers, os.cpu_count() or 1)
            batches = batches.with_options(threads)
        return batches.prefetch(2)

    def consumed(self, position: Position) -> int:
        """The number of examples of the epoch that are consumed at `position`."""
        return position.batch * self.batch_size if position.examples is None else position.examples

    @property
    def _parallel(self) -> dict[str, Any]:
        return {"num_parallel_calls": self._readers, "deterministic": True}

    def _row_indices(self, epoch: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        rows = start + tf.range(self.batch_size, dtype=tf.int64)
        if not self.shuffle:
            return rows
        key = tf.stack([tf.constant(self.seed, tf.int64), epoch])
        return tf.random.experimental.index_shuffle(rows, seed=key, max_index=self.count - 1)

    def _gather(self, rows: tf.Tensor) -> Batch:
        batch = _map_arrays(lambda tensor: tf.gather(tensor, rows), self._tensors)
        return batch if len(batch) > 1 else batch[0]


def _map_arrays(function: Callable[[Any], Any], structure: Any) -> Any:
    """Applies a function to each array in dicts and tuples. A list is an array, as for tf.data."""
    if isinstance(structure, Mapping):
        return {key: _map_arrays(function, value) for key, value in structure.items()}
    if not isinstance(structure, tuple):
        return function(structure)
    mapped = [_map_arrays(function, value) for value in structure]
    return type(structure)(*mapped) if hasattr(structure, "_fields") else tuple(mapped)
