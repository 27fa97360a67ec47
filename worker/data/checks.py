"""Everything about data and random operations that is checked at the first step: what would not resume exactly."""

import gc
from collections.abc import Container, Iterable, Iterator
from typing import Any

import tensorflow as tf

from worker.checks import missing_variables
from worker.checks.dataset_checks import describe, find_in_dataset, find_in_functions
from worker.checks.findings import Finding
from worker.checks.reachability import Root
from worker.data.examples import Examples
from worker.internals.dataset_internals import original_dataset
from worker.internals.tensorflow_internals import graphs_of
from worker.state import random_operations
from worker.state.dataset_parts import open_iterators, random_parts
from worker.state.dataset_passes import PassLog

_READ_THROUGH_RUN = (
    "read through run.batches(dataset), which keeps the position; an iterator of a dataset that is not distributed may "
    "also be tracked in the tf.train.Checkpoint; name one that is not read in training in leave_out="
)
RANDOM_OPERATIONS = frozenset(
    {"RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomUniform", "RandomUniformInt",
     "RandomShuffle", "Multinomial", "RandomGamma", "RandomPoisson", "RandomPoissonV2", "SampleDistortedBoundingBox",
     "SampleDistortedBoundingBoxV2", "UniformCandidateSampler", "LogUniformCandidateSampler",
     "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler",
     "AllCandidateSampler", "FractionalMaxPool", "FractionalAvgPool"}
)  # fmt: skip
_LOOPS_OVER_DATA = frozenset({"ReduceDataset", "MakeIterator"})
_READ_IN_FUNCTION = (
    "a restart would begin with the first order again: read the data through run.batches, with a step for each batch, "
    "or give the function the epoch's own order, as in dataset.shuffle(n, seed=epoch, reshuffle_each_iteration=False), "
    "or name the dataset in leave_out= if the order is no matter"
)
_DRAWN_FOR_EPOCH = (
    "after a restart in the middle of the epoch it would draw others: draw from numpy.random.default_rng(epoch), made "
    "inside the function from the epoch that it is given"
)
_LIBRARY_FOLDERS = ("/tensorflow/", "/keras/", "/worker/state/random_operations.py", "/worker/internals/")
_ALL = (
    "set deterministic = true and call worker.strategy() at the beginning, which makes them exact, or use a "
    "tf.random.Generator that the tf.train.Checkpoint tracks, or tf.random.stateless_* with a seed made of the step"
)
_REST = (
    "use a tf.random.Generator that the tf.train.Checkpoint tracks, or tf.random.stateless_* with a seed made of the "
    "step; operations of tf.random without seed= are exact already"
)


def find_problems(
    roots: Iterable[Root],
    exempt: Iterable[Any],
    tracked: tf.train.Checkpoint,
    data: Any,
    passes: PassLog,
    total_steps: int | None,
    *,
    has_epochs: bool,
) -> list[Finding]:
    """What of the data and of the traced functions would not be the same after a restart.

    Call it after the first step, on the thread that trains. `roots`: what the loop can reach, as for `find_missing`.
    `exempt`: objects that the user says need not be saved. `data`: what `run.batches` or `fit` reads, or
    the function that loads its examples, or None. `passes`: the
    run's log of its passes. `has_epochs`: whether the script begins another pass in each of several epochs.
    """
    exempt = tuple(exempt)
    left_out = {id(value) for value in exempt}
    roots = list(roots)
    findings = _find_random_operations(roots, exempt)
    if data is None:
        findings += _find_passes_in_functions(roots, exempt)
    load = data.load if isinstance(data, Examples) else data
    if passes.data is None:
        findings += find_in_functions([load] if callable(load) else [])
    elif not left_out & {id(data), id(passes.data)}:
        if passes.draws:
            name = getattr(data, "__qualname__", type(data).__name__).replace("<locals>.", "")
            findings.append(
                Finding(f"the dataset that {name} makes of random numbers for each epoch", _DRAWN_FOR_EPOCH)
            )
        findings += find_in_dataset(passes.data, _reads_again(passes.data, total_steps, has_epochs))
    saved = {id(descendant) for descendant in tf.train.TrackableView(tracked).descendants()}
    places = _places_of_iterators(saved | left_out)
    if places:
        gc.collect()  # one that only a cycle of references still holds is read by nobody
        places = _places_of_iterators(saved | left_out)
    return findings + [
        Finding(f"what the loop reads from the iterator of {place}", _READ_THROUGH_RUN) for place in places
    ]


def _places_of_iterators(known: Container[int]) -> list[str]:
    """Where the script has made the iterators that exist, but for those of these ids."""
    return [place for iterator, place in open_iterators() if id(iterator) not in known]


def _reads_again(data: Any, total_steps: int | None, has_epochs: bool) -> bool:
    """Whether more than one pass over the data is to be expected."""
    batches = int(tf.data.experimental.cardinality(original_dataset(data)))
    if batches == tf.data.INFINITE_CARDINALITY:
        return has_epochs
    return total_steps is None or batches < total_steps


def _find_random_operations(roots: Iterable[Root], exempt: Iterable[Any]) -> list[Finding]:
    """The stateful random operations in the functions that are reachable from `roots` and were traced by now. Their
    state is inside their kernels, where no checkpoint can hold it."""
    visited = {id(value) for value in exempt}
    remedy = _ALL if random_operations.read() is None else _REST
    names: dict[str, None] = {}
    for item in missing_variables.reachable_objects(roots, visited):
        if isinstance(item, tf.types.experimental.PolymorphicFunction):
            for operation in _operations(item, RANDOM_OPERATIONS):
                names[f"{operation.type} at {_place(operation)}"] = None
    return [Finding(name, remedy) for name in names] + find_own_seeds()


def find_own_seeds() -> list[Finding]:
    """The draws of the loop with a seed of their own, outside of traced functions, that were not named yet: their state
    is inside their kernels, too."""
    return [Finding(f"{place}, which has a seed of its own", _REST) for place in random_operations.pop_own_seeds()]


def _find_passes_in_functions(roots: Iterable[Root], exempt: Iterable[Any]) -> list[Finding]:
    """The shuffles of the datasets that are reachable from `roots`, if a traced function has a loop over a dataset:
    nobody counts its passes."""
    items = list(missing_variables.reachable_objects(roots, {id(value) for value in exempt}))
    functions = [item for item in items if isinstance(item, tf.types.experimental.PolymorphicFunction)]
    places = [_place(loop) for function in functions for loop in _operations(function, _LOOPS_OVER_DATA)]
    datasets = [item for item in items if isinstance(item, tf.data.Dataset)] if places else []
    shuffles = {id(part.node): part.node for dataset in datasets for part in random_parts(dataset)}
    return [
        Finding(f"the order of {describe(node)} in later passes, which {places[0]} reads", _READ_IN_FUNCTION)
        for node in shuffles.values()
    ]


def _operations(function: Any, kinds: Container[str]) -> Iterator[Any]:
    for graph in graphs_of(function):
        yield from (operation for operation in graph.get_operations() if operation.type in kinds)


def _place(operation: Any) -> str:
    """File and line of the script, from where the operation was made."""
    frames = [(frame.filename, frame.lineno) for frame in operation.traceback or ()]
    own = [frame for frame in frames if not any(folder in frame[0] for folder in _LIBRARY_FOLDERS)]
    return "{}:{}".format(*own[-1]) if own else f"operation {operation.name}"
