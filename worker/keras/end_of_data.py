"""The end of a dataset of unknown length, known before the batch behind the last is asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from worker.data.resume_dataset import is_none_spec


class EndOfData:
    """A dataset that says how many batches it has by the time its last one is given.

    Keras asks such a dataset for one batch more, and the step that then finds none has counted an iteration of the
    optimizer, and drawn random numbers, or not: they need no batch, and run beside the search for one.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.batches: int | None = None
        """How many there are; None: its end was not seen yet."""
        whole, around = _without_none(dataset)
        self.dataset = around(whole.window(2, shift=1).enumerate().flat_map(self._first))

    def _first(self, number: tf.Tensor, pair: Any) -> tf.data.Dataset:
        """The first of two neighbours, after a look at whether there is a second."""
        whole = tf.data.Dataset.zip(pair) if tf.nest.is_nested(pair) else pair
        count = whole.cardinality()
        # its result is needed, so it runs; a stateful one would have TensorFlow take the pipeline's threads away
        one = tf.numpy_function(self._record_end, [number, count], tf.int64, stateful=False)
        return whole.take(tf.ensure_shape(one, []))

    def _record_end(self, number: Any, count: Any) -> Any:
        if count == 1:
            self.batches = int(number) + 1
        return np.int64(1)


def _without_none(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[tf.data.Dataset], tf.data.Dataset]]:
    """A dataset without the parts that are None, of which TensorFlow can make no windows, and what puts them back."""
    structure = dataset.element_spec
    parts = tf.nest.flatten(structure)
    kept = [number for number, spec in enumerate(parts) if not is_none_spec(spec)]
    if len(kept) in (0, len(parts)):
        return dataset, lambda bare: bare

    def bared(*element: Any) -> tuple[Any, ...]:
        found = tf.nest.flatten(element)
        return tuple(found[number] for number in kept)

    def filled(*bare: Any) -> Any:
        found = dict(zip(kept, bare, strict=True))
        return tf.nest.pack_sequence_as(structure, [found.get(number) for number in range(len(parts))])

    return dataset.map(bared), lambda bare: bare.map(filled)
