"""Copies the saved state at the beginning of an epoch's body, so that a head that runs again can be undone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from worker.state import extra_state
from worker.state.object_values import identities
from worker.state.replica_values import assign_copies, replica_copies
from worker.state.run_state import RunState

SMALL_BYTES = 16 << 20  # of one variable; heads reset metrics and counters, and do not rewrite whole kernels


def copy_saved_state(
    tracked: tf.train.Checkpoint, state: RunState, own: Sequence[extra_state.OwnGenerator]
) -> Callable[[], None]:
    """Copies small variables, generators and `run.state`. Returns what puts back those that have changed since."""
    values, generators = state.copied(), extra_state.read_generators(own)
    copies = [(variable, _read(variable)) for variable in _small_variables(tracked)]

    def put_back() -> None:
        state.put_back(values)
        extra_state.write_generators(generators, own)
        for variable, before in copies:
            if any(not _is_same(now, value) for now, value in zip(_read(variable), before, strict=True)):
                assign_copies(variable, before)

    return put_back


def _small_variables(tracked: tf.train.Checkpoint) -> list[Any]:
    seen: set[int] = set()
    found = []
    for each in [*extra_state.tracked_objects(tracked, tf.Variable), *extra_state.keras_variables(tracked)]:
        if seen.isdisjoint(identities(each)) and _bytes_of(each) <= SMALL_BYTES:
            found.append(each)
        seen |= identities(each)
    return found


def _bytes_of(variable: Any) -> int:
    shape = tuple(variable.shape)
    return 0 if None in shape else int(np.prod(shape, dtype=np.int64)) * tf.as_dtype(variable.dtype).size


def _read(variable: Any) -> list[Any]:
    return [copy.numpy() for copy in replica_copies(variable)]


def _is_same(now: Any, before: Any) -> bool:
    """Whether two arrays hold the same bytes, NaN included."""
    return np.asarray(now).tobytes() == np.asarray(before).tobytes()
