"""Finds operations in traced functions whose state is inside their kernels, so that no checkpoint can hold it."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from worker.checks import missing_variables, reachability
from worker.checks.findings import Finding
from worker.internals.tensorflow_internals import graphs_of
from worker.state import random_operations

RANDOM_OPERATIONS = frozenset(
    {"RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomUniform", "RandomUniformInt",
     "RandomShuffle", "Multinomial", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "SampleDistortedBoundingBox",
     "SampleDistortedBoundingBoxV2", "UniformCandidateSampler", "LogUniformCandidateSampler",
     "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler",
     "AllCandidateSampler", "FractionalMaxPool", "FractionalAvgPool"}
)  # fmt: skip
_LIBRARY_FOLDERS = ("/tensorflow/", "/keras/", "/worker/state/random_operations.py")
_ALL = (
    "set deterministic = true and call worker.strategy() at the beginning, which makes them exact, or use a "
    "tf.random.Generator that the tf.train.Checkpoint tracks, or tf.random.stateless_* with a seed made of the step"
)
_REST = (
    "use a tf.random.Generator that the tf.train.Checkpoint tracks, or tf.random.stateless_* with a seed made of the "
    "step; operations of tf.random without seed= are exact already"
)


def find_random_operations(roots: Iterable[reachability.Root], exempt: Iterable[Any] = ()) -> list[Finding]:
    """The stateful random operations in the functions that are reachable from `roots` and were traced by now."""
    visited = {id(each) for each in exempt}
    remedy = _ALL if random_operations.read() is None else _REST
    found: dict[str, None] = {}
    for item in missing_variables.reachable_objects(list(roots), visited):
        if isinstance(item, tf.types.experimental.PolymorphicFunction):
            for operation in _operations(item):
                found[f"{operation.type} at {_place(operation)}"] = None
    return [Finding(name, remedy) for name in found]


def _operations(function: Any) -> Iterator[Any]:
    for graph in graphs_of(function):
        yield from (operation for operation in graph.get_operations() if operation.type in RANDOM_OPERATIONS)


def _place(operation: Any) -> str:
    """File and line of the script, from where the operation was made."""
    frames = [(frame.filename, frame.lineno) for frame in operation.traceback or ()]
    own = [each for each in frames if not any(folder in each[0] for folder in _LIBRARY_FOLDERS)]
    return "{}:{}".format(*own[-1]) if own else f"operation {operation.name}"
