"""Batches that Python code makes: whether they are the same as before, and whether they can be."""

from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from worker.checks.loop_lines import calls, name_of_call
from worker.checks.loop_source import function_of, generator_expression_of

_HASHED_ENTRIES = 4096  # at the beginning and at the end of each array of a batch
_UNSEEDED = ("default_rng", "RandomState", "Random")


def draws_unseeded(source: Any) -> bool:
    """Whether the source of a function or of a generator makes a random generator without a seed."""
    code = getattr(source, "__code__", getattr(source, "gi_code", None))
    node = None if code is None else function_of(code) or generator_expression_of(code)
    unseeded = [call for call in calls(node) if not call.args and not call.keywords] if node else []
    return any(name_of_call(call) in _UNSEEDED for call in unseeded)


def copy_arrays(batch: Any) -> Any:
    """The batch with arrays of its own.

    TensorFlow 2.21 takes over the memory of NumPy's arrays, also of views and of those that the script keeps, and under
    a strategy with several replicas it writes results into it.
    """
    return tf.nest.map_structure(lambda part: part.copy() if isinstance(part, np.ndarray) else part, batch)


def hash_batch(batch: Any) -> str:
    """A hash of all of it."""
    hashed = xxhash.xxh3_128()
    for part in tf.nest.flatten(batch):
        array = np.ascontiguousarray(part)
        hashed.update(f"{array.dtype}{array.shape}".encode())
        hashed.update(array.tobytes())
    return str(hashed.hexdigest())


def hash_on(before: str, batch: Any) -> str:
    """A hash of the batches that `before` is one of, and of some entries of the next."""
    hashed = xxhash.xxh3_64(before.encode())
    for part in tf.nest.flatten(batch):
        entries = np.ascontiguousarray(part).reshape(-1)
        for some in (entries[:_HASHED_ENTRIES], entries[-_HASHED_ENTRIES:]):
            hashed.update(some.tobytes())
    return str(hashed.hexdigest())
