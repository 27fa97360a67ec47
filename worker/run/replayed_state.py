"""Copies, puts back and compares the variables of a checkpoint: for replays, and for the head of an epoch."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checkpoint.checkpoint_tensors import holds_more_than_variables
from worker.checkpoint.snapshot import tensor_name
from worker.internals.tensorflow_internals import is_op_determinism_enabled
from worker.progress.loop_state import SMALL_BYTES
from worker.replay.replayed_run import LoopAccess, ReplayedRun, Saves
from worker.state import extra_state
from worker.state.object_values import identities
from worker.state.replica_values import assign_copies, replica_copies

Values = tuple[tuple[np.ndarray[Any, Any], ...], ...]
"""Of each variable, the value of each replica."""


class ReplayedTensorFlow(ReplayedRun[Values]):
    """A run of one process whose state is variables."""

    def __init__(self, loop: LoopAccess, saves: Saves, tracked: tf.train.Checkpoint) -> None:
        super().__init__(loop, saves)
        self._tracked = tracked
        self._variables: tuple[tuple[str, Any], ...] | None = None

    @property
    def variables(self) -> tuple[tuple[str, Any], ...]:
        """Each variable that a checkpoint holds, or that is saved beside it, with its name."""
        if self._variables is None:
            self._variables = tuple(_variables_of(self._tracked))
        return self._variables

    @property
    def state_bytes(self) -> int:
        return sum(_bytes_of(copy) for _, variable in self.variables for copy in replica_copies(variable))

    def why_no_copy(self) -> str | None:
        if not is_op_determinism_enabled():
            return "training is not deterministic; set deterministic = true, and call worker.strategy() first"
        if (other := holds_more_than_variables(self._tracked)) is not None:
            return f"the checkpoint tracks a {other}, whose state can't be put back while training goes on"
        for name, variable in self.variables:
            if tf.as_dtype(variable.dtype) in (tf.string, tf.variant, tf.resource) or None in tuple(variable.shape):
                return f"{name} is no variable of numbers with a fixed shape"
        return None

    def read_tensors(self) -> Values:
        try:
            return tuple(tuple(copy.numpy() for copy in replica_copies(variable)) for _, variable in self.variables)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error.message)) from error

    def write_tensors(self, tensors: Values) -> None:
        for (_, variable), values in zip(self.variables, tensors, strict=True):
            for copy, value in zip(replica_copies(variable), values, strict=True):
                copy.assign(value)

    def differing_tensors(self, tensors: Values) -> Iterator[str]:
        for (name, variable), values in zip(self.variables, tensors, strict=True):
            copies = replica_copies(variable)
            for number, (copy, value) in enumerate(zip(copies, values, strict=True)):
                if not _are_same(copy.numpy(), value):
                    yield name if len(copies) == 1 else f"{name} (replica {number})"

    def is_same_structure(self, one: Values, other: Values) -> bool:
        """Whether the tracked objects are the same as before: a script may add some."""
        present = {id(variable) for _, variable in _variables_of(self._tracked)}
        return present == {id(variable) for _, variable in self.variables}


def _variables_of(tracked: tf.train.Checkpoint) -> Iterator[tuple[str, Any]]:
    """Each once, under the shortest path as TensorFlow names keys; those that only Keras knows under its own path."""
    seen: set[int] = set()
    of_keras = ((getattr(item, "path", item.name), item) for item in extra_state.keras_variables(tracked))
    for path, item in itertools.chain(extra_state.tracked_by_path(tracked), of_keras):
        if isinstance(item, tf.Variable | tf.keras.Variable) and seen.isdisjoint(identities(item)):
            seen |= identities(item)
            yield tensor_name(str(path)), item


def _are_same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays hold the same bytes, NaN included."""
    if np.asarray(one).dtype.hasobject:  # of texts
        return bool(np.array_equal(one, other))
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return bool(np.array_equal(first, second))


def batch_bytes(batch: Any) -> int:
    """The size of a batch on all replicas."""
    return sum(_bytes_of(part) for value in tf.nest.flatten(batch) for part in getattr(value, "values", (value,)))


def _bytes_of(tensor: Any) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64) * tf.as_dtype(tensor.dtype).size)


def copy_small_variables(tracked: tf.train.Checkpoint) -> Callable[[], None]:
    """Copies the variables that are small. Returns what puts back those that have changed since."""
    copies = [(variable, _read(variable)) for variable in _small_variables(tracked)]

    def put_back() -> None:
        for variable, before in copies:
            if not all(map(_are_same, _read(variable), before)):
                assign_copies(variable, before)

    return put_back


def _small_variables(tracked: tf.train.Checkpoint) -> Iterator[Any]:
    for _, variable in _variables_of(tracked):
        has_size = None not in tuple(variable.shape)
        if not has_size or _bytes_of(variable) <= SMALL_BYTES:
            yield variable


def _read(variable: Any) -> list[Any]:
    return [copy.numpy() for copy in replica_copies(variable)]
