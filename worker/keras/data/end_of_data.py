"""Where a dataset ends and how many examples were consumed, which Keras does not tell."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from worker.data import collectives
from worker.data.resume_dataset import is_none_spec, rows_tensor


class ExampleCounter:
    """Counts the examples that are trained on. It counts inside the step, because a dataset runs ahead of training."""

    def __init__(self, model: Any, strategy: tf.distribute.Strategy | None) -> None:
        with model.distribute_strategy.scope():
            self.trained = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="examples_trained",
            )
        self._gang = collectives.gang_of(strategy)
        self._before: int | None = 0

    def begin(self, before: int | None) -> None:
        """A part of an epoch begins, of which `before` examples are consumed already; None: unknown."""
        self._before = before
        for copy in getattr(self.trained, "values", (self.trained,)):
            copy.assign(0)

    def consumed(self) -> int | None:
        """The number of examples of the epoch that are consumed. Waits for the last step; all workers must call it."""
        trained = sum(int(copy.numpy()) for copy in getattr(self.trained, "values", (self.trained,)))
        if self._gang is not None:
            (trained,) = self._gang.sum([trained])
        return None if self._before is None else self._before + trained

    @contextlib.contextmanager
    def counting(self, model: Any) -> Iterator[None]:
        """Makes the steps of `model` count, also if the script overrides `train_step`."""
        step, own = model.train_step, vars(model).get("train_step")

        def counted(data: Any) -> Any:
            self.trained.assign_add(rows_tensor(data))
            return step(data)

        object.__setattr__(model, "train_step", counted)  # Keras' own __setattr__ would track it
        model.train_function = None  # otherwise one that was traced before would be used
        try:
            yield
        finally:
            object.__delattr__(model, "train_step")
            if own is not None:
                object.__setattr__(model, "train_step", own)
            model.train_function = None


class EndOfData:
    """Wraps a dataset of unknown length (`dataset`) and knows its number of batches once it has yielded the last one.

    Keras asks such a dataset for one batch too many. The step that then finds none may or may not have counted an
    iteration of the optimizer and drawn random numbers, because these need no batch and run beside the request for it.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.batches: int | None = None
        """The number of batches; None until the end was seen."""
        stripped, restore_none = _strip_none(dataset)
        self.dataset = restore_none(stripped.window(2, shift=1).enumerate().flat_map(self._first))

    def _first(self, number: tf.Tensor, pair: Any) -> tf.data.Dataset:
        """The first of two neighbouring batches, once it is known whether there is a second."""
        window = tf.data.Dataset.zip(pair) if tf.nest.is_nested(pair) else pair
        count = window.cardinality()
        # its result is needed, so it runs; if it were stateful, TensorFlow would take the pipeline's threads away
        one = tf.numpy_function(self._record_end, [number, count], tf.int64, stateful=False)
        return window.take(tf.ensure_shape(one, []))

    def _record_end(self, number: Any, count: Any) -> Any:
        if count == 1:
            self.batches = int(number) + 1
        return np.int64(1)


def _strip_none(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, Callable[[tf.data.Dataset], tf.data.Dataset]]:
    """The dataset without the parts that are None, of which TensorFlow makes no windows; and what puts them back."""
    structure = dataset.element_spec
    parts = tf.nest.flatten(structure)
    present = [number for number, spec in enumerate(parts) if not is_none_spec(spec)]
    if len(present) in (0, len(parts)):
        return dataset, lambda stripped: stripped

    def strip(*element: Any) -> tuple[Any, ...]:
        flat = tf.nest.flatten(element)
        return tuple(flat[number] for number in present)

    def restore(*stripped: Any) -> Any:
        by_number = dict(zip(present, stripped, strict=True))
        return tf.nest.pack_sequence_as(structure, [by_number.get(number) for number in range(len(parts))])

    return dataset.map(strip), lambda stripped: stripped.map(restore)
